"""Batches as Arrow arrays on the same memory (pyarrow is optional)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

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
