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
    full_size: bool = False  # says nothing about a run that was scaled down

    @property
    def target(self) -> str:
        """In words."""
        sign = "\N{GREATER-THAN OR EQUAL TO}" if self.at_least else "\N{LESS-THAN OR EQUAL TO}"
        return f"{sign} {self.limit:,g}{' x floor' if self.floor else ''}"


class Outcome(NamedTuple):
    """A goal and what came out. `ratio` is to the floor, or to the limit if there is no floor.

    `passed` is None if the run was too small to tell.
    """

    goal: Goal
    measured: float
    floor: float | None
    ratio: float
    passed: bool | None


GOALS = (
    Goal("push, one producer", "push", 0.5, True, "pipe in"),
    Goal("pop + ack, whole deliveries", "pop", 0.5, True, "pipe out"),
    Goal("pop + ack, values as Arrow columns", "pop, as Arrow", 0.5, True, "pipe out"),
    Goal("push, batches of 8,000", "push, the client's batches", 0.5, True, "pipe in"),
    Goal("pop + ack, the same as Arrow", "pop, the client's batches", 0.5, True, "pipe out"),
    Goal("push, against pipe + encoding", "push", 0.5, True, "pipe in, encoding"),
    Goal("pop + ack, against pipe + decoding", "pop", 0.5, True, "pipe out, decoding"),
    Goal("loop of the README", "loop", 150_000, True),
    Goal("push written, p50", "push written/p50", 2.0, False, "echo written/p50"),
    Goal("push synced, p50", "push synced/p50", 1.5, False, "echo synced/p50"),
    Goal("many topics against few", "publish, many topics", 0.7, True, "publish, few topics", True),
    Goal("Spark reads, against ready Arrow", "spark, topic", 0.6, True, "spark, ready Arrow", True),
    Goal("Spark reads, against rows", "spark, topic", 2.0, True, "spark, rows", True),
    Goal("Spark reads, against Parquet", "spark, topic", 0.5, True, "spark, Parquet", True),
    Goal("Spark sessions, against a state per key", "spark sessions", 50.0, True,
         "spark sessions, per key", True),
    Goal("Spark sessions of rows, against a state per key", "spark sessions, of rows", 30.0, True,
         "spark sessions, per key", True),
    Goal("Spark objects, against a state per key", "spark sessions, general", 10.0, True,
         "spark sessions, per key", True),
    Goal("memory, batches waiting", "memory batches", 100, False, full_size=True),
    Goal("memory, batches half acked", "memory batches/half acked", 200, False, full_size=True),
    Goal("memory, singles waiting", "memory singles", 200, False, full_size=True),
    Goal("memory, singles leased", "memory singles/leased", 400, False, full_size=True),
    Goal("memory, singles half acked", "memory singles/half acked", 400, False, full_size=True),
    Goal("assembler against loop", "sessions, assembler", 0.25, True, "sessions, plain loop", True),
    Goal("member against loop", "sessions, member", 0.15, True, "sessions, plain loop", True),
    Goal("null tasks, 2 executors", "tasks, null", 20_000, True, full_size=True),
    Goal("a single task, p50: within 1 ms, or", "tasks, single/p50", 1000, False),
    Goal("... beside a pool", "tasks, single/p50", 2.5, False, "tasks, single in a pool/p50"),
    Goal("busy with 1 ms tasks", "tasks, efficiency/1 ms", 0.80, True, full_size=True),
    Goal("busy with 16 ms tasks", "tasks, efficiency/16 ms", 0.95, True, full_size=True),
    Goal("busy with 128 ms tasks", "tasks, efficiency/128 ms", 0.99, True, full_size=True),
    Goal("busy with a mix", "tasks, efficiency/1 ms to 1 s", 0.95, True, full_size=True),
    Goal("directory, against its bound", "space/of bound", 1.0, False, full_size=True),
)


def judge(results: Results, quick: bool = False) -> list[Outcome]:
    """Outcomes of the goals whose figures were measured, in a quick run or in a full one."""
    needed = ((goal, {goal.figure, goal.floor or goal.figure}) for goal in GOALS)
    return [
        _outcome(goal, results, quick) for goal, names in needed if names <= results.series.keys()
    ]


def _outcome(goal: Goal, results: Results, quick: bool) -> Outcome:
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
    passed: bool | None = judged >= goal.limit if goal.at_least else judged <= goal.limit
    if quick and goal.full_size:
        passed = None
    return Outcome(goal, measured.median, floor, ratio, passed)
