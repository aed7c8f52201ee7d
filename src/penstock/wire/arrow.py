"""Batches as Arrow arrays on the same memory, and of Arrow's buffers (pyarrow is optional)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.wire.batch import HEADER_BYTES, Columns
from penstock.wire.buffers import Buffer
from penstock.wire.columns import padded
from penstock.wire.encode import seal_batch
from penstock.wire.numeric import Ints, np

if TYPE_CHECKING:
    from penstock.wire.batch import Batch
    from penstock.wire.columns import BinaryColumn, Longs

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("offset", pa.int64()),
        pa.field("headers", pa.binary()),
    ]
)
MESSAGE_SCHEMA = pa.schema([field for field in SCHEMA if field.name != "offset"])


def _binary(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.binary())
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _times(times: Longs) -> pa.Array:
    kind = SCHEMA.field("timestamp").type
    return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times)])


def record_batch(batch: Batch) -> pa.RecordBatch:
    """Columns value, key, timestamp, offset and headers ; values and keys stay in place."""
    parsed, count = batch._columns, batch.count
    arrays = [
        _binary(parsed.values, count),
        _binary(parsed.keys, count),
        _times(np.ascontiguousarray(batch.timestamps)),
        pa.array(batch.offsets),
        _binary(parsed.headers, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def table_of(parts: Sequence[tuple[Batch, slice]]) -> pa.Table:
    """Columns value, key, timestamp and headers of rows of batches, one after the other. Values and
    keys stay in place. What batches of values alone have in common is made once for all of them:
    that costs as much as for one."""
    if any(batch.header.columns or batch.header.codec for batch, _ in parts):
        chunks = [record_batch(batch)[rows] for batch, rows in parts]
        return pa.Table.from_batches(chunks).select(MESSAGE_SCHEMA.names)
    values = [_binary(batch._columns.values, batch.count)[rows] for batch, rows in parts]
    counts = [len(each) for each in values]
    times = np.repeat(np.array([batch.header.timestamp_us for batch, _ in parts]), counts)
    none = pa.nulls(len(times), pa.binary())
    columns = [pa.chunked_array(values), none, _times(times), none]
    return pa.Table.from_arrays(columns, schema=MESSAGE_SCHEMA)


def places(column: pa.Array) -> Ints:
    """Where each value of a binary array starts in its data, and where the last one ends."""
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, np.int32, len(column) + 1, 4 * column.offset)


def column_parts(column: pa.Array) -> list[Buffer]:
    """A binary array that is not empty as a column of a batch; its data is not copied."""
    starts = places(column)
    first, last = int(starts[0]), int(starts[-1])
    data = column.buffers()[2]
    parts: list[Buffer] = []
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        parts += padded(np.packbits(valid, bitorder="little").tobytes())
    parts += padded((starts - np.int32(first)).tobytes())
    return parts + padded(b"" if data is None else memoryview(data)[first:last])


def encode_arrow(
    value: pa.Array,
    key: pa.Array | None,
    timestamps_us: pa.Array | None,
    headers: pa.Array | None,
    *,
    timestamp_us: int,
    **settings: Any,
) -> bytearray:
    """A sealed batch of these columns: value, key and headers binary, times int64. `settings` are
    those of `encode_batch`. Nothing is kept."""
    columns = 0
    parts: list[Buffer] = [bytes(HEADER_BYTES), *column_parts(value)]
    if key is not None:
        columns |= Columns.KEYS | (Columns.KEY_NULLS if key.null_count else 0)
        parts += column_parts(key)
    if timestamps_us is not None:
        columns |= Columns.TIMES
        parts.append(timestamps_us.to_numpy().tobytes())
    if headers is not None:
        columns |= Columns.HEADERS
        parts += column_parts(headers)
    buffer = bytearray().join(parts)
    return seal_batch(buffer, columns, len(value), timestamp_us, **settings)
