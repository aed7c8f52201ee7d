"""Bytes of records and file headers: the one place that knows how a data file is laid out.

All little endian, all aligned to 8. A record is

    0  4s  magic        4  u32 length of the whole record
    8  u64 position     its own location: remains of an earlier life of the file carry another one
    16 u64 synced       every journal record below this position was synced when this was framed
    24 u16 shard        26 u8 kind      27 u8 flags (0)      28 u32 epoch
    32 u64 number       log number in the shard
    40 u32 meta bytes   44 u32 payload bytes
    48 u32 checksum     of bytes 0 to 48 and the meta
    52 u32 checksum     of the first 32 bytes of the payload; 0 if there is none
    56 meta, zeros, payload, zeros

A payload is a batch, which carries its own checksum. It is hashed by its producer and verified when
it is received or recovered, and not hashed again when it is appended. That checksum leaves out its
first bytes, into which the node writes what it assigns: they have one in the record.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from penstock.errors import DamagedError, VersionError
from penstock.wire.buffers import Buffer
from penstock.wire.entry import RECORD_HEADER_BYTES, payload_location

MAGIC = b"PSR1"
CHECKED_BYTES = 48
MAX_RECORD_BYTES = 1 << 30
MIN_PAYLOAD_BYTES = 40
"""A payload holds at least the fields that verify it."""
ASSIGNED_BYTES = 32
"""The start of a payload that its own checksum does not cover."""
PAYLOAD_LENGTH_AT = 4
PAYLOAD_CHECKSUM_AT = 32

HEADER = struct.Struct("<4sIQQHBBIQII")
CHECKSUM = struct.Struct("<Q")
PADDING = tuple(bytes(-size & 7) for size in range(8))
"""The zeros that follow a part, by its size modulo 8."""

CHECKSUMS = struct.Struct("<II")

_pack_header = HEADER.pack
_pack_checksums = CHECKSUMS.pack
_digest = xxhash.xxh3_64_intdigest
_HALF = 0xFFFFFFFF

# Below this size one more buffer in a vectored write costs more than copying the bytes.
_JOIN_BYTES = 512


def record_length(meta_bytes: int, payload_bytes: int) -> int:
    """Bytes of a whole record, padding included."""
    return RECORD_HEADER_BYTES + (meta_bytes + 7 & -8) + (payload_bytes + 7 & -8)


def frame(
    parts: list[Buffer],
    length: int,
    position: int,
    synced: int,
    shard: int,
    kind: int,
    epoch: int,
    number: int,
    meta: bytes,
    payload: Buffer | None,
) -> None:
    """Append the parts of one record to `parts`; a large payload is passed on, not copied."""
    meta_bytes = len(meta)
    payload_bytes = 0 if payload is None else len(payload)
    header = _pack_header(
        MAGIC, length, position, synced, shard, kind, 0, epoch, number, meta_bytes, payload_bytes
    )
    checksum = _pack_checksums(
        _digest(header + meta) & _HALF,
        0 if payload is None else _digest(payload[:ASSIGNED_BYTES]) & _HALF,
    )
    if payload is None:
        parts.append(b"".join((header, checksum, meta, PADDING[meta_bytes & 7])))
    elif payload_bytes <= _JOIN_BYTES:
        padding, end = PADDING[meta_bytes & 7], PADDING[payload_bytes & 7]
        parts.append(b"".join((header, checksum, meta, padding, payload, end)))
    else:
        parts.append(b"".join((header, checksum, meta, PADDING[meta_bytes & 7])))
        parts.append(payload)
        if payload_bytes & 7:
            parts.append(PADDING[payload_bytes & 7])


def is_header(header: bytes, meta: bytes, checksum: int) -> bool:
    """Whether the checksum of a record's first 48 bytes and its meta holds."""
    return _digest(header + meta) & _HALF == checksum


def is_assigned(payload: memoryview, checksum: int) -> bool:
    """Whether the start of a payload is what was written."""
    return _digest(payload[:ASSIGNED_BYTES]) & _HALF == checksum


def payload_of(record: Buffer) -> memoryview:
    """The payload in the bytes of one whole record, as a view; its own checksum is not verified.

    DamagedError: these bytes are not a record with a payload, or its header, its meta or the start
    of the payload is damaged.
    """
    view = memoryview(record)
    if len(view) < RECORD_HEADER_BYTES or view[:4] != MAGIC:
        raise DamagedError("there is no record where one should be")
    _, length, _, _, _, _, _, _, _, meta_bytes, payload_bytes = HEADER.unpack_from(view)
    if length != len(view) or length != record_length(meta_bytes, payload_bytes):
        raise DamagedError("a record does not have the length that it should have")
    meta = bytes(view[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + meta_bytes])
    checksum, of_payload = CHECKSUMS.unpack_from(view, CHECKED_BYTES)
    if not is_header(bytes(view[:CHECKED_BYTES]), meta, checksum) or not payload_bytes:
        raise DamagedError("the checksum of a record does not hold")
    start = payload_location(0, meta_bytes)
    payload = view[start : start + payload_bytes]
    if not is_assigned(payload, of_payload):
        raise DamagedError("the start of a batch is not what was written")
    return payload


FILE_MAGIC = b"PSF1"
FILE_HEADER_BYTES = 64
FILE_VERSION = 2
NO_SHARD = 0xFFFFFFFF

_FILE_HEADER = struct.Struct("<4sHBxIIQQ24x")


class FileHeader(NamedTuple):
    """The first bytes of a journal or shard segment.

    `follows` (journal only) is the position at which the journal before this file ends: what an
    earlier file holds beyond it was not trusted when this file was begun, and is not read.
    `directory` tells a file of this data directory from one that was copied here.
    """

    kind: str
    number: int
    shard: int
    directory: int
    follows: int

    def pack(self) -> bytes:
        """The 64 bytes at the start of the file."""
        body = _FILE_HEADER.pack(
            FILE_MAGIC, FILE_VERSION, ord(self.kind), self.number, self.shard, self.directory,
            self.follows,
        )  # fmt: skip
        return body + CHECKSUM.pack(_digest(body))

    @classmethod
    def parse(cls, data: bytes) -> FileHeader | None:
        """The header in `data`, or None when it is damaged or torn.

        VersionError: it is whole, and of another version of this layout.
        """
        body = data[: _FILE_HEADER.size]
        if len(data) < FILE_HEADER_BYTES or body[:4] != FILE_MAGIC:
            return None
        (checksum,) = CHECKSUM.unpack_from(data, _FILE_HEADER.size)
        if checksum != _digest(body):
            return None
        _, version, kind, number, shard, directory, follows = _FILE_HEADER.unpack(body)
        if version != FILE_VERSION:
            raise VersionError(
                f"data files of layout {version}; this release reads layout {FILE_VERSION}",
                advice="Nothing was changed. Open the directory with the release that wrote it.",
            )
        return cls(chr(kind), number, shard, directory, follows)
