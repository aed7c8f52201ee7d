"""Making a batch from a producer's lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidError, TooLargeError
from penstock.wire import codec as codecs
from penstock.wire import packing
from penstock.wire.batch import (
    _ORIGIN,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Batch,
    Columns,
    Origin,
    seal_in_place,
)
from penstock.wire.limits import MAX_BATCH_MESSAGES, MAX_PRIORITY, MAX_RAW_BYTES
from penstock.wire.numeric import np

_pack_headers = msgspec.msgpack.Encoder().encode


def encode_batch(
    values: Sequence[bytes],
    *,
    timestamp_us: int,
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    producer: int = 0,
    sequence: int = 0,
    priority: int = 0,
    due_us: int = 0,
    ttl_ms: int = 0,
    generation: int = 0,
    instance: int = 0,
    compression: str = "none",
    origin: Origin | None = None,
) -> bytearray:
    """A sealed batch. The lists must be equally long and are not kept.

    InvalidError names the argument that is wrong; TooLargeError the limit that was passed.
    """
    count = len(values)
    _check(count, priority, keys, timestamps_us, headers)
    front = HEADER_BYTES if origin is None else HEADER_BYTES + _ORIGIN.size
    columns = 0
    try:
        buffer = packing.pack_values(values, front)
        if keys is not None or timestamps_us is not None or headers is not None:
            columns = _append(buffer, keys, timestamps_us, headers)
    except TypeError as error:
        raise InvalidError(f"values and keys must be bytes: {error}") from error
    if origin is not None:
        columns |= Columns.ORIGIN
        _ORIGIN.pack_into(buffer, HEADER_BYTES, *origin)
    return seal_batch(
        buffer, columns, count, timestamp_us, producer, sequence, priority, due_us, ttl_ms,
        generation, instance, compression,
    )  # fmt: skip


def seal_batch(
    buffer: bytearray,
    columns: int,
    count: int,
    timestamp_us: int,
    producer: int = 0,
    sequence: int = 0,
    priority: int = 0,
    due_us: int = 0,
    ttl_ms: int = 0,
    generation: int = 0,
    instance: int = 0,
    compression: str = "none",
) -> bytearray:
    """A sealed batch of columns that are packed, after room for the header; the same buffer, unless
    it is compressed."""
    raw_length = len(buffer) - HEADER_BYTES
    codec = 0
    if compression != "none":
        if raw_length > MAX_RAW_BYTES:
            raise TooLargeError(
                f"a compressed batch opens to at most {MAX_RAW_BYTES:,} bytes, not {raw_length:,}"
            )
        codec, parts = codecs.compress(compression, [memoryview(buffer)[HEADER_BYTES:]])
        buffer = bytearray().join([bytes(HEADER_BYTES), *parts])
    HEADER.pack_into(
        buffer, 0, MAGIC, 0, 0, 0, 0, 0, 0, VERSION, codec, priority, columns, count, producer,
        sequence, timestamp_us, due_us, ttl_ms, generation, instance, raw_length,
    )  # fmt: skip
    return seal_in_place(buffer)


def seal_values(
    buffer: bytearray, count: int, timestamp_us: int, *, priority: int = 0, **settings: Any
) -> bytearray:
    """A sealed batch of values alone that are packed after `HEADER_BYTES`; errors, `settings` and
    the buffer as of `encode_batch` and `seal_batch`."""
    _check(count, priority)
    return seal_batch(buffer, 0, count, timestamp_us, priority=priority, **settings)


def encode_rows(
    batch: Batch, rows: Sequence[int], generation: int, compression: str = "none"
) -> bytearray:
    """A batch with these rows of another, in the order given, and without its producer."""
    header, columns = batch.header, batch.header.columns
    return encode_batch(
        [batch.values[row] for row in rows],
        timestamp_us=header.timestamp_us,
        keys=[batch.keys[row] for row in rows] if columns & Columns.KEYS else None,
        timestamps_us=batch.timestamps[list(rows)].tolist() if columns & Columns.TIMES else None,
        headers=[batch.headers[row] for row in rows] if columns & Columns.HEADERS else None,
        priority=header.priority,
        ttl_ms=header.ttl_ms,
        generation=generation,
        origin=batch.origin,
        compression=compression,
    )


def _check(count: int, priority: int, *columns: Sequence[object] | None) -> None:
    if not 0 < count <= MAX_BATCH_MESSAGES:
        raise TooLargeError(f"a batch has 1 to {MAX_BATCH_MESSAGES:,} messages, not {count:,}")
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidError(f"priority {priority}: use 0 (lowest) to {MAX_PRIORITY}")
    for column in columns:
        if column is not None and len(column) != count:
            raise InvalidError(f"a column has {len(column)} entries for {count} values")


def _append(
    buffer: bytearray,
    keys: Sequence[bytes | None] | None,
    timestamps_us: Sequence[int] | None,
    headers: Sequence[Mapping[str, bytes] | None] | None,
) -> int:
    """Adds the optional columns to the values; which ones they are."""
    columns = 0
    if keys is not None:
        packed, nullable = packing.pack_keys(keys)
        columns |= Columns.KEYS | Columns.KEY_NULLS if nullable else Columns.KEYS
        buffer += packed
    if timestamps_us is not None:
        columns |= Columns.TIMES
        buffer += np.asarray(timestamps_us, np.int64).tobytes()
    if headers is not None:
        columns |= Columns.HEADERS
        buffer += packing.pack_values([_pack_headers(row) if row else b"" for row in headers])
    return columns
