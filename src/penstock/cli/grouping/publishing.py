"""The client that publishes the load, at an even rate."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import msgspec

from penstock import Fabric, Topic
from penstock.cli.faulting.pace import Orders, Pace
from penstock.cli.grouping.load import TOPIC, Load

ROUND_SECONDS = 0.5  # every partition gets a batch in each round
_AT_ONCE = 8  # calls under way
_DONE = "published.json"


class Published(msgspec.Struct, frozen=True):
    """What was published in the end, all of it acknowledged."""

    fragments: int
    seconds: float

    @classmethod
    def read(cls, folder: Path) -> Published | None:
        """None as long as there is something left to publish."""
        path = folder / _DONE
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else None


def publish(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Publishes the whole load, unless it is told to rest before."""
    load = Load.read(folder)
    topic = fabric.topic(TOPIC, load.partitions)
    each = max(1, round(load.rate * ROUND_SECONDS / load.partitions))
    feeds = {
        partition: _Feed(topic, partition, load, each) for partition in range(load.partitions)
    }
    pace = Pace(load.rate)
    started_s = time.monotonic()
    fragments = sent = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while feeds and pace.wait(sent, orders.rest):
            counts = dict(zip(feeds, pool.map(_Feed.publish, feeds.values()), strict=True))
            sent = sum(counts.values())
            fragments += sent
            feeds = {partition: feeds[partition] for partition, count in counts.items() if count}
    if not feeds:
        done = Published(fragments, time.monotonic() - started_s)
        partial = folder / f"{_DONE}.partial"
        partial.write_bytes(msgspec.json.encode(done))
        partial.rename(folder / _DONE)


class _Feed:
    """What is left for one partition."""

    def __init__(self, topic: Topic, partition: int, load: Load, each: int) -> None:
        self._topic, self._partition, self._each = topic, partition, each
        self._rows = load.rows(partition)

    def publish(self) -> int:
        """The next batch; 0 if there is nothing left."""
        rows = list(islice(self._rows, self._each))
        if rows:
            keys, values, times_us = zip(*rows, strict=True)
            self._topic.publish_many(
                values, keys=keys, timestamps=[time_us / 1e6 for time_us in times_us],
                partition=self._partition,
            )  # fmt: skip
        return len(rows)
