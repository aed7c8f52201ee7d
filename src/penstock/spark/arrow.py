"""Batches of a topic as the Arrow record batches that Spark reads, on the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
HEADERS_COLUMN = "headers map<string, binary>"

SMALL_ROWS = 8_192
SMALL_BYTES = 1 << 20


def record_batch(batch: Batch, topic: str, partition: int, headers: bool) -> pa.RecordBatch:
    """All rows of a batch. Keys and values stay where they are; headers, if asked for, do not."""
    found, count = batch.to_arrow(), batch.count
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
    pairs = [list(each.items()) for each in batch.headers]
    return pa.RecordBatch.from_arrays([*columns, pa.array(pairs, _HEADERS)], schema=WITH_HEADERS)


def before(rows: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Rows before an offset; a view."""
    offsets = rows.column("offset").to_numpy()
    if not len(offsets) or offsets[-1] < end:
        return rows
    return rows.slice(0, int(np.searchsorted(offsets, end)))


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in no more pieces than needed: small ones are copied together.

    A piece costs Spark about as much as thousands of rows, so that messages which were published
    one by one would be read at a crawl.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= SMALL_ROWS or size >= SMALL_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
