"""Batches as Arrow arrays on the same memory, and of Arrow's buffers (pyarrow is optional)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.wire.batch import HEADER_BYTES, Columns
from penstock.wire.buffers import Buffer
from penstock.wire.columns import padded
from penstock.wire.encode import seal_batch
from penstock.wire.packing import Ints

if TYPE_CHECKING:
    from penstock.wire.batch import Batch
    from penstock.wire.columns import BinaryColumn

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("offset", pa.int64()),
        pa.field("headers", pa.binary()),
    ]
)


def _binary(column: BinaryColumn | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.binary())
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def record_batch(batch: Batch) -> pa.RecordBatch:
    """Columns value, key, timestamp, offset and headers ; values and keys stay in place."""
    parsed, count = batch._columns, batch.count
    times = np.ascontiguousarray(batch.timestamps)
    arrays = [
        _binary(parsed.values, count),
        _binary(parsed.keys, count),
        pa.Array.from_buffers(SCHEMA.field("timestamp").type, count, [None, pa.py_buffer(times)]),
        pa.array(batch.offsets),
        _binary(parsed.headers, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


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
