"""How often a push and a pop of many messages are done in one round, and what counts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from benchmarks.system import System
from benchmarks.workloads import Amounts, Job, Mixed, mixed, throughput

from penstock.cli.benchmarks.figures import Figures

COUNT = 1000
Measure = Callable[[Amounts, Sequence[float]], tuple[Figures, int]]


class Peer:
    """One that keeps what it is given."""

    moves_only = False


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Figures of a system whose clients take these seconds, one after the other, the first
    of which is a push that never counts; and how many of them there were."""

    def run(amounts: Amounts, seconds: Sequence[float]) -> tuple[Figures, int]:
        coming: Iterator[float] = iter(seconds)
        taken: list[float] = []

        def one(_: System, jobs: Sequence[Job]) -> list[dict[str, Any]]:
            taken.append(next(coming))
            return [{"n": jobs[0].arguments["n"], "seconds": taken[-1]}]

        monkeypatch.setattr("benchmarks.workloads.together", one)
        return throughput(cast(System, Peer()), amounts, 50, "50 B"), len(taken)

    return run


AMOUNTS = Amounts(small=COUNT, most_times=1, passes=3, lasting=3.0)


def test_one_slow_pass_of_three_does_not_count(measure: Measure):
    figures, clients = measure(AMOUNTS, [0.7, 0.1, 0.1, 0.1, 1.0, 0.1, 0.1])
    assert clients == 7
    assert figures["push 50 B"].value == pytest.approx(COUNT / 0.1)
    assert figures["pop 50 B"].value == pytest.approx(COUNT / 0.1)
    assert figures["pop 50 B/left"].value == 0


def test_what_took_long_enough_is_not_done_again(measure: Measure):
    figures, clients = measure(AMOUNTS, [0.7, 2.0, 1.5])
    assert clients == 3
    assert figures["push 50 B"].value == pytest.approx(COUNT / 2.0)


def test_the_passes_are_as_large_as_the_first_that_counts(measure: Measure):
    amounts = Amounts(small=COUNT, most_times=10, passes=2, lasting=3.0)
    figures, clients = measure(amounts, [0.7, 0.1, 1.0, 0.5, 1.0, 0.5])
    assert clients == 6  # the second push only tells how many there should be
    assert figures["push 50 B"].value == pytest.approx(10 * COUNT)


def test_who_is_slow_gets_what_there_is_time_for(measure: Measure):
    amounts = Amounts(small=COUNT, seconds=10.0)
    figures, clients = measure(amounts, [1.0, 10.0, 5.0])
    assert clients == 3
    assert figures["push 50 B"].value == pytest.approx(COUNT // 20), "500 in ten seconds"


@pytest.mark.parametrize(("seconds", "lost", "pushed"), [
    (0.02, 0, [50, 2500, 2500, 2500]), (0.02, 1, [50, 50, 50]), (1.2, 0, [50, 50, 50]),
    (3.5, 0, [50]),
])  # fmt: skip
def test_who_is_done_soon_gets_more_at_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lost: int, pushed: list[int]
) -> None:
    counts: list[int] = []

    def one(_: System, __: Amounts, count: int) -> Mixed:
        counts.append(count)
        return Mixed(count, 0, lost, seconds)

    monkeypatch.setattr("benchmarks.workloads._mixed", one)
    figures = mixed(cast(System, Peer()), Amounts(mixed=50))
    assert counts == pushed
    assert figures["mixed"].value == pytest.approx(pushed[-1] / seconds)
    # What is lost is told, of all that count; one that grew had lost nothing.
    assert figures["mixed/lost"].value == lost * len(pushed)
