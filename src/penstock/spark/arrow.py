"""Batches of a topic or queue as the Arrow record batches that Spark reads, on the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.wire.batch import Batch

_HEADERS = pa.map_(pa.string(), pa.binary())
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
]
PLAIN = pa.schema(_FIELDS)
WITH_HEADERS = pa.schema([*_FIELDS, pa.field("headers", _HEADERS)])
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
)
"""The same for Spark."""
QUEUE = pa.schema([_FIELDS[0], _FIELDS[1], _FIELDS[5]])
QUEUE_COLUMNS = "key binary, value binary, timestamp timestamp"
HEADERS_COLUMN = "headers map<string, binary>"

SMALL_ROWS = 8_192
SMALL_BYTES = 1 << 20


def record_batch(
    batches: Sequence[Batch], topic: str, partition: int, headers: bool
) -> pa.RecordBatch:
    """All rows of these batches. Keys and values of a single one stay where they are."""
    found = _joined(batches)
    count = found.num_rows
    columns = [
        found.column("key"),
        found.column("value"),
        pa.repeat(topic, count),
        pa.array(np.full(count, partition, np.int32)),
        found.column("offset"),
        found.column("timestamp"),
    ]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=PLAIN)
    return pa.RecordBatch.from_arrays([*columns, _headers(batches)], schema=WITH_HEADERS)


def queue_rows(batches: Sequence[Batch], headers: bool) -> pa.RecordBatch:
    """All rows of these batches of a queue."""
    found = _joined(batches)
    columns = [found.column(name) for name in QUEUE.names]
    if not headers:
        return pa.RecordBatch.from_arrays(columns, schema=QUEUE)
    schema = QUEUE.append(pa.field("headers", _HEADERS))
    return pa.RecordBatch.from_arrays([*columns, _headers(batches)], schema=schema)


def _joined(batches: Sequence[Batch]) -> pa.RecordBatch:
    parts = [batch.to_arrow() for batch in batches]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _headers(batches: Sequence[Batch]) -> pa.Array:
    pairs = [list(each.items()) for batch in batches for each in batch.headers]
    return pa.array(pairs, _HEADERS)


def before(rows: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Rows before an offset; a view."""
    offsets = rows.column("offset").to_numpy()
    if not len(offsets) or offsets[-1] < end:
        return rows
    return rows.slice(0, int(np.searchsorted(offsets, end)))


def gathered(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """The same batches, small ones several at a time: those are to be copied together.

    A piece costs Spark about as much as thousands of rows, so that messages which were published
    one by one would be read at a crawl.
    """
    waiting: list[Batch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.count
        size += len(batch.buffer)
        if rows >= SMALL_ROWS or size >= SMALL_BYTES:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting
