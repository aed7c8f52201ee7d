"""Bytes of records and file headers: the one place that knows how a data file is laid out.

All little endian, all aligned to 8. A record is

    0  4s  magic        4  u32 length of the whole record
    8  u64 position     its own location: remains of an earlier life of the file carry another one
    16 u64 synced       every journal record below this position was synced when this was framed
    24 u16 shard        26 u8 kind      27 u8 flags (0)      28 u32 epoch
    32 u64 number       log number in the shard
    40 u32 meta bytes   44 u32 payload bytes
    48 u64 checksum     of bytes 0 to 48 and the meta
    56 meta, zeros, payload, zeros

A payload is a batch, which carries its own checksum. It is hashed by its producer and verified when
it is received or recovered, and not hashed again when it is appended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from penstock.wire.buffers import Buffer, pad8
from penstock.wire.durability import Durability

MAGIC = b"PSR1"
HEADER_BYTES = 56
CHECKED_BYTES = 48
MAX_RECORD_BYTES = 1 << 30
MIN_PAYLOAD_BYTES = 40
"""A payload holds at least the fields that verify it."""
PAYLOAD_LENGTH_AT = 4
PAYLOAD_CHECKSUM_AT = 32

HEADER = struct.Struct("<4sIQQHBBIQII")
CHECKSUM = struct.Struct("<Q")
PADDING = tuple(bytes(-size & 7) for size in range(8))
"""The zeros that follow a part, by its size modulo 8."""

_pack_header = HEADER.pack
_pack_checksum = CHECKSUM.pack
_digest = xxhash.xxh3_64_intdigest

# Below this size one more buffer in a vectored write costs more than copying the bytes.
_JOIN_BYTES = 512


@dataclass(slots=True, eq=False)
class Entry:
    """A record on its way into the journal.

    The journal holds `meta` and `payload` until they are synced; they must not change meanwhile.
    `location` is 0 until the record is framed, and changes if its segment fails before it is
    synced. `done` is for the caller: the journal hands the entry back and does not call it.
    """

    shard: int
    kind: int
    epoch: int
    number: int
    meta: bytes
    payload: Buffer | None = None
    level: Durability = Durability.SYNCED
    done: Callable[[Entry], None] | None = None
    location: int = 0
    length: int = 0
    committed: bool = False

    @property
    def payload_location(self) -> int:
        """Where the payload's bytes are, once framed."""
        return payload_location(self.location, len(self.meta))


def payload_location(location: int, meta_bytes: int) -> int:
    """Where the payload of a record starts."""
    return location + HEADER_BYTES + meta_bytes + (-meta_bytes & 7)


def record_length(meta_bytes: int, payload_bytes: int) -> int:
    """Bytes of a whole record, padding included."""
    return HEADER_BYTES + meta_bytes + pad8(meta_bytes) + payload_bytes + pad8(payload_bytes)


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
    checksum = _pack_checksum(_digest(header + meta))
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


FILE_MAGIC = b"PSF1"
FILE_HEADER_BYTES = 64
FILE_VERSION = 1
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
        """The header in `data`, or None when it is damaged, torn or of another version."""
        body = data[: _FILE_HEADER.size]
        if len(data) < FILE_HEADER_BYTES or body[:4] != FILE_MAGIC:
            return None
        (checksum,) = CHECKSUM.unpack_from(data, _FILE_HEADER.size)
        if checksum != _digest(body):
            return None
        _, version, kind, number, shard, directory, follows = _FILE_HEADER.unpack(body)
        if version != FILE_VERSION:
            return None
        return cls(chr(kind), number, shard, directory, follows)
