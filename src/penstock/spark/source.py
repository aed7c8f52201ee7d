"""`format("penstock")`: what Spark reads and writes; a topic as a batch or a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import ConflictError
from penstock.spark import arrow, private
from penstock.spark.filters import Pushed, push
from penstock.spark.links import Link
from penstock.spark.options import (
    SourceOptions,
    parse_options,
    refuse_batch_options,
    refuse_stream_options,
)
from penstock.spark.queues import QueueStreamReader
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.sink_options import check_batch_sink, check_stream_sink, parse_sink_options
from penstock.spark.spans import Positions, Span, from_json, limited, split, to_json
from penstock.spark.topics import TopicLook, check_kept, read_span

POLL_S = 1.0  # how long a stream without news waits for some before it answers


class Task(InputPartition):
    """The work of one task."""

    def __init__(self, span: Span) -> None:
        super().__init__(tuple(span))
        self.span = span


class PenstockSource(DataSource):
    """Topics and queues for Spark; the options are in the user's guide."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "penstock"

    def schema(self) -> str:
        """The columns of every topic, or of every queue."""
        options = parse_options(self.options)
        headers = [arrow.HEADERS_COLUMN] if options.headers else []
        return ", ".join([arrow.QUEUE_COLUMNS if options.queue else arrow.COLUMNS, *headers])

    def reader(self, schema: StructType) -> TopicReader:
        """A topic between two places."""
        options = parse_options(self.options)
        refuse_stream_options(options)
        return TopicReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A topic from a place on, or a queue."""
        options = parse_options(self.options)
        refuse_batch_options(options)
        return QueueStreamReader(options) if options.queue else TopicStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Adds rows to a topic or queue."""
        options = parse_sink_options(self.options)
        check_batch_sink(options)
        return BatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Adds the rows of a stream to a topic or queue."""
        options = parse_sink_options(self.options)
        check_stream_sink(options)
        return StreamWriter(options, schema, overwrite)


class _Reads:
    """What both readers do in a worker. They are pickled on their way there."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        url = options.servers or private.url_of(options.path)
        self._link = Link(url, options.namespace, options.topic, options.timeout)
        self._pushed = Pushed()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task, straight from the node that owns them."""
        if not isinstance(partition, Task):
            return  # Spark makes one up where there is none, as for a topic without messages
        span, options = partition.span, self._options
        batches = read_span(self._link.open(), *span, options.fail_on_data_loss)
        for several in arrow.gathered(batches):
            rows = arrow.record_batch(several, options.topic, span.partition, options.headers)
            yield self._pushed.chosen(arrow.before(rows, span.end))

    def _tasks(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        options = self._options
        return list(map(Task, split(start, end, options.rows_per_task, options.min_tasks)))


class TopicReader(_Reads, DataSourceReader):
    """Reads a topic from one place to another; both are fixed when the query is planned."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Takes over conditions on partition, offset and timestamp."""
        self._pushed, left = push(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Nothing is read for that."""
        look, options = TopicLook(self._link), self._options
        bounds = look.bounds()
        start = {each: first for each, (first, _) in bounds.items()}
        end = {each: last for each, (_, last) in bounds.items()}
        if options.starting is not None:
            asked = look.resolve(options.starting)
            if options.fail_on_data_loss and isinstance(options.starting, Mapping):
                check_kept(look.topic, asked)
            start |= {each: max(place, start[each]) for each, place in asked.items()}
        if options.ending is not None:
            asked = look.resolve(options.ending)
            end |= {each: min(place, end[each]) for each, place in asked.items()}
        return self._tasks(*self._pushed.narrowed(start, end))


class TopicStreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic as it grows. An offset is the next offset of each partition.

    Partitions that an offset does not name are new: they are read from their beginning.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: Positions | None = None
        self._look: TopicLook | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_look": None}  # it may hold a connection

    @property
    def look(self) -> TopicLook:
        """The topic, in the planner."""
        if self._look is None:
            self._look = TopicLook(self._link)
        return self._look

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a new query starts."""
        earliest = {each: first for each, (first, _) in self.look.bounds().items()}
        starting = self._options.starting
        asked = self.look.ends() if starting is None else self.look.resolve(starting)
        return to_json(earliest | asked)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options allow a micro-batch."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch; waits a moment for news if there are none."""
        begun = from_json(start)
        end = self._end()
        if self._options.fail_on_data_loss and self._target is None:
            _check_same_topic(begun, end)
        if self._target is None and not _has_news(begun, end):
            self.look.wait(end, POLL_S)
            end = self._end()
        end = {each: max(place, begun.get(each, 0)) for each, place in (begun | end).items()}
        return to_json(self._limited(begun, end, limit))

    def _end(self) -> Positions:
        return self.look.ends() if self._target is None else self._target

    def _limited(self, start: Positions, end: Positions, limit: ReadLimit) -> Positions:
        if isinstance(limit, ReadAllAvailable) or not _has_news(start, end):
            return end
        most = [limit.max_rows] if isinstance(limit, ReadMaxRows) else []
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if max_bytes is not None:
            most.append(max(1, int(max_bytes / self.look.row_bytes())))
        if not most:
            return end
        bounds = self.look.bounds()
        known = {each: start.get(each, first) for each, (first, _) in bounds.items()}
        return limited(known, end, min(most))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """For the progress of the query."""
        return to_json(self.look.ends())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """This run goes to where the topic ends now."""
        self._target = self.look.ends()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        begun, ends = from_json(start), from_json(end)
        if fresh := ends.keys() - begun.keys():
            bounds = self.look.bounds()
            begun |= {each: min(bounds[each][0], ends[each]) for each in fresh}
        return self._tasks(begun, ends)


def _has_news(start: Positions, end: Positions) -> bool:
    return any(each not in start or place > start[each] for each, place in end.items())


def _check_same_topic(start: Positions, end: Positions) -> None:
    """A topic's offsets never get lower, unless it was deleted and made again."""
    lower = [each for each, place in start.items() if end.get(each, 0) < place]
    if lower:
        raise ConflictError(
            f"partition {lower[0]} ends at {end.get(lower[0], 0):,} and was read up to "
            f"{start[lower[0]]:,}: this is another topic of the same name",
            advice="Use a new checkpoint directory, or set failOnDataLoss to false.",
        )
