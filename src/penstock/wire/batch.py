"""The batch: one columnar layout on the wire, in memory and on disk.

A batch is written once by its producer and moved as bytes after that. The layout, byte by byte, is
in `docs/internals/batch.md`; the golden vectors in `tests/wire` hold it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import xxhash

from penstock.errors import DamagedError, ProtocolError, TooLargeError
from penstock.wire import codec as codecs
from penstock.wire import packing
from penstock.wire.buffers import Buffer, pad8
from penstock.wire.columns import BinaryColumn, Longs, Rows, padded
from penstock.wire.limits import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MAX_PRIORITY
from penstock.wire.numeric import np
from penstock.wire.tuples import new_tuple

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PSB1"
VERSION = 1
HEADER_BYTES = 96
MAX_BASE_BITS = 62  # so that base and row offset fit a signed number
CHECKED_FROM = 40  # what the producer wrote starts here; the node's fields are before it

HEADER = struct.Struct("<4sIQIIqQ BBBB I QQ qq II II")
_STAMP = struct.Struct("<QIIq")
_COUNT = struct.Struct("<I")
_COUNT_AT = 44
DUE_AT = 72
_CHECKSUM = struct.Struct("<Q")
_ORIGIN = struct.Struct("<QQQ")


class Columns:
    """Which optional columns a batch has: bits. Plain numbers, an enum costs a microsecond each."""

    KEYS: Final = 1
    KEY_NULLS: Final = 2
    TIMES: Final = 4
    HEADERS: Final = 8
    DELTAS: Final = 16
    ORIGIN: Final = 32


_NOT_IN_SPANS = Columns.DELTAS | Columns.KEY_NULLS | Columns.ORIGIN  # seldom: what `take` is for


class Header(NamedTuple):
    """The fixed part of a batch. The first seven fields are outside the checksum."""

    magic: bytes
    length: int
    base: int  # offset or position of the first row; the node's
    epoch: int  # the node's
    node_flags: int  # the node's
    arrived_us: int  # when it came in at the socket; the node's
    checksum: int
    version: int
    codec: int
    priority: int
    columns: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    producer: int
    sequence: int
    timestamp_us: int
    due_us: int  # 0: now; > 0: at that time; < 0: that long after arrival
    ttl_ms: int
    generation: int
    instance: int
    raw_length: int

    @property
    def members(self) -> int:
        """Of a gang: how many workers it needs. It stands where topics have their generation, so
        that it goes wherever the batch goes; other queues have 0 there."""
        return self.generation


class Origin(NamedTuple):
    """Where a bridged batch came from."""

    cluster: int
    offset: int
    hops: int


class Row(NamedTuple):
    """One message of a batch."""

    value: bytes
    key: bytes | None
    timestamp_us: int
    headers: dict[str, bytes]
    offset: int


def checksum_of(buffer: Buffer) -> int:
    """The checksum of a batch's bytes, computed anew."""
    return xxhash.xxh3_64_intdigest(memoryview(buffer)[CHECKED_FROM:])


def seal(parts: list[Buffer]) -> bytearray:
    """Joins header and body into one buffer and writes the length and the checksum into it."""
    return seal_in_place(bytearray().join(parts))


def seal_in_place(buffer: bytearray) -> bytearray:
    """The same buffer, a header and a body, after writing the length and the checksum into it."""
    if len(buffer) > MAX_BATCH_BYTES:
        raise TooLargeError(f"a batch of {len(buffer):,} bytes; the limit is {MAX_BATCH_BYTES:,}")
    struct.pack_into("<I", buffer, 4, len(buffer))
    _CHECKSUM.pack_into(buffer, 32, checksum_of(buffer))
    return buffer


def stamp(buffer: Buffer, base: int, epoch: int, arrived_us: int) -> None:
    """Writes what the node assigns; the checksum does not cover it."""
    _STAMP.pack_into(buffer, 8, base, epoch, 0, arrived_us)


def restamped(buffer: Buffer, base: int, arrived_us: int) -> bytearray:
    """A copy of a batch with another base and arrival; the checksum does not cover them."""
    copy = bytearray(buffer)
    _, epoch, flags, _ = _STAMP.unpack_from(copy, 8)
    _STAMP.pack_into(copy, 8, base, epoch, flags, arrived_us)
    return copy


def count_of(buffer: Buffer) -> int:
    """How many messages a batch has that was checked before."""
    count: int = _COUNT.unpack_from(buffer, _COUNT_AT)[0]
    return count


class Batch:
    """A read-only view of one batch. It owns nothing: it is valid as long as its buffer is."""

    def __init__(self, buffer: Buffer, header: Header) -> None:
        self.buffer = buffer
        self.header = header
        self._parsed: _Parsed | None = None

    @classmethod
    def parse(cls, buffer: Buffer, *, verify: bool = True) -> Batch:
        """Reads the header and checks every limit, and the checksum unless told otherwise.

        ProtocolError: not a batch of this version. DamagedError: the checksum does not hold.
        """
        if len(buffer) < HEADER_BYTES:
            raise ProtocolError(f"a batch of {len(buffer)} bytes is shorter than its header")
        fields = HEADER.unpack_from(buffer)
        magic, length, base, _, _, _, checksum, version, _, priority, _, count = fields[:12]
        if magic != MAGIC or version != VERSION:
            raise ProtocolError("not a batch of version 1")
        if length != len(buffer) or length > MAX_BATCH_BYTES:
            raise ProtocolError(f"batch length {length} in {len(buffer)} bytes")
        if not 0 < count <= MAX_BATCH_MESSAGES or priority > MAX_PRIORITY:
            raise ProtocolError("batch count or priority out of range")
        if base >> MAX_BASE_BITS:
            raise ProtocolError("batch base out of range")
        if verify and checksum_of(buffer) != checksum:
            raise DamagedError("the checksum of a batch does not hold")
        return cls(buffer, new_tuple(Header, fields))

    def stamp(self, base: int, epoch: int, arrived_us: int) -> None:
        """Writes what the node assigns into the buffer; the checksum does not cover it."""
        stamp(self.buffer, base, epoch, arrived_us)
        header = self.header
        stamped = (*header[:2], base, epoch, 0, arrived_us, *header[6:])
        self.header = new_tuple(Header, stamped)

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.header.count

    def __len__(self) -> int:
        return self.header.count

    @property
    def body(self) -> memoryview:
        """The columns, opened if they are compressed."""
        packed = memoryview(self.buffer)[HEADER_BYTES:]
        if not self.header.codec:
            return packed
        return memoryview(codecs.decompress(self.header.codec, packed, self.header.raw_length))

    @property
    def _columns(self) -> _Parsed:
        parsed = self._parsed  # a cached_property takes a lock, which costs more than the parsing
        if parsed is None:
            parsed = self._parsed = _Parsed.read(self.header, self.body)
        return parsed

    def check(self) -> None:
        """ProtocolError if the columns do not fit each other; opens a compressed body."""
        header = self.header
        if header.columns or header.codec:
            _ = self._columns
        else:
            packing.data_length(self.buffer, HEADER_BYTES, header.count)

    @cached_property
    def values(self) -> list[bytes]:
        """The values, in order."""
        return self.read_values()

    def read_values(self) -> list[bytes]:
        """The values, in order, in a list of the caller's own; nothing is kept of it here."""
        header = self.header
        if header.columns or header.codec:
            return self._columns.values.tolist()
        return packing.slice_values(self.buffer, HEADER_BYTES, header.count)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The keys, in order; None where there is none."""
        keys = self._columns.keys
        return [None] * self.count if keys is None else keys.tolist_nullable()

    @cached_property
    def timestamps(self) -> Longs:
        """Microseconds since 1970, UTC."""
        times = self._columns.times
        return np.full(self.count, self.header.timestamp_us, np.int64) if times is None else times

    @cached_property
    def offsets(self) -> Longs:
        """The offset (topic) or position (queue) of each row. The body is opened only if it has
        them: who cannot read that must be able to pass over it."""
        deltas = self._columns.deltas if self.header.columns & Columns.DELTAS else None
        rows = np.arange(self.count, dtype=np.int64) if deltas is None else deltas.astype(np.int64)
        return rows + self.header.base

    @property
    def end(self) -> int:
        """The offset after that of the last row."""
        if self.header.columns & Columns.DELTAS:
            return int(self.offsets[-1]) + 1
        return self.header.base + self.header.count

    @cached_property
    def headers(self) -> list[dict[str, bytes]]:
        """The headers of each message."""
        column = self._columns.headers
        if column is None:
            return [{} for _ in range(self.count)]
        decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode
        try:
            return [decode(packed) if packed else {} for packed in column.tolist()]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ProtocolError(f"headers are not a map of names to bytes: {error}") from error

    @property
    def origin(self) -> Origin | None:
        """Where a bridged batch came from, or None."""
        return self._columns.origin

    def __iter__(self) -> Iterator[Row]:
        return map(
            Row._make,
            zip(self.values, self.keys, self.timestamps.tolist(), self.headers,
                self.offsets.tolist(), strict=True),
        )  # fmt: skip

    def rows_at(self, positions: Longs) -> Rows:
        """The rows that hold these offsets, ascending; offsets that it lacks are left out."""
        offsets = self.offsets
        rows = np.searchsorted(offsets, positions)
        inside = rows < len(offsets)
        rows, positions = rows[inside], positions[inside]
        found: Rows = rows[offsets[rows] == positions]
        return found

    def take(self, rows: Rows) -> bytearray:
        """A new batch with only these rows (ascending); they keep their offsets."""
        parsed = self._columns
        deltas = rows if parsed.deltas is None else parsed.deltas[rows]
        columns = self.header.columns | Columns.DELTAS
        parts: list[Buffer] = [b""]
        if parsed.origin is not None:
            parts.append(_ORIGIN.pack(*parsed.origin))
        parts += parsed.values.take(rows)
        if parsed.keys is not None:
            parts += parsed.keys.take(rows)
        if parsed.times is not None:
            parts.append(parsed.times[rows].tobytes())
        if parsed.headers is not None:
            parts += parsed.headers.take(rows)
        parts += padded(deltas.astype(np.int32).tobytes())
        raw = sum(map(len, parts))
        header = self.header._replace(columns=columns, codec=0, count=len(rows), raw_length=raw)
        parts[0] = HEADER.pack(*header)
        return seal(parts)

    def span(self, first: int, count: int) -> bytearray:
        """A new batch with `count` rows from one on; they keep their offsets."""
        header = self.header
        if header.columns & _NOT_IN_SPANS:
            return self.take(np.arange(first, first + count, dtype=np.intp))
        parsed = self._columns
        parts: list[Buffer] = [b"", *parsed.values.span(first, count)]
        if parsed.keys is not None:
            parts += parsed.keys.span(first, count)
        if parsed.times is not None:
            parts.append(parsed.times[first : first + count].tobytes())
        if parsed.headers is not None:
            parts += parsed.headers.span(first, count)
        raw = sum(map(len, parts))
        base = header.base + first
        parts[0] = HEADER.pack(*header._replace(base=base, codec=0, count=count, raw_length=raw))
        return seal(parts)

    def to_arrow(self) -> pa.RecordBatch:
        """Arrow arrays on the same memory; needs pyarrow (`pip install penstock[arrow]`)."""
        from penstock.wire.arrow import record_batch

        return record_batch(self)


class _Parsed(NamedTuple):
    values: BinaryColumn
    keys: BinaryColumn | None
    times: Longs | None
    headers: BinaryColumn | None
    deltas: np.ndarray[tuple[int], np.dtype[np.int32]] | None
    origin: Origin | None

    @classmethod
    def read(cls, header: Header, body: memoryview) -> _Parsed:
        has, count, at = header.columns, header.count, 0
        origin = keys = times = headers = deltas = None
        try:
            if has & Columns.ORIGIN:
                origin, at = Origin(*_ORIGIN.unpack_from(body, at)), at + _ORIGIN.size
            values, at = BinaryColumn.read(body, at, count, False)
            if has & Columns.KEYS:
                keys, at = BinaryColumn.read(body, at, count, bool(has & Columns.KEY_NULLS))
            if has & Columns.TIMES:
                times, at = np.frombuffer(body, np.int64, count, at), at + 8 * count
            if has & Columns.HEADERS:
                headers, at = BinaryColumn.read(body, at, count, False)
            if has & Columns.DELTAS:
                deltas, at = np.frombuffer(body, np.int32, count, at), at + 4 * count
                at += pad8(at)
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"a column reaches past the end of its batch: {error}") from error
        return cls(values, keys, times, headers, deltas, origin)
