"""The clients of a run: stations that are started, watched, told to rest, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock import connect
from penstock.cli.benchmarks.processes import Child
from penstock.cli.faulting import ledgers, queue_work, table_work, topic_work
from penstock.cli.faulting.station import REST_SECONDS
from penstock.errors import UnavailableError

DRAIN_SECONDS = 60.0
END_SECONDS = 40.0
ANSWER_SECONDS = 10.0

Works = tuple[tuple[str, int], ...]
"""What the clients of a station do, each with its number."""


class Clients:
    """All stations of a run, by their places; what they do is noted in `history`.

    `trouble`: why the history may not be complete.
    """

    def __init__(self, folder: Path, stations: Mapping[int, Works]) -> None:
        self._folder = folder
        self._works = stations
        self._stations: list[Child] = []
        self.trouble: list[str] = []
        self.history = folder / "history"
        self.history.mkdir()

    @contextmanager
    def at_work(
        self, url: Callable[[int], str], inside: Callable[[int], list[str]]
    ) -> Iterator[None]:
        """Starts all of them; `url` and `inside` say how those at a place reach the nodes, and how
        they get there. None is left when this is."""
        with connect(url(0)) as fabric:  # all streams are there before anybody uses them
            fabric.queue(queue_work.QUEUE)
            fabric.topic(topic_work.TOPIC, topic_work.PARTITIONS)
            fabric.table(table_work.TABLE)
        try:
            for place, works in self._works.items():
                arguments = [text for work in works for text in map(str, work)]
                station = Child(
                    "penstock.cli.faulting.station", url(place), str(self.history),
                    *arguments, log=self._folder / f"station-{place}.log",
                    inside=inside(place), aside=True,
                )  # fmt: skip
                self._stations.append(station)
            yield
        finally:
            for station in self._stations:
                station.kill()

    def check(self) -> None:
        """A client that has failed proves nothing: the run goes on, but does not count."""
        for station, place in zip(self._stations, self._works, strict=True):
            text = f"the clients at place {place} ended early"
            if not station.running and text not in self.trouble:
                self.trouble.append(text)

    def come_to_rest(self, url: str) -> None:
        """Producers stop; consumers go on until there is nothing left; then they end."""
        for station in self._stations:
            station.say("rest")
        for station in self._stations:
            if station.answer(REST_SECONDS + ANSWER_SECONDS) != "resting":
                self.trouble.append("producers did not come to rest")
        with connect(url) as fabric:
            queue = fabric.queue(queue_work.QUEUE)
            topic = fabric.topic(topic_work.TOPIC)
            until = time.monotonic() + DRAIN_SECONDS

            def left() -> int:
                published = sum(end for _, end in topic.offsets())
                unread = published - sum(map(ledgers.row_count, self._named("seen")))
                return int(queue.stats()["messages"]) + max(unread, 0)

            while waiting := _left(left):
                if time.monotonic() >= until:
                    self.trouble.append(f"{waiting:,} messages were not consumed in time")
                    break
                time.sleep(0.2)
            table_work.read_all(fabric.table(table_work.TABLE), self.history)
        self._end()

    def _end(self) -> None:
        for station in self._stations:
            station.hang_up()
        for station, place in zip(self._stations, self._works, strict=True):
            if station.wait(END_SECONDS) != 0:
                self.trouble.append(f"clients at place {place} failed; see station-{place}.log")

    def _named(self, kind: str) -> list[Path]:
        return ledgers.named(self.history, kind)

    @property
    def progress(self) -> tuple[int, int]:
        """Messages acknowledged to consumers, and read from the topic, so far."""
        consumed, seen = map(self._named, ("consumed", "seen"))
        return sum(map(ledgers.row_count, consumed)), sum(map(ledgers.row_count, seen))


def _left(count: Callable[[], int]) -> int:
    """How many messages are left, twice in a row: one that moves may be counted nowhere."""
    try:
        if waiting := count():
            return waiting
        time.sleep(1.0)
        return count()
    except UnavailableError:
        return 1
