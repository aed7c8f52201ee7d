"""The provisioner by a simulated clock: loads that are bursty, steady, and none."""

from __future__ import annotations

import pytest
from tests.tasks.provision.simulated import TASKS_A_SECOND, SimulatedCloud, simulate

from penstock.errors import InvalidError, UnavailableError
from penstock.tasks.provision import Leaving, Ledger, Policy, Provisioner, Terms

PERIOD_S = 600.0
TERMS = Terms(
    minimum=0, maximum=8, growth=50, backlog=500, period_s=PERIOD_S, price=1.0, idle_s=30.0
)


def test_nothing_to_do_costs_nothing() -> None:
    run = simulate(TERMS, lambda second: 0, 3600)
    assert max(run.workers) == 0
    assert run.provisioner.ledger.report(3600.0).cost == 0


def test_the_minimum_is_there_all_the_time_and_never_paid_twice() -> None:
    terms = Terms(minimum=2, maximum=4, period_s=PERIOD_S, price=1.0, idle_s=30.0)
    run = simulate(terms, lambda second: 0, 3600)
    assert set(run.workers) == {2}
    report = run.provisioner.ledger.report(3600.0)
    assert (report.workers, report.periods, report.cost) == (2, 12, 12.0)
    assert report.used == 0


def test_a_steady_load_gets_the_workers_that_it_needs() -> None:
    needed = 3
    run = simulate(TERMS, lambda second: needed * TASKS_A_SECOND, 7200)
    late = run.workers[3600:]
    assert needed <= min(late)
    assert max(run.workers) <= TERMS.maximum
    assert max(run.waiting[3600:]) <= TERMS.backlog * needed
    assert run.provisioner.ledger.report(7200.0).saved > 0.2


def test_bursts_start_workers_which_end_with_their_paid_time() -> None:
    def bursts(second: int) -> int:
        return 60 if second % 1800 < 60 else 0

    run = simulate(TERMS, bursts, 3 * 1800)
    assert run.waiting[-1] == 0
    assert 2 <= max(run.workers) <= TERMS.maximum
    assert run.workers[1790] == 0, "nobody is left before the next burst"
    report = run.provisioner.ledger.report(3 * 1800.0)
    assert report.periods == report.workers, "nobody was paid for a second period"
    assert report.cost == report.fixed_cost / 3, "of three periods, two were not paid for"
    assert 0 < report.used < 1


def test_workers_end_near_the_end_of_a_period_and_not_before() -> None:
    run = simulate(TERMS, lambda second: 200 if second == 10 else 0, 1800)
    assert run.cloud.lifetimes_s
    for lived_s in run.cloud.lifetimes_s:
        into_s = lived_s % PERIOD_S
        assert PERIOD_S * 0.9 <= into_s + 1 <= PERIOD_S


def test_a_worker_with_work_is_not_ended_at_the_end_of_its_period() -> None:
    leaving = Leaving(100.0, idle_s=5.0, began_s=0.0)
    for second in range(85):
        leaving.seen(True, float(second))
    leaving.seen(False, 92.0)
    assert not leaving.should_leave(96.0), "not idle for long enough"
    assert leaving.should_leave(97.0)
    leaving.seen(True, 98.0)
    assert not leaving.should_leave(99.0)
    assert not leaving.should_leave(150.0)
    leaving.seen(False, 110.0)
    assert not leaving.should_leave(150.0), "half of the next period is paid and left"
    assert leaving.should_leave(190.0)


# what waited before, what waits now, workers -> how many are started
LOOKS = [
    (0, 0, 0, 0),
    (0, 1, 0, 1),  # somebody must do it
    (0, 49, 1, 0),  # grows by less than the threshold
    (0, 50, 1, 1),
    (0, 150, 1, 3),
    (500, 500, 1, 0),
    (501, 501, 1, 1),  # does not grow, but one worker has too much before it
    (2000, 1000, 2, 0),  # shrinks
    (0, 100_000, 2, 6),  # up to the maximum
    (0, 100_000, 8, 0),
]


@pytest.mark.parametrize(("before", "now", "workers", "started"), LOOKS)
def test_what_is_started_at_a_look(before: int, now: int, workers: int, started: int) -> None:
    policy = Policy(TERMS)
    policy.wanted(before, TERMS.maximum)
    assert policy.wanted(now, workers) == started


def test_paid_periods_are_those_that_were_begun() -> None:
    ledger = Ledger(TERMS)
    ledger.began("a", 0.0)
    ledger.began("b", 10.0)
    ledger.worked("a", 300.0)
    ledger.ended("a", 600.0)
    ledger.ended("b", 611.0)
    report = ledger.report(5000.0)
    assert (report.periods, report.cost, report.most_at_once) == (3, 3.0, 2)
    assert report.used == 300 / 1800
    assert report.fixed_cost == 9 * 8


def test_workers_that_end_at_once_are_not_started_for_ever() -> None:
    cloud = SimulatedCloud(TERMS)
    provisioner = Provisioner(TERMS, cloud)

    def look_and_lose() -> None:
        for second in range(100):
            provisioner.look(10, float(second))
            cloud.workers.clear()

    with pytest.raises(UnavailableError, match="before they were ready"):
        look_and_lose()


def test_stopping_stops_all() -> None:
    cloud = SimulatedCloud(TERMS)
    provisioner = Provisioner(TERMS, cloud)
    provisioner.look(10_000, 0.0)
    assert len(cloud.workers) == 8
    provisioner.stop()
    cloud.second()
    status = provisioner.look(0, 1.0)
    assert (len(status.ended), status.workers) == (8, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"minimum": -1}, {"minimum": 3, "maximum": 2}, {"maximum": 0}, {"growth": 0},
        {"backlog": 0}, {"period_s": 0.0}, {"price": -1.0}, {"idle_s": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(InvalidError):
        Terms(**wrong)
