"""Times as buckets, figures of functions, what they come to over all workers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.tasks.watching.overview import overview_of
from penstock.tasks.watching.passages import MAX_FUNCTIONS, OTHERS, Passages
from penstock.tasks.watching.reports import (
    Begun,
    WorkerReport,
    pack_report,
    read_report,
    utilisation,
)
from penstock.tasks.watching.spans import Buckets, added, folded, percentile_us

T0 = 1_800_000_000_000_000
FIGURES = {"ready": 3, "delayed": 1, "held": 2, "leased": 4, "dead": 1, "messages": 11,
           "pushed": 100}  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_percentiles_are_within_an_eighth(times: list[int], share: float) -> None:
    buckets: Buckets = {}
    folded(times, buckets)
    index = max(-int(-share * len(times) // 1), 1) - 1
    exact = sorted(times)[min(index, len(times) - 1)]
    assert percentile_us(buckets, share) == pytest.approx(exact, rel=1 / 8, abs=1)


def test_counts_add_up_whatever_is_folded_first() -> None:
    together: Buckets = {}
    folded([0, 5, 5, 1000], together)
    first: Buckets = {}
    second: Buckets = {}
    folded([0, 5], first)
    folded([1000, 5], second)
    added(first, second)
    assert first == together
    assert percentile_us({}, 0.5) == 0
    assert percentile_us(together, 0.01) == 0


def test_every_attempt_is_counted_once() -> None:
    passages = Passages()
    for number in range(10_000):
        passages.ended("m:f", 100, 10 + number % 2)
    passages.ended("m:g", 7, 9)
    passages.failed("m:g")
    told = passages.told()
    assert (told["m:f"].attempts, told["m:g"].attempts, told["m:g"].failed) == (10_000, 1, 1)
    assert sum(told["m:f"].waited.values()) == sum(told["m:f"].took.values()) == 10_000
    assert passages.told() == told


def test_an_attempt_that_was_ended_from_outside_counts_too() -> None:
    passages = Passages()
    passages.broken("slow")
    passages.ended("slow", 1, 2)
    told = passages.told()["slow"]
    assert (told.attempts, told.failed) == (2, 1)
    assert sum(told.took.values()) == 1, "nobody knows how long the other took"


def test_functions_beyond_the_bound_are_told_of_together() -> None:
    passages = Passages()
    for number in range(MAX_FUNCTIONS + 7):
        passages.ended(f"m:f{number}", 1, 1)
        passages.failed(f"m:f{number}")
    told = passages.told()
    assert len(told) <= MAX_FUNCTIONS + 1
    assert told[OTHERS].attempts == told[OTHERS].failed == 7
    assert sum(each.attempts for each in told.values()) == MAX_FUNCTIONS + 7


def test_utilisation_is_a_share() -> None:
    assert utilisation(5, 10, 1) == 0.5
    assert utilisation(5, 10, 2) == 0.25
    assert utilisation(30, 10, 2) == 1.0
    assert utilisation(-1, 10, 2) == 0.0
    assert utilisation(1, 0, 2) == 1.0


def report(name: str, attempts: int) -> WorkerReport:
    passages = Passages()
    for _ in range(attempts):
        passages.ended("m:f", 2_000, 1_000)
    return WorkerReport(
        name, "process", 2, T0, T0 + 10_000_000, executors=2, figures={"done": attempts},
        running=[Begun(b"t" * 16, "m:f", 1, 1, T0)], busy_us=15_000_000, utilisation=0.5,
        passages=passages.told(),
    )  # fmt: skip


def test_a_report_comes_back_the_same_and_hostile_ones_raise() -> None:
    assert read_report(pack_report(report("w", 3))) == report("w", 3)
    for hostile in (b"", b"\x80", b"\xff" * 9, pack_report(report("w", 1))[:-3]):
        with pytest.raises(ProtocolError):
            read_report(hostile)


def test_an_overview_joins_what_workers_say() -> None:
    seen = overview_of(FIGURES, 5, [report("b", 10), report("a", 30)], T0 + 12_000_000)
    assert seen.counts == {"ready": 3, "delayed": 1, "held": 2, "leased": 4, "dead": 1}
    assert (seen.gangs, seen.submitted, seen.left) == (5, 100, 90)
    (row,) = seen.functions
    assert (row.function, row.attempts) == ("m:f", 40)
    assert row.took_p50_us == pytest.approx(1_000, rel=1 / 8)
    assert row.waited_p99_us == pytest.approx(2_000, rel=1 / 8)
    first, second = seen.workers
    assert (first.worker, second.worker) == ("a", "b")
    assert (first.running, first.done, first.lifelong, first.seen_us) == (1, 30, 0.75, 2_000_000)


def test_rates_are_of_the_time_between_two_looks() -> None:
    before = overview_of(FIGURES, 0, [], T0)
    now = overview_of({**FIGURES, "pushed": 160, "messages": 31}, 0, [], T0 + 2_000_000)
    now.compare(before)
    assert (now.submitted_rate, now.left_rate) == (30.0, 20.0)
