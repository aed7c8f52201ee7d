"""Reading a data file record by record: the one reader for recovery, cleaning and doctor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import xxhash

from penstock.store.disk import Disk
from penstock.store.locations import file_number, locate
from penstock.store.record import (
    CHECKED_BYTES,
    CHECKSUM,
    FILE_HEADER_BYTES,
    HEADER,
    MAGIC,
    MAX_RECORD_BYTES,
    MIN_PAYLOAD_BYTES,
    PAYLOAD_CHECKSUM_AT,
    PAYLOAD_LENGTH_AT,
    is_assigned,
    is_header,
    record_length,
)
from penstock.wire.entry import RECORD_HEADER_BYTES

CHUNK_BYTES = 4 << 20

_digest = xxhash.xxh3_64_intdigest
_unpack_header = Struct(HEADER.format + "II").unpack_from
_unpack_checksum = CHECKSUM.unpack_from
_unpack_length = Struct("<I").unpack_from
_unpack_position = Struct("<Q").unpack_from
_POSITION_AT = 8


@dataclass(slots=True, eq=False)
class Record:
    """A verified record. The payload is a view of the chunk that was read: copy it to keep it,
    because the view keeps the whole chunk in memory."""

    shard: int
    kind: int
    epoch: int
    number: int
    meta: bytes
    payload: memoryview | None
    payload_location: int
    location: int
    synced: int
    length: int
    checksum: int = 0
    """Of the first bytes of the payload."""

    @property
    def is_intact(self) -> bool:
        """Whether the payload, if there is one, is what was written."""
        payload = self.payload
        return payload is None or (is_assigned(payload, self.checksum) and is_intact(payload))


class Damage(NamedTuple):
    """Bytes that do not verify. Of a record whose payload alone is damaged the rest is known."""

    file: str
    offset: int
    length: int
    reason: str
    shard: int | None = None
    number: int | None = None
    meta: bytes | None = None
    kind: int | None = None


class Tail(NamedTuple):
    """Where the records of the file end; `torn` if one more was begun there and is not whole."""

    offset: int
    torn: bool


def scan(
    disk: Disk,
    name: str,
    start: int = FILE_HEADER_BYTES,
    *,
    end: int | None = None,
    verify_payloads: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[Record | Damage | Tail]:
    """All records of a file from offset `start` (a record's) to `end`, in order, then a Tail.

    A region that does not verify is yielded as one Damage if a whole record follows it; otherwise
    it is the torn tail. A record of which only the payload is bad is always Damage. Memory is
    bounded by a few chunks or the largest record. DiskError passes through: what cannot be read is
    not taken for damaged.
    """
    return _Scan(disk, name, end, verify_payloads, chunk_bytes).run(start)


class _Scan:
    __slots__ = ("base", "chunk", "chunk_bytes", "chunk_start", "disk", "end", "name", "verify")

    def __init__(
        self, disk: Disk, name: str, end: int | None, verify: bool, chunk_bytes: int
    ) -> None:
        size = disk.size(name)
        self.disk = disk
        self.name = name
        self.base = locate(file_number(name), 0)
        self.end = size if end is None else min(end, size)
        self.verify = verify
        self.chunk_bytes = chunk_bytes
        self.chunk = b""
        self.chunk_start = 0

    def run(self, offset: int) -> Iterator[Record | Damage | Tail]:
        while True:
            for record in self._whole(offset):
                offset = record.location - self.base + record.length
                if self.verify and not record.is_intact:
                    yield self._bad_payload(record)
                else:
                    yield record
            following = self._find(offset + 8)
            if following is None:
                yield Tail(offset, self._is_begun(offset))
                return
            yield Damage(self.name, offset, following - offset, "no valid record")
            offset = following

    def _whole(self, offset: int) -> Iterator[Record]:
        """Records one after the other, until one does not verify."""
        while True:
            record = self._record_at(offset)
            if record is None:
                return
            offset += record.length
            yield record

    def _record_at(self, offset: int) -> Record | None:
        at = offset - self.chunk_start
        chunk = self.chunk
        if at < 0 or at + RECORD_HEADER_BYTES > len(chunk):
            if offset + RECORD_HEADER_BYTES > self.end:
                return None
            chunk, at = self._load(offset, self.chunk_bytes), 0
        (
            magic, length, position, synced, shard, kind, _, epoch, number, meta_bytes,
            payload_bytes, checksum, of_payload,
        ) = _unpack_header(chunk, at)  # fmt: skip
        if magic != MAGIC or position != self.base + offset:
            return None
        if length != record_length(meta_bytes, payload_bytes) or length > MAX_RECORD_BYTES:
            return None
        if at + length > len(chunk):
            if offset + length > self.end:
                return None
            chunk, at = self._load(offset, max(length, self.chunk_bytes)), 0
        meta_at = at + RECORD_HEADER_BYTES
        meta = chunk[meta_at : meta_at + meta_bytes]
        if not is_header(chunk[at : at + CHECKED_BYTES], meta, checksum):
            return None
        payload_at = meta_at + meta_bytes + (-meta_bytes & 7)
        payload = None
        if not payload_bytes and of_payload:
            return None
        if payload_bytes:
            payload = memoryview(chunk)[payload_at : payload_at + payload_bytes]
        where = position + payload_at - at
        return Record(
            shard, kind, epoch, number, meta, payload, where, position, synced, length, of_payload
        )

    def _load(self, offset: int, size: int) -> bytes:
        """Read a chunk that starts at `offset`; padded with zeros if the file got shorter."""
        wanted = min(size, self.end - offset)
        self.chunk = self.disk.read(self.name, offset, wanted).ljust(wanted, b"\0")
        self.chunk_start = offset
        return self.chunk

    def _find(self, offset: int) -> int | None:
        """The offset of the next whole record from `offset` on."""
        while offset + RECORD_HEADER_BYTES <= self.end:
            start = offset - self.chunk_start
            if start < 0 or start + RECORD_HEADER_BYTES > len(self.chunk):
                self._load(offset, self.chunk_bytes)
                start = 0
            found = self.chunk.find(MAGIC, start)
            while found >= 0 and not self._is_candidate(found):
                found = self.chunk.find(MAGIC, found + 1)
            if found < 0:
                offset = self._after_chunk(offset)
                continue
            offset = self.chunk_start + found
            if self._record_at(offset) is not None:
                return offset
            offset += 8
        return None

    def _after_chunk(self, offset: int) -> int:
        """Where the search goes on: at the first place whose header this chunk does not hold."""
        end = self.chunk_start + len(self.chunk)
        return max((end - RECORD_HEADER_BYTES + 8) & ~7, offset + 8)

    def _is_candidate(self, at: int) -> bool:
        """Whether bytes that look like a magic number are a record's of this life of the file."""
        if at & 7 or at + RECORD_HEADER_BYTES > len(self.chunk):
            return False
        (position,) = _unpack_position(self.chunk, at + _POSITION_AT)
        return bool(position == self.base + self.chunk_start + at)

    def _is_begun(self, offset: int) -> bool:
        if offset + _POSITION_AT + 8 > self.end:
            return False
        start = self.disk.read(self.name, offset, _POSITION_AT + 8)
        (position,) = _unpack_position(start, _POSITION_AT)
        return start.startswith(MAGIC) and bool(position == self.base + offset)

    def _bad_payload(self, record: Record) -> Damage:
        return Damage(
            self.name, record.location - self.base, record.length, "payload checksum",
            record.shard, record.number, record.meta, record.kind,
        )  # fmt: skip


def is_intact(payload: memoryview) -> bool:
    """Whether a payload has the length and the checksum that it carries."""
    size = len(payload)
    if size < MIN_PAYLOAD_BYTES or _unpack_length(payload, PAYLOAD_LENGTH_AT)[0] != size:
        return False
    checksum = _unpack_checksum(payload, PAYLOAD_CHECKSUM_AT)[0]
    return bool(checksum == _digest(payload[MIN_PAYLOAD_BYTES:]))
