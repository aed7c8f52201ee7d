"""The checker of gangs can fail: one thing is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.core.gang_line import GangLine
from penstock.core.gangs import Gangs
from penstock.core.parking import ParkedWorker, Parking
from penstock.sim import run

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 20


def one_member_too_few(patch: pytest.MonkeyPatch) -> None:
    take = Parking.take

    def fewer(self: Parking, count: int) -> list[ParkedWorker]:
        return take(self, max(count - 1, 1))

    patch.setattr(Parking, "take", fewer)


def ranks_mixed_up(patch: pytest.MonkeyPatch) -> None:
    read: Any = Gangs._read

    def turned(self: Gangs, gang: Any, batch: Any) -> None:
        addresses = [each.address for each in gang.members]
        for each, address in zip(gang.members, addresses[::-1], strict=True):
            each.address = address
        read(self, gang, batch)

    patch.setattr(Gangs, "_read", turned)


def told_before_it_is_safe(patch: pytest.MonkeyPatch) -> None:
    give: Any = Gangs._give

    def at_once(self: Gangs, *args: Any) -> None:
        give(self, *args)
        entry: Any = self.kernel.effects[-1].entry  # type: ignore[union-attr]
        entry.answer()
        entry.answer = None

    patch.setattr(Gangs, "_give", at_once)


def youngest_first(patch: pytest.MonkeyPatch) -> None:
    def last(self: GangLine, workers: int) -> int | None:
        fitting = [position for position in self.runs if self.sizes[position] <= workers]
        return max(fitting, default=None)

    patch.setattr(GangLine, "first", last)


def sizes_forgotten(patch: pytest.MonkeyPatch) -> None:
    came = GangLine.came
    patch.setattr(GangLine, "came", lambda self, position, size: came(self, position, 1))


class Case(NamedTuple):
    """What is broken, runs that find it, and how the finding begins."""

    breaks: Break
    faults: str
    begins: str = ""


CASES = [
    Case(one_member_too_few, "none", "too few"),
    Case(ranks_mixed_up, "none", "another's place"),
    Case(told_before_it_is_safe, "all"),
    Case(sizes_forgotten, "none", "too few"),
    Case(youngest_first, "none", "out of turn"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.breaks.__name__)
def test_a_broken_core_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.breaks(monkeypatch)
    for seed in range(1, MAX_SEEDS + 1):
        verdict = run(seed, 0.5, case.faults, "gangs")
        if any(problem.startswith(case.begins) for problem in verdict.problems):
            return
    pytest.fail("no run found it")


@pytest.mark.parametrize("seed", range(20, 24))
def test_one_node_keeps_its_promises(seed: int) -> None:
    verdict = run(seed, 0.5, "all", "gangs")
    assert verdict.problems == []
    assert verdict.figures["gangs"] > 20
