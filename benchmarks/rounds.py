"""Rounds over all brokers: which workloads there are, and which of them share a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.interleaved import Interleaved, Rules, Tell, chosen
from benchmarks.syncs import syncs
from benchmarks.system import MIB, System
from benchmarks.workloads import (
    Amounts,
    end_to_end,
    memory,
    mixed,
    queue_cost,
    recovery,
    single_latency,
    throughput,
)  # fmt: skip
from penstock.cli.benchmarks.figures import Figures

Measure = Callable[[System, Amounts], Figures]

MOVING: dict[str, Measure] = {
    "50B": partial(throughput, size=50, label="50 B"),
    "1KiB": partial(throughput, size=1024, label="1 KiB"),
    "256KiB": partial(throughput, size=MIB // 4, label="256 KiB"),
    "1MiB": partial(throughput, size=MIB, label="1 MiB"),
}
SHARED: dict[str, Measure] = {  # on a server that runs already
    **MOVING,
    "latency": single_latency,
    "e2e-1k": partial(end_to_end, rate=1000),
    "e2e-10k": partial(end_to_end, rate=10_000),
    "mixed": mixed,
}
ALONE: dict[str, Measure] = {  # start servers by themselves
    "queues": queue_cost,
    "recovery": recovery,
    "memory": memory,
    "syncs": syncs,
}
ONCE = frozenset({"syncs"})  # in the first round alone: what it tells is no matter of speed
WORKLOADS = SHARED | ALONE


def choose_workloads(text: str) -> list[str]:
    """Names separated by commas, or all; ValueError if one is unknown."""
    return chosen(text, WORKLOADS) or list(WORKLOADS)


def applies(system: System, workload: str) -> bool:
    """Whether a workload can be had of a system."""
    if system.moves_only:
        return workload in MOVING
    able = {
        "queues": system.max_queues > 0,
        "memory": system.counts_memory,
        "recovery": system.recovers,
    }
    return able.get(workload, True)


class Rounds(Interleaved[System]):
    """Runs everything; a system or a workload that fails leaves the others as they are."""

    def __init__(self, amounts: Amounts, rules: Rules, tell: Tell) -> None:
        super().__init__(rules, tell)
        self._amounts = amounts
        self._told: set[tuple[str, str]] = set()  # of ONCE

    def round(self, system: System, workloads: Sequence[str]) -> None:
        shared = [name for name in workloads if name in SHARED and applies(system, name)]
        if shared:
            try:
                system.start()
                for name in shared:
                    self._one(system, name)
            except Exception as error:
                self.failed(system.name, "start", error)
            finally:
                system.stop()
        for name in workloads:
            if name in ALONE and applies(system, name) and (system.name, name) not in self._told:
                try:
                    self._one(system, name)
                finally:
                    system.stop()

    def _one(self, system: System, name: str) -> None:
        self.measure(system.name, name, partial(WORKLOADS[name], system, self._amounts))
        if name in ONCE:
            self._told.add((system.name, name))
