"""One run: a cluster, clients at several places, faults one after the other, and the check."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cli.faulting.breaking import SHORT, Breaker, Fault, Lengths, plan
from penstock.cli.faulting.clients import Clients, Works
from penstock.cli.faulting.network import Loopback, Namespaces, Network
from penstock.cli.faulting.nodes import Nodes
from penstock.cli.faulting.pauses import Pauses, clients_of, pauses_around
from penstock.cli.faulting.verdicts import Verdicts

NODES = (1, 2, 3)
FULL_SECONDS = 300.0  # a shorter run has only a few of the faults
CALM_SECONDS = 2.0  # before the first fault and after each, at least
STATIONS: dict[int, Works] = {
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

    verdicts: Verdicts
    faults: list[Fault]
    pauses: list[Pauses]
    left_out: str  # why nothing was cut off; empty if that was done
    trouble: list[str] = field(default_factory=list)  # why the history may not be complete

    @property
    def correct(self) -> bool:
        """Whether every promise held, and all clients were there to see it."""
        return not self.verdicts.broken and not self.trouble


class Run:
    """Owns everything that is started; all of it has ended when the context is left."""

    def __init__(self, folder: Path, seconds: float, left_out: str, say: Say) -> None:
        self._folder = folder
        self._seconds = seconds
        self._full = seconds >= FULL_SECONDS
        self._left_out = left_out
        self._say = say
        self._clients = Clients(folder, STATIONS)

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
            stack.enter_context(self._clients.at_work(nodes.url, network.inside))
            started = time.monotonic()
            breaker = Breaker(nodes, self._say, Lengths() if self._full else SHORT)
            self._break(breaker, network.cuts)
            rest_ns = time.monotonic_ns()
            seconds = time.monotonic() - started
            self._clients.trouble += breaker.trouble
            self._say("producers rest; waiting until everything is consumed")
            self._clients.come_to_rest(nodes.url())
        return self._judge(breaker.faults, rest_ns, seconds)

    def _break(self, breaker: Breaker, cuts: bool) -> None:
        steps = plan(breaker, self._full, cuts)
        self._say("all is well")
        begun = time.monotonic()
        time.sleep(CALM_SECONDS)
        each = (self._seconds - CALM_SECONDS) / len(steps)
        for number, step in enumerate(steps, 1):
            step()
            self._clients.check()
            self._say("all is well")
            until = begun + CALM_SECONDS + number * each
            time.sleep(max(until - time.monotonic(), CALM_SECONDS))

    def _judge(self, faults: list[Fault], rest_ns: int, seconds: float) -> Outcome:
        self._say("checking the history")
        periods = [(fault.started_ns, fault.whole_ns) for fault in faults]
        history = self._clients.history
        clients = clients_of(history, PLACES, rest_ns)
        return Outcome(
            Verdicts.of(history, periods, seconds),
            faults,
            pauses_around(faults, clients),
            self._left_out,
            self._clients.trouble,
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Messages acknowledged to consumers, and read from the topic, so far."""
        return self._clients.progress
