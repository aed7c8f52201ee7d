"""One run: a cluster, clients at several places, faults one after the other, and the check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock import connect
from penstock.cli.benchmarks.processes import Child
from penstock.cli.faulting import ledgers, queue_work, table_work, topic_work
from penstock.cli.faulting.breaking import SHORT, Breaker, Fault, Lengths, plan
from penstock.cli.faulting.check_queue import QueueVerdict, check_queue
from penstock.cli.faulting.check_table import TableVerdict, check_table
from penstock.cli.faulting.check_topic import TopicVerdict, check_topic
from penstock.cli.faulting.network import Loopback, Namespaces, Network
from penstock.cli.faulting.nodes import Nodes
from penstock.cli.faulting.pauses import Pauses, clients_of, pauses_around
from penstock.errors import UnavailableError

NODES = (1, 2, 3)
FULL_SECONDS = 300.0  # a shorter run has only a few of the faults
CALM_SECONDS = 2.0  # before the first fault and after each, at least
DRAIN_SECONDS = 60.0
END_SECONDS = 40.0
STATIONS: dict[int, tuple[tuple[str, int], ...]] = {
    1: (("produce", 1), ("consume", 1)),
    2: (("produce", 2), ("consume", 2), ("count", 2)),
    3: (("produce", 3), ("consume", 3)),
    0: (("publish", 1), ("read", 1), ("count", 1)),
}
"""What the clients at each place do. Those at 0 are never cut off, the others with their node."""

_LEDGERS = {"produce": "producer", "consume": "consumer", "publish": "publisher",
            "read": "reader", "count": "counter"}  # fmt: skip
PLACES = {f"{_LEDGERS[work]}-{number}": place for place, works in STATIONS.items()
          for work, number in works}  # fmt: skip
"""Where the client is that writes a ledger."""

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a run showed."""

    queue: QueueVerdict
    topic: TopicVerdict
    table: TableVerdict
    faults: list[Fault]
    pauses: list[Pauses]
    seconds: float  # of load
    left_out: str  # why nothing was cut off; empty if that was done
    trouble: list[str] = field(default_factory=list)  # why the history may not be complete

    @property
    def broken(self) -> int:
        """Promises that did not hold, each counted as often as that was so."""
        queue, topic, table = self.queue, self.topic, self.table
        return (
            queue.lost + queue.acked_twice + queue.without_cause + queue.unsent
            + topic.lost + topic.doubled + topic.unsent + topic.out_of_order
            + table.lost_updates + table.stale_reads
        )  # fmt: skip

    @property
    def correct(self) -> bool:
        """Whether every promise held, and all clients were there to see it."""
        return not self.broken and not self.trouble


class Run:
    """Owns everything that is started; all of it has ended when the context is left."""

    def __init__(self, folder: Path, seconds: float, left_out: str, say: Say) -> None:
        self._folder = folder
        self._seconds = seconds
        self._full = seconds >= FULL_SECONDS
        self._left_out = left_out
        self._say = say
        self._stations: list[Child] = []
        self._trouble: list[str] = []
        self.history = folder / "history"
        self.history.mkdir()

    def perform(self) -> Outcome:
        """Breaks things for as long as was asked for, and checks what came of it."""
        with ExitStack() as stack:
            network: Network = Loopback() if self._left_out else Namespaces()
            stack.callback(network.close)
            nodes = Nodes(self._folder, network)
            stack.callback(nodes.close)
            self._say("three nodes start")
            for number in NODES:
                nodes.start(number)
            nodes.wait_until_whole()
            stack.enter_context(self._clients(nodes, network))
            started = time.monotonic()
            breaker = Breaker(nodes, self._say, Lengths() if self._full else SHORT)
            self._break(breaker, network.cuts)
            rest_ns = time.monotonic_ns()
            seconds = time.monotonic() - started
            self._trouble += breaker.trouble
            self._come_to_rest(nodes)
        return self._judge(breaker.faults, rest_ns, seconds)

    @contextmanager
    def _clients(self, nodes: Nodes, network: Network) -> Iterator[None]:
        with connect(nodes.url()) as fabric:  # all streams are there before anybody uses them
            fabric.queue(queue_work.QUEUE)
            fabric.topic(topic_work.TOPIC, topic_work.PARTITIONS)
            fabric.table(table_work.TABLE)
        try:
            for place, works in STATIONS.items():
                arguments = [text for work in works for text in map(str, work)]
                station = Child(
                    "penstock.cli.faulting.station", nodes.url(place), str(self.history),
                    *arguments, log=self._folder / f"station-{place}.log",
                    inside=network.inside(place), aside=True,
                )  # fmt: skip
                self._stations.append(station)
            yield
        finally:
            for station in self._stations:
                station.kill()

    def _break(self, breaker: Breaker, cuts: bool) -> None:
        steps = plan(breaker, self._full, cuts)
        self._say("all is well")
        begun = time.monotonic()
        time.sleep(CALM_SECONDS)
        each = (self._seconds - CALM_SECONDS) / len(steps)
        for number, step in enumerate(steps, 1):
            step()
            self._check_stations()
            self._say("all is well")
            until = begun + CALM_SECONDS + number * each
            time.sleep(max(until - time.monotonic(), CALM_SECONDS))

    def _check_stations(self) -> None:
        """A client that has failed proves nothing: the run goes on, but does not count."""
        for station, place in zip(self._stations, STATIONS, strict=True):
            text = f"the clients at place {place} ended early"
            if not station.running and text not in self._trouble:
                self._trouble.append(text)

    def _come_to_rest(self, nodes: Nodes) -> None:
        """Producers stop; consumers go on until there is nothing left; then they end."""
        self._say("producers rest; waiting until everything is consumed")
        for station in self._stations:
            station.say("rest")
        with connect(nodes.url()) as fabric:
            queue = fabric.queue(queue_work.QUEUE)
            topic = fabric.topic(topic_work.TOPIC)
            until = time.monotonic() + DRAIN_SECONDS

            def left() -> int:
                published = sum(end for _, end in topic.offsets())
                unread = published - sum(map(ledgers.row_count, self._named("seen")))
                return int(queue.stats()["messages"]) + max(unread, 0)

            while waiting := self._left(left):
                if time.monotonic() >= until:
                    self._trouble.append(f"{waiting:,} messages were not consumed in time")
                    break
                time.sleep(0.2)
            table_work.read_all(fabric.table(table_work.TABLE), self.history)
        self._end_stations()

    def _left(self, count: Callable[[], int]) -> int:
        """How many messages are left, twice in a row: a producer may still be at its last push."""
        try:
            if waiting := count():
                return waiting
            time.sleep(1.0)
            return count()
        except UnavailableError:
            return 1

    def _named(self, kind: str) -> list[Path]:
        return ledgers.named(self.history, kind)

    def _end_stations(self) -> None:
        for station in self._stations:
            station.hang_up()
        for station, place in zip(self._stations, STATIONS, strict=True):
            if station.wait(END_SECONDS) != 0:
                self._trouble.append(f"clients at place {place} failed; see station-{place}.log")

    def _judge(self, faults: list[Fault], rest_ns: int, seconds: float) -> Outcome:
        self._say("checking the history")
        periods = [(fault.started_ns, fault.whole_ns) for fault in faults]
        clients = clients_of(self.history, PLACES, rest_ns)
        return Outcome(
            check_queue(self.history, queue_work.LEASE_SECONDS, periods),
            check_topic(self.history),
            check_table(self.history),
            faults,
            pauses_around(faults, clients),
            seconds,
            self._left_out,
            self._trouble,
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Messages acknowledged to consumers, and read from the topic, so far."""
        consumed, seen = map(self._named, ("consumed", "seen"))
        return sum(map(ledgers.row_count, consumed)), sum(map(ledgers.row_count, seen))
