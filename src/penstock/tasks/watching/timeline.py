"""A run as lanes of workers over time: where each executor was busy, and how much. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.tasks.envelope import Status, TaskOutcome

MAX_LANES = 200
OTHERS = "others"


class Bar(NamedTuple):
    """One attempt that was committed: where it began and ended, as shares of the whole time."""

    begin: float
    end: float
    function: str
    took_us: int
    failed: bool


@dataclass(slots=True)
class Lane:
    """What one executor did."""

    worker: str
    bars: list[Bar] = field(default_factory=list)
    busy: float = 0.0
    """Its utilisation over the whole time."""

    def columns(self, count: int) -> npt.NDArray[np.float64]:
        """How busy it was in each of `count` equal parts of the time, 0 to 1."""
        edges = np.linspace(0.0, 1.0, count + 1)
        begins = np.array([bar.begin for bar in self.bars])
        ends = np.array([bar.end for bar in self.bars])
        # What is done by an edge, bar by bar, as sums of what has begun and what has ended there.
        done = np.zeros(count + 1)
        for sign, at in ((1.0, np.sort(begins)), (-1.0, np.sort(ends))):
            before = np.searchsorted(at, edges)
            sums = np.concatenate([[0.0], np.cumsum(at)])
            done += sign * (edges * before - sums[before])
        return np.clip(np.diff(done) * count, 0.0, 1.0)


@dataclass(slots=True)
class Timeline:
    """Lanes over the time from the first beginning to the last end. Times are microseconds."""

    begin_us: int = 0
    end_us: int = 0
    lanes: list[Lane] = field(default_factory=list)
    tasks: int = 0
    failed: int = 0
    longest_us: int = 0

    @property
    def utilisation(self) -> float:
        """Of all lanes together."""
        return sum(lane.busy for lane in self.lanes) / max(len(self.lanes), 1)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_us - self.begin_us) / 1e6


def laid_out(outcomes: Iterable[TaskOutcome], since_us: int = 0) -> Timeline:
    """Lanes of workers, in the order of their names; tasks that never ran, or ended before
    `since_us`, are left out. Lanes beyond MAX_LANES are laid on top of each other in the last."""
    ran = [each for each in outcomes if each.started_us and each.ended_us >= max(since_us, 1)]
    if not ran:
        return Timeline()
    begin_us = max(min(each.started_us for each in ran), since_us)
    end_us = max(max(each.ended_us for each in ran), begin_us + 1)
    whole_us = end_us - begin_us
    names = sorted({each.worker for each in ran}, key=_by_number)
    lanes = {name: Lane(name) for name in names[:MAX_LANES]}
    for each in ran:
        lane = lanes.get(each.worker) or lanes.setdefault(OTHERS, Lane(OTHERS))
        begin = max(each.started_us - begin_us, 0) / whole_us
        took_us, bad = max(each.ended_us - each.started_us, 0), each.status != Status.DONE
        end = max((each.ended_us - begin_us) / whole_us, begin)
        lane.bars.append(Bar(begin, end, each.function, took_us, bad))
    for lane in lanes.values():
        lane.bars.sort()
        lane.busy = float(lane.columns(1)[0])
    failed = sum(each.status != Status.DONE for each in ran)
    longest_us = max(each.ended_us - each.started_us for each in ran)
    return Timeline(begin_us, end_us, list(lanes.values()), len(ran), failed, longest_us)


def _by_number(worker: str) -> tuple[str, int, str]:
    """Executors 2 and 10 of a worker stand in that order."""
    name, _, number = worker.rpartition("/")
    return (name, int(number), "") if number.isdigit() else (worker, 0, "")
