"""Rows of a bucket packed into one, before Spark groups them.

Spark hands grouped rows to Python one by one, at several microseconds each, and moves and sorts
them one by one before that. Thousands of rows of a bucket as one binary value cost it as much as
a single row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.spark.families import Lot
from penstock.spark.lineage import Lineage
from penstock.spark.spread import name_of

PACKED = "bucket int, place bigint, rows binary"
"""What packed rows have: the name of the bucket, the place of the first of them, and themselves in
Arrow's form, with the columns key, value, time_us, place and, where a condition tells them, end."""

_FIELDS = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("place", pa.int64()),
        pa.field("rows", pa.binary()),
    ]
)


_LINE = b"lineage"
PIECE_ROWS = 1_000_000
PIECE_BYTES = 64 << 20


def is_packed(columns: Sequence[str]) -> bool:
    """Whether these columns are those of packed rows."""
    return tuple(columns) == tuple(_FIELDS.names)


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the rows of each bucket in a batch as one. There is a number of the bucket
    before the other columns."""
    for batch in batches:
        for number, part in by_bucket(batch) if batch.num_rows else ():
            yield packed_row(Lineage.alone(number), [part])


def packed_row(line: Lineage, parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows of a partition as one, in as many parts as they come in."""
    sink = pa.BufferOutputStream()
    schema = parts[0].schema.with_metadata({_LINE: line.encode()})
    with pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            writer.write_batch(part)
    packed = sink.getvalue()
    cuts = pa.py_buffer(np.array([0, packed.size], np.int32))
    columns = [
        pa.array([name_of(line.root)], pa.int32()),
        parts[0].column("place")[:1],
        pa.Array.from_buffers(pa.binary(), 1, [None, cuts, packed]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_FIELDS)


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


def unpack(packed: Iterable[bytes | pa.Buffer]) -> Iterator[Lot]:
    """The rows of a bucket, for each partition by place, in pieces."""
    batches: dict[int, list[pa.RecordBatch]] = {}
    lines: dict[int, Lineage] = {}
    for each in packed:
        stream = pa.ipc.open_stream(each)
        line = Lineage.decode(stream.schema.metadata[_LINE])
        lines[line.partition] = line
        batches.setdefault(line.partition, []).extend(stream)
    for number, line in lines.items():
        for rows in _pieces(_by_place(batches[number])):
            yield Lot(line, rows)


def _by_place(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    batches.sort(key=lambda each: each.column("place")[0].as_py())
    places = np.concatenate([each.column("place").to_numpy() for each in batches])
    if bool((places[1:] < places[:-1]).any()):
        whole = pa.Table.from_batches(batches).sort_by("place")
        return list(whole.to_batches(max_chunksize=PIECE_ROWS))
    return batches


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Several at a time: few enough that they fit into columns of Arrow."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if (
            sum(each.num_rows for each in waiting) >= PIECE_ROWS
            or sum(each.nbytes for each in waiting) >= PIECE_BYTES
        ):
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
