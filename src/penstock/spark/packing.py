"""Rows of a bucket packed into one, before Spark groups them.

Spark hands grouped rows to Python one by one, at several microseconds each, and moves and sorts
them one by one before that. Thousands of rows of a bucket as one binary value cost it as much as
a single row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.spark.spread import name_of

PACKED = "bucket int, rows binary"
"""The columns that `pack` gives; it takes `bucket` and those of a row: key, value, time_us, place
and, where a column tells them, end."""

_FIELDS = pa.schema([pa.field("bucket", pa.int32()), pa.field("rows", pa.binary())])


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the rows of each bucket in a batch as one. It takes numbers of buckets, and
    gives their names."""
    for batch in batches:
        if batch.num_rows:
            numbers, parts = zip(*by_bucket(batch), strict=True)
            columns = [pa.array(map(name_of, numbers), pa.int32()), _streams(parts)]
            yield pa.RecordBatch.from_arrays(columns, schema=_FIELDS)


def by_bucket(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, in their order."""
    buckets = batch.column("bucket").to_numpy()
    rows = batch.drop_columns(["bucket"])
    if bool((buckets[1:] < buckets[:-1]).any()):
        order = np.argsort(buckets, kind="stable")
        buckets, rows = buckets[order], rows.take(pa.array(order))
    edges = np.flatnonzero(np.diff(buckets)) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(buckets)], strict=True):
        yield int(buckets[start]), rows.slice(start, stop - start)


def unpack(packed: Iterable[bytes]) -> pa.RecordBatch:
    """All rows of a bucket, by place."""
    batches = [pa.ipc.open_stream(each).read_next_batch() for each in packed]
    batches.sort(key=lambda each: each.column("place")[0].as_py())
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    places = whole.column("place").to_numpy()
    if bool((places[1:] < places[:-1]).any()):
        whole = whole.take(pa.array(np.argsort(places, kind="stable")))
    return whole


def _streams(parts: Sequence[pa.RecordBatch]) -> pa.BinaryArray:
    """Each part as a stream of Arrow; all are written to one place, and stay there."""
    sink = pa.BufferOutputStream()
    edges = [0]
    for part in parts:
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        edges.append(sink.tell())
    cuts = pa.py_buffer(np.array(edges, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(parts), [None, cuts, sink.getvalue()])
