"""Targets: what a figure, or its ratio to a floor of the same run, has to be."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cli.benchmarks.measure import Results


@dataclass(frozen=True)
class Goal:
    """A target. With `floor`, for the ratio of both figures; else for the figure itself."""

    label: str
    figure: str
    limit: float
    at_least: bool
    floor: str | None = None

    @property
    def target(self) -> str:
        """In words."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.at_least else "\N{LESS-THAN OR EQUAL TO}"
        return f"{sign} {self.limit:,g}{' x floor' if self.floor else ''}"


class Outcome(NamedTuple):
    """A goal and what came out. `ratio` is to the floor, or to the limit if there is no floor."""

    goal: Goal
    measured: float
    floor: float | None
    ratio: float
    passed: bool


GOALS = (
    Goal("push, one producer", "push", 0.5, True, "pipe in"),
    Goal("pop + ack, whole deliveries", "pop", 0.5, True, "pipe out"),
    Goal("loop of the README", "loop", 150_000, True),
    Goal("push written, p50", "push written/p50", 2.0, False, "echo written/p50"),
    Goal("push synced, p50", "push synced/p50", 1.5, False, "echo synced/p50"),
    Goal("10,000 topics against 10", "publish 10000 topics", 0.7, True, "publish 10 topics"),
    Goal("memory, batches waiting", "memory batches", 100, False),
    Goal("memory, batches half acked", "memory batches, leased", 200, False),
    Goal("memory, singles waiting", "memory singles", 200, False),
    Goal("memory, singles half acked", "memory singles, leased", 400, False),
    Goal("directory, against its bound", "space/of bound", 1.0, False),
)


def judge(results: Results, goals: tuple[Goal, ...] = GOALS) -> list[Outcome]:
    """Outcomes of the goals whose figures were measured."""
    needed = ((goal, {goal.figure, goal.floor or goal.figure}) for goal in goals)
    return [_outcome(goal, results) for goal, names in needed if names <= results.series.keys()]


def _outcome(goal: Goal, results: Results) -> Outcome:
    measured = results.series[goal.figure]
    floor: float | None = None
    if goal.floor is None:
        judged, ratio = measured.median, measured.median / goal.limit
    else:
        floors = results.series[goal.floor]
        floor = floors.median
        # Round by round: what slows the machine for a while slows both.
        pairs = zip(measured.values, floors.values, strict=True)
        judged = ratio = statistics.median(each / base for each, base in pairs)
    passed = judged >= goal.limit if goal.at_least else judged <= goal.limit
    return Outcome(goal, measured.median, floor, ratio, passed)
