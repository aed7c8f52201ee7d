"""Interleaved rounds: all systems, one after the other, and again. A measurement during which
others used the processors is done once more, and the calmer one is kept, with a mark."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from benchmarks.folders import data_folder
from penstock.cli.benchmarks.figures import Figures, Series
from penstock.cli.benchmarks.foreign import ForeignCpu

QUIET_CORES = 0.15  # used by others; above, a measurement is done again
_CALM_SECONDS = 1.0
_LOOK_SECONDS = 0.25

Tell = Callable[[str], None]


class Named(Protocol):
    """All that rounds have to know of a system."""

    name: str


S = TypeVar("S", bound=Named)


def chosen(text: str, known: Collection[str]) -> list[str]:
    """Names separated by commas; ValueError if one is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
    return names


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


class Interleaved(ABC, Generic[S]):
    """Runs all systems again and again; one that fails leaves the others as they are."""

    def __init__(self, rules: Rules, tell: Tell) -> None:
        self._rules = rules
        self._tell = tell
        self.measured: dict[str, Measured] = {}

    def run(self, systems: Sequence[S], workloads: Sequence[str]) -> None:
        """Round by round."""
        for number in range(self._rules.repeats):
            for system in systems:
                if self._rules.over():
                    self._tell("the time is up: what is missing was not measured")
                    return
                self._tell(f"round {number + 1} of {self._rules.repeats}: {system.name}")
                self.round(system, workloads)
                shutil.rmtree(data_folder() / system.name, ignore_errors=True)

    @abstractmethod
    def round(self, system: S, workloads: Sequence[str]) -> None:
        """Starts a system, measures all workloads that it is able to do, stops it."""

    def measure(self, system: str, name: str, run: Callable[[], Figures]) -> None:
        """Adds the figures of a workload, of the calmest of its attempts; or its failure."""
        if self._rules.over():
            return
        kept: tuple[float, Figures] | None = None
        try:
            for _ in range(1 + self._rules.again):
                await_quiet(self._rules.hold_seconds)
                started, foreign = time.perf_counter(), ForeignCpu()
                figures = run()
                cores = foreign.cores()
                self._tell(f"  {name}: {time.perf_counter() - started:.0f} s, others {cores:.2f}")
                if kept is None or cores < kept[0]:
                    kept = cores, figures
                if cores <= QUIET_CORES or self._rules.over():
                    break
        except Exception as error:
            self.failed(system, name, error)
        if kept is not None:
            self.measured.setdefault(system, Measured()).add(kept[1], kept[0])

    def failed(self, system: str, name: str, error: Exception) -> None:
        """Tells and keeps what failed."""
        self._tell(f"{system} failed at {name}: {type(error).__name__}: {error}")
        # The report tells what, and not the paths of this machine that errors are full of.
        failure = f"{name}: {type(error).__name__}"
        self.measured.setdefault(system, Measured()).failures.append(failure)


def await_quiet(most: float) -> None:
    """Returns when others have left the processors alone for a second, or after `most` seconds."""
    end = time.monotonic() + most
    calm = 0.0
    while calm < _CALM_SECONDS and time.monotonic() < end:
        foreign = ForeignCpu()
        time.sleep(_LOOK_SECONDS)
        calm = calm + _LOOK_SECONDS if foreign.cores() <= QUIET_CORES else 0.0
