"""A queue as a stream of Spark: every micro-batch is a reservation, which nobody else gets.

A reservation has a key and a number. The key is drawn once for a checkpoint: the first micro-batch
is empty, and its end names the key, so that Spark has it on its disk before anything is reserved
under it. After that the end of a micro-batch is the number of its reservation. A driver that dies
finds the same messages under the same number. When Spark asks what comes after a number, it has
committed what came before: that is when the messages are acknowledged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.blocking_streams import Queue
from penstock.errors import NotFoundError
from penstock.spark import arrow, private
from penstock.spark.links import Link
from penstock.spark.options import SourceOptions
from penstock.wire.messages import Reservation, ReservedPart

POLL_S = 1.0  # how long a stream without news waits for some before it answers
PAUSE_S = 0.02  # after the first look; twice as long after each other one
LONGEST_PAUSE_S = 0.2
BATCH_ROWS = 500_000  # of a micro-batch, unless told otherwise
BATCH_BYTES = 256 << 20

Offset = dict[str, Any]


class QueueTask(InputPartition):
    """The work of one task: some parts of a reservation."""

    def __init__(self, key: str, number: int, parts: list[ReservedPart]) -> None:
        super().__init__((key, number, [part.shard for part in parts]))
        self.key = key
        self.number = number
        self.parts = parts


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages off a queue. An offset is the key of the reservations, and the last number."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        url = options.servers or private.url_of(options.path)
        self._link = Link(url, options.namespace, options.queue, options.timeout)
        self._queue: Queue | None = None
        self._left: int | None = None  # messages until the end of a run that ends
        self._finished = 0
        self._last: Reservation | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_queue": None}  # it holds a connection

    @property
    def queue(self) -> Queue:
        """The queue, in the planner."""
        if self._queue is None:
            self._queue = self._link.open_queue()
        return self._queue

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before there is a key."""
        return {"key": "", "number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options allow a micro-batch."""
        options = self._options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadAllAvailable() if options.max_bytes is None else ReadMaxBytes(options.max_bytes)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The end of the next micro-batch, which is reserved; waits a moment if there is nothing.
        What came before is acknowledged."""
        key, number = str(start["key"]), int(start["number"])
        if not key:
            return {"key": f"spark:{secrets.token_hex(8)}", "number": 0}
        if number > self._finished:
            self.queue.finish(key, number)
            self._finished = number
        found = self._next(key, number + 1, limit)
        return start if found is None else {"key": key, "number": found.number}

    def _next(self, key: str, number: int, limit: ReadLimit) -> Reservation | None:
        until, pause = time.monotonic() + POLL_S, PAUSE_S
        rows, size = self._most(limit)
        while self._left is None or self._left > 0:
            found = self.queue.reserve(key, number, rows, size)
            if found is not None:
                self._count(found)
                return found
            if self._left is not None or time.monotonic() > until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return None

    def _most(self, limit: ReadLimit) -> tuple[int, int]:
        options = self._options
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows or BATCH_ROWS
        if self._left is not None:
            rows = max(1, min(rows, self._left))
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes
        return rows, size or BATCH_BYTES

    def _count(self, found: Reservation) -> None:
        if self._left is not None and found != self._last:
            self._left -= found.messages
        self._last = found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """This run takes as many messages as are there now, those that an earlier one reserved
        and did not commit included."""
        figures = self.queue.stats()
        self._left = int(figures["ready"]) + int(figures["reserved"])

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        key = str(end["key"])
        tasks: list[InputPartition] = []
        for number in range(int(start["number"]) + 1, int(end["number"]) + 1):
            parts = self._reserved(key, number).parts
            groups = shared(parts, self._options.min_tasks)
            tasks += [QueueTask(key, number, group) for group in groups]
        return tasks

    def _reserved(self, key: str, number: int) -> Reservation:
        """One that was made before; asking for it by its number could make it anew."""
        if self._last is None or (self._last.key, self._last.number) != (key, number):
            open_ones = self.queue.reservations()
            own = (each for each in open_ones if (each.key, each.number) == (key, number))
            self._last = next(own, None)
        if self._last is None:
            raise NotFoundError(
                f"queue {self._link.name!r} has no reservation {number:,} of {key!r}",
                advice="It was released, or the checkpoint is an older one: use a new one.",
            )
        return self._last

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task, as often as Spark likes."""
        assert isinstance(partition, QueueTask)
        queue, headers = self._link.open_queue(), self._options.headers
        batches = (
            batch
            for part in partition.parts
            for batch in queue.reserved(partition.key, partition.number, part)
        )
        for several in arrow.gathered(batches):
            yield arrow.queue_rows(several, headers)


def shared(parts: Sequence[ReservedPart], most: int) -> list[list[ReservedPart]]:
    """Parts in at most so many groups with about as many messages each."""
    groups: list[list[ReservedPart]] = [[] for _ in range(min(most, len(parts)))]
    sizes = [0] * len(groups)
    for part in sorted(parts, key=lambda each: (-each.messages, each.shard)):
        least = sizes.index(min(sizes))
        groups[least].append(part)
        sizes[least] += part.messages
    return groups
