"""`format("penstock-packed")`: a topic for `sessions` and `stateful` alone.

What the source reads is in columns, and what assembles objects takes columns. Between the two
Spark would make a row of each message, and columns of the rows again, which costs more than all
the rest. Here thousands of messages of a partition are one row of Spark from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import InvalidError
from penstock.spark.options import refuse_batch_options, refuse_stream_options
from penstock.spark.packing import PACKED, packed_row
from penstock.spark.source import PenstockSource, Task, TopicReader, TopicStreamReader

PIECE_ROWS = 100_000
PIECE_BYTES = 8 << 20


class PackedSource(PenstockSource):
    """Topics, with the options of the other source; columns as `packing.pack` gives them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        if self._parsed.headers:
            raise InvalidError("messages that are packed have no headers here")

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "penstock-packed"

    def schema(self) -> str:
        """The same for every topic."""
        return PACKED

    def reader(self, schema: StructType) -> TopicReader:
        """A topic between two places."""
        refuse_stream_options(self._parsed)
        return PackedReader(self._parsed)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        """A topic from a place on."""
        refuse_batch_options(self._parsed)
        return PackedStreamReader(self._parsed)


class PackedReader(TopicReader):
    """Reads a topic from one place to another."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """None of the columns is one that could be told here."""
        return filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return packed(super().read(partition), partition)


class PackedStreamReader(TopicStreamReader):
    """Reads a topic as it grows."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return packed(super().read(partition), partition)


def packed(batches: Iterable[pa.RecordBatch], task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Rows of a topic as few large ones."""
    assert isinstance(task, Task)
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(_plain(batch))
        rows = sum(each.num_rows for each in waiting)
        if rows >= PIECE_ROWS or sum(each.nbytes for each in waiting) >= PIECE_BYTES:
            yield packed_row(task.span.partition, waiting)
            waiting = []
    if waiting:
        yield packed_row(task.span.partition, waiting)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    key, value = batch.column("key"), batch.column("value")
    columns = {
        "key": pc.fill_null(key, b"") if key.null_count else key,
        "value": pc.fill_null(value, b"") if value.null_count else value,
        "time_us": batch.column("timestamp").view(pa.int64()),
        "place": batch.column("offset"),
    }
    return pa.RecordBatch.from_pydict(columns)
