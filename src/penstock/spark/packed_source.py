"""`format("penstock-packed")`: a topic for `sessions` and `stateful` alone.

What the source reads is in columns, and what assembles objects takes columns. Between the two
Spark would make a row of each message, and columns of the rows again, which costs more than all
the rest. Here thousands of messages of a partition are one row of Spark from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.errors import InvalidError
from penstock.spark.lineage import Lineage, held_back, lineages
from penstock.spark.options import (
    SourceOptions,
    parse_options,
    refuse_batch_options,
    refuse_stream_options,
)
from penstock.spark.packing import PACKED, packed_row
from penstock.spark.source import Task, TopicReader, TopicStreamReader
from penstock.spark.spans import Span, from_json, to_json

PIECE_ROWS = 100_000
PIECE_BYTES = 8 << 20


class PackedSource(DataSource):
    """Topics, with the options of the other source; columns as `packing.pack` gives them."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "penstock-packed"

    def schema(self) -> str:
        """The same for every topic."""
        _parsed(self.options)
        return PACKED

    def reader(self, schema: StructType) -> TopicReader:
        """A topic between two places."""
        options = _parsed(self.options)
        refuse_stream_options(options)
        return PackedReader(options)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        """A topic from a place on."""
        options = _parsed(self.options)
        refuse_batch_options(options)
        return PackedStreamReader(options)


def _parsed(given: Mapping[str, str]) -> SourceOptions:
    options = parse_options(given)
    if options.queue or options.headers:
        raise InvalidError(
            "only the messages of a topic are packed, without headers",
            advice='Use format("penstock").',
        )
    return options


class PackedTask(Task):
    """The work of one task; where the keys of its partition come from, and go to."""

    def __init__(self, span: Span, line: Lineage) -> None:
        super().__init__(span)
        self.line = line


class PackedReader(TopicReader):
    """Reads a topic from one place to another."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """None of the columns is one that could be told here."""
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return _with_lines(super().partitions(), lineages(self._link.open().family()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return packed(super().read(partition), partition)


class PackedStreamReader(TopicStreamReader):
    """Reads a topic as it grows, a partition's children after what it had before them."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch."""
        end = from_json(super().latestOffset(start, limit))
        return to_json(held_back(self._lines(), from_json(start), end))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return _with_lines(super().partitions(start, end), self._lines())

    def _lines(self) -> dict[int, Lineage]:
        return lineages(self.look.topic.family())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return packed(super().read(partition), partition)


def _with_lines(
    tasks: Sequence[InputPartition], lines: dict[int, Lineage]
) -> Sequence[InputPartition]:
    spans = [task.span for task in tasks if isinstance(task, Task)]
    return [PackedTask(span, lines[span.partition]) for span in spans]


def packed(batches: Iterable[pa.RecordBatch], task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Rows of a topic as few large ones."""
    assert isinstance(task, PackedTask)
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            waiting.append(_plain(batch))
        rows = sum(each.num_rows for each in waiting)
        if rows >= PIECE_ROWS or sum(each.nbytes for each in waiting) >= PIECE_BYTES:
            yield packed_row(task.line, waiting)
            waiting = []
    if waiting:
        yield packed_row(task.line, waiting)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    key, value = batch.column("key"), batch.column("value")
    columns = {
        "key": pc.fill_null(key, b"") if key.null_count else key,
        "value": pc.fill_null(value, b"") if value.null_count else value,
        "time_us": batch.column("timestamp").view(pa.int64()),
        "place": batch.column("offset"),
    }
    return pa.RecordBatch.from_pydict(columns)
