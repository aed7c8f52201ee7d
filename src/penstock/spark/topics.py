"""What the driver asks of a topic: bounds, offsets at a time, whether there is something new."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from penstock.client.blocking_streams import Topic
from penstock.client.ops_topic import PartitionReader
from penstock.errors import InvalidError, NotFoundError, UnavailableError
from penstock.spark.links import Link
from penstock.spark.options import Bound, Edge
from penstock.spark.spans import Positions
from penstock.wire.batch import Batch

LOOK_S = 1.0  # between looks at the number of partitions, which may grow
FETCH_BYTES = 4 << 20
MOST_GAPS = 100  # in one span, where messages may be lost
_LOSS = "Keep messages for longer (retention), or set failOnDataLoss to false."


class TopicLook:
    """A topic as a planner sees it. Keeps nothing but what can be asked for again."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._topic: Topic | None = None
        self._looked = 0.0

    @property
    def topic(self) -> Topic:
        """The topic, at most `LOOK_S` old."""
        now = time.monotonic()
        if self._topic is None or now - self._looked >= LOOK_S:
            self._topic, self._looked = self._link.open(), now
        return self._topic

    def bounds(self) -> dict[int, tuple[int, int]]:
        """First offset kept and next offset to be written, by partition."""
        return dict(enumerate(self.topic.offsets()))

    def ends(self) -> Positions:
        """The next offset to be written, by partition."""
        return {each: end for each, (_, end) in self.bounds().items()}

    def row_bytes(self) -> float:
        """Stored bytes of a row, on average; at least 1."""
        figures = self.topic.stats()
        rows = sum(each["end"] - each["start"] for each in figures["partitions"])
        return max(1.0, figures["bytes"] / rows) if rows else 1.0

    def resolve(self, bound: Bound) -> Positions:
        """An offset for each partition; InvalidError if it names one that is not there."""
        bounds = self.bounds()
        if isinstance(bound, datetime):
            return dict(enumerate(self.topic.offset_at(bound)))
        if isinstance(bound, str):
            return {each: _edge(bound, at) for each, at in bounds.items()}
        strangers = sorted(set(bound) - set(bounds))
        if strangers:
            raise InvalidError(
                f"topic {self._link.name!r} has no partition {strangers[0]}",
                advice=f"Its partitions are 0 to {len(bounds) - 1}.",
            )
        return {
            each: place if isinstance(place, int) else _edge(place, bounds[each])
            for each, place in bound.items()
        }

    def wait(self, start: Positions, seconds: float) -> None:
        """Returns when there is a message at or after the start, or after so many seconds."""
        topic = self.topic
        known = [each for each in range(topic.partitions) if each in start]
        with topic.subscribe(
            start=start, partitions=known, idle_timeout=seconds, batches=True
        ) as news:
            next(iter(news), None)


def read_span(
    topic: Topic, partition: int, start: int, end: int, lossless: bool = True
) -> Iterator[Batch]:
    """Batches that hold the offsets of a span; the last may reach past it.

    NotFoundError if some are gone; if that is allowed (not `lossless`), it goes on after them.
    UnavailableError if the partition seems to end before the span does.
    """
    position = start
    for _ in range(MOST_GAPS):
        if not lossless:
            position = max(position, topic.offsets()[partition][0])
        reader = PartitionReader(topic, partition, position, FETCH_BYTES)
        try:
            while not reader.at_end:
                for batch in topic._run(reader.read(0.0)):
                    if batch.header.base >= end:
                        return
                    yield batch
                    position = int(batch.offsets[-1]) + 1
                    if position >= end:
                        return
        except NotFoundError as error:
            if lossless:
                raise NotFoundError(error.message, advice=_LOSS) from None
            continue
        # A node that was replaced answers reads, and does not know the end: its successor does.
        told = reader.end or 0
        if told >= end or topic.offsets()[partition][1] <= told:
            return  # the last ones were thinned out, or there are no more
    raise UnavailableError(f"partition {partition} cannot be read from {position:,} to {end:,}")


def check_kept(topic: Topic, start: Positions) -> None:
    """NotFoundError if messages from these offsets on are no longer kept."""
    bounds = topic.offsets()
    for partition, offset in start.items():
        if offset < bounds[partition][0]:
            first = bounds[partition][0]
            raise NotFoundError(
                f"offset {offset:,} of partition {partition} is gone; the first is {first:,}",
                advice=_LOSS,
            )


def _edge(edge: Edge, bounds: tuple[int, int]) -> int:
    return bounds[0] if edge == "earliest" else bounds[1]
