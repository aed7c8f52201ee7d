"""How often a push and a pop of many messages are done in one round, and what counts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from benchmarks.system import System
from benchmarks.workloads import Amounts, Job, mixed, throughput

from penstock.cli.benchmarks.figures import COUNT as COUNTED
from penstock.cli.benchmarks.figures import Figure, Figures

COUNT = 1000
Measure = Callable[[Amounts, Sequence[float]], tuple[Figures, int]]


class Peer:
    """One that keeps what it is given."""

    moves_only = False


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Figures of a system whose clients take these seconds, one after the other, after a first
    push that never counts; and how many of them there were."""

    def run(amounts: Amounts, seconds: Sequence[float]) -> tuple[Figures, int]:
        coming: Iterator[float] = iter([30.0, *seconds])
        taken: list[float] = []

        def one(_: System, jobs: Sequence[Job]) -> list[dict[str, Any]]:
            taken.append(next(coming))
            return [{"n": jobs[0].arguments["n"], "seconds": taken[-1]}]

        monkeypatch.setattr("benchmarks.workloads.together", one)
        return throughput(cast(System, Peer()), amounts, 50, "50 B"), len(taken) - 1

    return run


AMOUNTS = Amounts(small=COUNT, most_times=1, passes=3, lasting=3.0)


def test_one_slow_pass_of_three_does_not_count(measure: Measure):
    figures, clients = measure(AMOUNTS, [0.1, 0.1, 0.1, 1.0, 0.1, 0.1])
    assert clients == 6
    assert figures["push 50 B"].value == pytest.approx(COUNT / 0.1)
    assert figures["pop 50 B"].value == pytest.approx(COUNT / 0.1)
    assert figures["pop 50 B/left"].value == 0


def test_what_took_long_enough_is_not_done_again(measure: Measure):
    figures, clients = measure(AMOUNTS, [2.0, 1.5])
    assert clients == 2
    assert figures["push 50 B"].value == pytest.approx(COUNT / 2.0)


def test_the_passes_are_as_large_as_the_first_that_counts(measure: Measure):
    amounts = Amounts(small=COUNT, most_times=10, passes=2, lasting=3.0)
    figures, clients = measure(amounts, [0.1, 1.0, 0.5, 1.0, 0.5])
    assert clients == 5  # the first push only tells how many there should be
    assert figures["push 50 B"].value == pytest.approx(10 * COUNT)


@pytest.mark.parametrize(("seconds", "lost", "pushed"), [
    (0.02, 0.0, [50, 2500]), (0.02, 1.0, [50]), (1.5, 0.0, [50]),
])  # fmt: skip
def test_who_is_done_soon_gets_more_at_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lost: float, pushed: list[int]
) -> None:
    counts: list[int] = []

    def one(_: System, __: Amounts, count: int) -> tuple[Figures, float]:
        counts.append(count)
        return {"mixed/lost": Figure(lost, COUNTED)}, seconds

    monkeypatch.setattr("benchmarks.workloads._mixed", one)
    figures = mixed(cast(System, Peer()), Amounts(mixed=50))
    assert counts == pushed
    assert figures["mixed/lost"].value == lost, "what is lost is told"
