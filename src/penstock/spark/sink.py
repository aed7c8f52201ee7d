"""Writing to a topic or queue: tasks stage batches that nobody sees, a commit publishes them, once.

A task that runs twice stages twice, and Spark's commit names the attempt that won. A micro-batch
that is committed twice, because nobody heard of the first time, has the same number, and numbers
are published once: what was staged for the second time is dropped. Stages that nobody names expire.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.client.blocking_stages import QueueStage, TopicStage
from penstock.client.stages import StageToken
from penstock.errors import ConflictError, InvalidError, NotFoundError, PenstockError
from penstock.spark import private
from penstock.spark.links import Link
from penstock.spark.sink_options import SinkOptions

QUERY = "sql.streaming.queryId"  # a property of Spark's tasks
GATHER_ROWS = 1 << 15
GATHER_BYTES = 4 << 20
_TEXT = (BinaryType, StringType)
_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "timestamp": (TimestampType, TimestampNTZType),
    "headers": (MapType,),
}


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged, and for which query."""

    token: bytes
    query: str

    def read(self) -> StageToken:
        """Where it is."""
        return StageToken.read(self.token)


class _Writes:
    """What both writers do. They are pickled on their way to the workers."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(schema)
        if overwrite:
            raise InvalidError(
                "a topic or queue is only added to", advice='Use mode or outputMode "append".'
            )
        self._options = options
        url = options.servers or private.url_of(options.path)
        name = options.topic or options.queue
        self._link = Link(url, options.namespace, name, options.timeout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages the rows of a task; when it returns, they are durable and not to be seen."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY) if context is not None else None
        stage = self._stage()
        try:
            _fill(stage, gathered(iterator), self._options.compression)
            return Staged(bytes(stage.token), query or "")
        except BaseException:
            with suppress(PenstockError):
                stage.discard()  # sooner than it would expire
            raise

    def _stage(self) -> TopicStage | QueueStage:
        expires = self._options.expires
        if self._options.topic:
            return self._link.open().stage(expires)
        return self._link.open_queue().stage(expires)

    def _publish(self, name: str, number: int, messages: Iterable[Staged]) -> str:
        """Publishes what these name, unless that number was; under which key."""
        key = f"spark:{name}:{self._options.target}"
        tokens = [each.read() for each in messages]
        try:
            told = self._link.fabric().publish_staged(key, number, tokens)
        except NotFoundError as error:
            raise NotFoundError(
                f"what was staged for {key!r} is there no more: {error.message}",
                advice="Nothing was published. Start it again, and all of it is staged anew; set "
                "stageExpires to more seconds than that takes.",
            ) from error
        if told.number > number:
            raise ConflictError(
                f"{key!r} has published number {told.number:,}, so that {number:,} is not taken",
                advice="Two run under the same name, or a checkpoint was replaced by an older or "
                "a new one. Use another name or checkpoint, or `penstock publication forget`.",
            )
        return key

    def _discard(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        tokens = [each.read() for each in messages if isinstance(each, Staged)]
        if tokens:
            self._link.fabric().discard_staged(tokens)


class StreamWriter(_Writes, DataSourceStreamArrowWriter):
    """Writes each micro-batch of a query once."""

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Makes the rows of a micro-batch visible, unless an earlier commit did."""
        staged = [each for each in messages if isinstance(each, Staged)]
        query = self._options.query or next((each.query for each in staged if each.query), "")
        if query:
            self._publish(query, batchId, staged)
        elif staged:
            raise InvalidError("Spark did not say which query this is", advice="Give a queryId.")

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int  # noqa: N803
    ) -> None:
        """Drops what is staged."""
        self._discard(messages)


class BatchWriter(_Writes, DataSourceArrowWriter):
    """Writes all rows or none; once for a job and number, if those are given."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes the rows visible, unless an earlier write of the same job and number did."""
        staged = [each for each in messages if isinstance(each, Staged)]
        if self._options.job:
            self._publish(f"job:{self._options.job}", self._options.number, staged)
            return
        key = self._publish(f"once:{secrets.token_hex(8)}", 0, staged)
        with suppress(PenstockError):  # it is published, and is forgotten some day anyway
            self._link.fabric().forget_publication(key)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops what is staged."""
        self._discard(messages)


def check_schema(schema: StructType) -> None:
    """InvalidError if these are not the columns of messages."""
    for field in schema.fields:
        if field.name not in _KINDS:
            raise InvalidError(
                f"column {field.name!r}: a message has the columns {', '.join(_KINDS)}",
                advice="Use select() before writing; to_json(struct(...)) makes one value of "
                "several columns.",
            )
        if not isinstance(field.dataType, _KINDS[field.name]):
            kinds = " or ".join(kind.typeName() for kind in _KINDS[field.name])
            raise InvalidError(
                f"column {field.name!r} is {field.dataType.simpleString()}, not {kinds}",
                advice="Use cast() before writing.",
            )
    if "value" not in schema.names:
        raise InvalidError("there is no column 'value'", advice="Use select() before writing.")


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, small record batches several at a time: each will be divided by keys."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GATHER_ROWS or size >= GATHER_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _fill(
    stage: TopicStage | QueueStage, rows: Iterator[pa.RecordBatch], compression: str
) -> None:
    if isinstance(stage, TopicStage):
        stage.publish_arrow(rows, compression=compression)
    else:
        stage.push_arrow(rows, compression=compression)
