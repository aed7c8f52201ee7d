"""What becomes of a task when an attempt has ended, as a table that a person can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.worker.making import done, job, raised

from penstock.tasks.envelope import MAX_BACKOFF_MS, Status, read_failure, read_outcome
from penstock.tasks.worker.jobs import Cause, Finish, GiveBack, Retry
from penstock.tasks.worker.outcomes import broken_outcome
from penstock.tasks.worker.verdicts import (
    LOST_ATTEMPTS,
    MAX_ATTEMPTS_LOST,
    backoff_ms,
    is_hopeless,
    of_broken,
    of_ended,
)


def never() -> float:
    return 0.0


@pytest.mark.parametrize(
    ("retries", "attempt", "again"),
    [(0, 1, False), (1, 1, True), (1, 2, False), (3, 3, True), (3, 4, False), (3, 9, False)],
)
def test_a_function_that_raised(retries: int, attempt: int, again: bool):
    each = job(attempt=attempt, retries=retries, backoff_ms=100)
    verdict = of_ended(each, raised(each), never)
    timeout = of_broken(each, Cause.TIMEOUT, never)
    if again:
        delay_ms = 100 << (attempt - 1)
        assert verdict == Retry(each, delay_ms, b"outcome")
        assert timeout == Retry(each, delay_ms, None, Cause.TIMEOUT)
    else:
        assert verdict == Finish(each, Status.FAILED, b"outcome")
        assert timeout == Finish(each, Status.FAILED, None, Cause.TIMEOUT)


def test_a_function_that_returned():
    each = job(attempt=9)
    assert of_ended(each, done(each), never) == Finish(each, Status.DONE, b"outcome")


def test_death_is_not_the_functions_failure_but_has_an_end():
    for attempt in range(1, LOST_ATTEMPTS):
        each = job(attempt=attempt)
        assert of_broken(each, Cause.LOST, never) == Retry(each, 0, None, Cause.LOST)
    last = job(attempt=LOST_ATTEMPTS)
    assert of_broken(last, Cause.LOST, never) == Finish(last, Status.FAILED, None, Cause.LOST)
    patient = job(attempt=LOST_ATTEMPTS, retries=LOST_ATTEMPTS, backoff_ms=1)
    assert isinstance(of_broken(patient, Cause.LOST, never), Retry)


def test_what_is_cancelled_is_not_tried_again():
    each = job(retries=5)
    each.cancelled = True
    for cause in Cause:
        assert of_broken(each, cause, never).job is each
        assert isinstance(of_broken(each, cause, never), Finish)
    assert isinstance(of_ended(each, raised(each), never), Finish)
    assert of_ended(each, done(each), never) == Finish(each, Status.DONE, b"outcome")


def test_a_task_that_has_killed_many_workers_is_not_begun():
    assert not is_hopeless(job(attempt=MAX_ATTEMPTS_LOST + 1))
    assert is_hopeless(job(attempt=MAX_ATTEMPTS_LOST + 2))
    assert not is_hopeless(job(attempt=MAX_ATTEMPTS_LOST + 2, retries=1))


@given(st.integers(0, MAX_BACKOFF_MS), st.integers(1, 2_000), st.floats(0, 1))
def test_back_off_doubles_up_to_a_limit(first_ms: int, attempt: int, chance: float):
    waits = backoff_ms(job(attempt=attempt, backoff_ms=first_ms), chance)
    whole = min(first_ms * 2 ** min(attempt - 1, 32), MAX_BACKOFF_MS)
    assert whole // 2 <= waits <= whole


@pytest.mark.parametrize("cause", Cause)
def test_outcomes_say_why(cause: Cause):
    each = job(attempt=2, timeout_ms=1_500)
    outcome = read_outcome(broken_outcome(each, cause, "w", 9))
    wanted = Status.CANCELLED if cause is Cause.CANCELLED else Status.FAILED
    assert (outcome.status, outcome.attempt, outcome.worker) == (wanted, 2, "w")
    text = read_failure(outcome.result).text
    told = {
        Cause.TIMEOUT: "1.5 s", Cause.CANCELLED: "cancelled", Cause.LOST: "2 attempts",
        Cause.LEASE: "lease",
    }  # fmt: skip
    assert told[cause] in text


def test_what_was_ended_for_its_lease_is_somebody_elses():
    each = job(retries=5)
    assert of_broken(each, Cause.LEASE, never) == GiveBack(each)
