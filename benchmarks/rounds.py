"""Interleaved rounds: all systems, one after the other, and again. A measurement during which
others used the processors is done once more, and the calmer one is kept, with a mark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.folders import data_folder
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
from penstock.cli.benchmarks.figures import Figures, Series
from penstock.cli.benchmarks.foreign import ForeignCpu

QUIET_CORES = 0.15  # used by others; above, a measurement is done again
_CALM_SECONDS = 1.0
_LOOK_SECONDS = 0.25

Measure = Callable[[System, Amounts], Figures]

SHARED: dict[str, Measure] = {  # on a server that runs already
    "50B": partial(throughput, size=50, label="50 B"),
    "1KiB": partial(throughput, size=1024, label="1 KiB"),
    "256KiB": partial(throughput, size=MIB // 4, label="256 KiB"),
    "1MiB": partial(throughput, size=MIB, label="1 MiB"),
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
WORKLOADS = SHARED | ALONE


def choose_workloads(text: str) -> list[str]:
    """Names separated by commas, or all; ValueError if one is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in WORKLOADS:
            raise ValueError(f"{name!r} is not one of {', '.join(WORKLOADS)}")
    return names or list(WORKLOADS)


def applies(system: System, workload: str) -> bool:
    """Whether a workload can be had of a system."""
    if workload == "queues":
        return system.max_queues > 0
    return system.counts_memory if workload == "memory" else True


@dataclass
class Measured:
    """All figures of one system over all rounds."""

    series: dict[str, Series] = field(default_factory=dict)
    disturbed: dict[str, float] = field(default_factory=dict)  # figure: cores used by others
    failures: list[str] = field(default_factory=list)

    def add(self, figures: Figures, foreign: float) -> None:
        """The figures of one round."""
        for name, figure in figures.items():
            self.series.setdefault(name, Series(figure.unit)).values.append(figure.value)
            if foreign > QUIET_CORES:
                self.disturbed[name] = max(foreign, self.disturbed.get(name, 0.0))


@dataclass(frozen=True)
class Rules:
    """How measurements are repeated, and when it has to end."""

    repeats: int = 3
    hold_seconds: float = 30.0  # the longest wait for others to leave the processors alone
    again: int = 1  # how often a disturbed measurement is done again
    deadline: float = float("inf")  # on the clock `time.monotonic`; nothing begins after it

    def over(self) -> bool:
        """Whether nothing is to begin any more."""
        return time.monotonic() > self.deadline


Tell = Callable[[str], None]


class Rounds:
    """Runs everything; a system or a workload that fails leaves the others as they are."""

    def __init__(self, amounts: Amounts, rules: Rules, tell: Tell) -> None:
        self._amounts = amounts
        self._rules = rules
        self._tell = tell
        self.measured: dict[str, Measured] = {}

    def run(self, systems: Sequence[System], workloads: Sequence[str]) -> None:
        """Round by round."""
        for number in range(self._rules.repeats):
            for system in systems:
                if self._rules.over():
                    self._tell("the time is up: what is missing was not measured")
                    return
                self._tell(f"round {number + 1} of {self._rules.repeats}: {system.name}")
                self._round(system, workloads)
                shutil.rmtree(data_folder() / system.name, ignore_errors=True)

    def _round(self, system: System, workloads: Sequence[str]) -> None:
        shared = [name for name in workloads if name in SHARED]
        if shared:
            try:
                system.start()
                for name in shared:
                    self._measure(system, name)
            except Exception as error:
                self._failed(system, "start", error)
            finally:
                system.stop()
        for name in workloads:
            if name in ALONE and applies(system, name):
                try:
                    self._measure(system, name)
                finally:
                    system.stop()

    def _measure(self, system: System, name: str) -> None:
        if self._rules.over():
            return
        kept: tuple[float, Figures] | None = None
        try:
            for _ in range(1 + self._rules.again):
                await_quiet(self._rules.hold_seconds)
                started, foreign = time.perf_counter(), ForeignCpu()
                figures = WORKLOADS[name](system, self._amounts)
                cores = foreign.cores()
                self._tell(f"  {name}: {time.perf_counter() - started:.0f} s, others {cores:.2f}")
                if kept is None or cores < kept[0]:
                    kept = cores, figures
                if cores <= QUIET_CORES or self._rules.over():
                    break
        except Exception as error:
            self._failed(system, name, error)
        if kept is not None:
            self.measured.setdefault(system.name, Measured()).add(kept[1], kept[0])

    def _failed(self, system: System, name: str, error: Exception) -> None:
        self._tell(f"{system.name} failed at {name}: {type(error).__name__}: {error}")
        # The report tells what, and not the paths of this machine that errors are full of.
        failure = f"{name}: {type(error).__name__}"
        self.measured.setdefault(system.name, Measured()).failures.append(failure)


def await_quiet(most: float) -> None:
    """Returns when others have left the processors alone for a second, or after `most` seconds."""
    end = time.monotonic() + most
    calm = 0.0
    while calm < _CALM_SECONDS and time.monotonic() < end:
        foreign = ForeignCpu()
        time.sleep(_LOOK_SECONDS)
        calm = calm + _LOOK_SECONDS if foreign.cores() <= QUIET_CORES else 0.0
