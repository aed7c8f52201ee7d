"""The checker of graphs can fail: one thing is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.sim.bounded import bounded

from penstock.core import edge_notes, edges, holds
from penstock.core.holds import Hold, Watchers
from penstock.core.records import EdgesMet, Watched
from penstock.core.shard import _NOTED, Shard
from penstock.sim import run

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 30


def ready_with_the_first_entry(patch: pytest.MonkeyPatch) -> None:
    def meet(self: Hold, edge: bytes) -> bool:
        there = edge in self.edges
        if there:
            self.edges.clear()
        return there

    patch.setattr(Hold, "meet", meet)


def entries_that_are_there_already_overlooked(patch: pytest.MonkeyPatch) -> None:
    def watched(shard: Shard, note: Watched, number: int, now_us: int) -> None:
        note.kept += note.met
        note.met = []
        edge_notes._watched(shard, note, number, now_us)

    patch.setitem(_NOTED, Watched, watched)


def entries_that_nobody_hears_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.core.shard.written", lambda *_: None)


def marks_ignored(patch: pytest.MonkeyPatch) -> None:
    def met(shard: Shard, note: EdgesMet, number: int, now_us: int) -> None:
        note.edges = [edge._replace(mark=0) for edge in note.edges]
        edge_notes._edges_met(shard, note, number, now_us)

    patch.setitem(_NOTED, EdgesMet, met)


def policies_ignored(patch: pytest.MonkeyPatch) -> None:
    waits: Any = edges.Edges._waits

    def strict(self: edges.Edges, hold: Any) -> Any:
        found = waits(self, hold)
        found.policy = 0
        return found

    patch.setattr(edges.Edges, "_waits", strict)


def no_fallback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edge_notes, "_fall_back", lambda *_: None)


def fallback_and_ready(patch: pytest.MonkeyPatch) -> None:
    def ended(queue: Any, key: bytes) -> Hold | None:
        hold: Hold | None = queue.holds.get(key)
        if hold is not None:
            hold.edges.clear()
            holds._let_go(queue, key, hold)
        return hold

    patch.setattr(holds, "ended", ended)


def watchers_forgotten_by_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watchers, "snapshot", lambda _: [])


def edges_forgotten_by_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hold, "snapshot", lambda self: ([], self.policy, self.fallback, False, False))


class Case(NamedTuple):
    """What is broken, runs that find it, and how the finding begins."""

    breaks: Break
    faults: str
    begins: str = ""
    nodes: int = 1
    minutes: float = 0.5


CASES = [
    Case(ready_with_the_first_entry, "none", "too early"),
    Case(entries_that_are_there_already_overlooked, "none", "stuck"),
    Case(entries_that_nobody_hears_of, "none", "stuck"),
    Case(marks_ignored, "none", "not let go"),
    Case(policies_ignored, "none", "fell back without a cause"),
    Case(no_fallback, "none", "lost"),
    Case(fallback_and_ready, "none", "both"),
    Case(watchers_forgotten_by_a_checkpoint, "crash", "stuck"),
    Case(edges_forgotten_by_a_checkpoint, "crash"),
    Case(ready_with_the_first_entry, "none", "too early", 3, 1.0),
    Case(entries_that_are_there_already_overlooked, "none", "stuck", 3, 1.0),
]


def name_of(case: Case) -> str:
    return f"{case.breaks.__name__}-{case.nodes}"


@pytest.mark.parametrize("case", bounded(CASES), ids=name_of)
def test_a_broken_core_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.breaks(monkeypatch)
    for seed in range(1, MAX_SEEDS + 1):
        verdict = run(seed, case.minutes, case.faults, "graph", nodes=case.nodes)
        if any(problem.startswith(case.begins) for problem in verdict.problems):
            return
    pytest.fail("no run found it")


@pytest.mark.parametrize("seed", range(20, 23))
def test_one_node_keeps_its_promises(seed: int) -> None:
    verdict = run(seed, 0.5, "all", "graph")
    assert verdict.problems == []
    assert verdict.figures["tasks"] > 50


@pytest.mark.parametrize("seed", [20, *(pytest.param(n, marks=pytest.mark.slow) for n in (21, 22))])
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    verdict = run(seed, 1.0, "all", "graph", nodes=3)
    assert verdict.problems == []
    assert verdict.figures["tasks"] > 30
