"""Running measurements in rounds, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.cli.benchmarks.figures import Figures, Series
from penstock.cli.benchmarks.foreign import ForeignCpu

DISTURBED_CORES = 0.15
MOST_REPEATS = 2  # of one measurement, because others used the machine
REPEAT_WITHIN_SECONDS = 60.0  # after that, a disturbed run is only marked as such

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measurement:
    """Something that gives figures each time it is run. `once`: it is long, and steady enough."""

    name: str
    run: Callable[[], Figures]
    once: bool = False


@dataclass
class Results:
    """All figures of a run, and what was odd about them."""

    series: dict[str, Series] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # by the part of names before the slash
    foreign: dict[str, float] = field(default_factory=dict)  # the most cores that others used

    def add(self, figures: Figures) -> None:
        """The figures of one more run."""
        for name, (value, unit) in figures.items():
            self.series.setdefault(name, Series(unit)).values.append(value)

    def disturbed(self, workload: str, cores: float) -> None:
        """Others used the machine during a run that counts."""
        most = max(cores, self.foreign.get(workload, 0.0))
        self.foreign[workload] = most
        self.notes[workload] = f"others used {most:.1f} cores"

    def note_of(self, figure: str | None) -> str:
        """What the reader should know of the workload that a figure comes from."""
        return self.notes.get((figure or "").partition("/")[0], "")


def run_rounds(
    measurements: Iterable[Measurement], rounds: int, results: Results, progress: Progress
) -> None:
    """Runs all, one after the other, so many times."""
    chosen = list(measurements)
    repeat_until = time.monotonic() + REPEAT_WITHIN_SECONDS
    for number in range(rounds):
        for measurement in chosen:
            progress(measurement.name)
            if not (measurement.once and number):
                results.add(_undisturbed(measurement, results, repeat_until))


def _undisturbed(measurement: Measurement, results: Results, repeat_until: float) -> Figures:
    """The run in which others used the least, of as many as it takes and are allowed."""
    best: tuple[float, Figures] | None = None
    for _ in range(1 + MOST_REPEATS):
        foreign = ForeignCpu()
        figures = measurement.run()
        cores = foreign.cores()
        if best is None or cores < best[0]:
            best = cores, figures
        if cores < DISTURBED_CORES or measurement.once or time.monotonic() > repeat_until:
            break
    assert best is not None
    cores, figures = best
    if cores >= DISTURBED_CORES:
        for name in {figure.partition("/")[0] for figure in figures}:
            results.disturbed(name, cores)
    return figures
