"""What becomes of a task when an attempt has ended: it is over, or there is another attempt."""

from __future__ import annotations

from collections.abc import Callable

from penstock.tasks.envelope import MAX_BACKOFF_MS, Status
from penstock.tasks.worker.jobs import Cause, Ended, Finish, GiveBack, Job, Retry

LOST_ATTEMPTS = 5  # a task whose executor died is run again, until it was given out so often
MAX_ATTEMPTS_LOST = 10  # beyond its retries: delivered so often, a task is not even begun

Chance = Callable[[], float]


def backoff_ms(job: Job, chance: float) -> int:
    """How long to wait before the next attempt: it doubles each time. `chance` (0 to 1) takes off
    up to half of it, so that tasks which failed together do not come back together."""
    doubled = job.call.backoff_ms << min(job.attempt - 1, 32)
    return int(min(doubled, MAX_BACKOFF_MS) * (1 - chance / 2))


def of_ended(job: Job, ended: Ended, chance: Chance) -> Finish | Retry:
    """The function has returned or raised."""
    if ended.status == Status.DONE:
        return Finish(job, Status.DONE, ended.outcome)
    if job.attempt <= job.call.retries and not job.cancelled:
        return Retry(job, backoff_ms(job, chance()), ended.outcome)
    return Finish(job, Status.FAILED, ended.outcome)


def of_broken(job: Job, cause: Cause, chance: Chance) -> Finish | Retry | GiveBack:
    """The attempt was ended from outside, or its executor has died.

    Death is not the function's failure: a task without retries is run again, too, but not for ever.
    """
    if cause is Cause.CANCELLED or job.cancelled:
        return Finish(job, Status.CANCELLED, None, Cause.CANCELLED)
    if cause is Cause.LEASE:
        return GiveBack(job)
    attempts = job.call.retries + 1
    if cause is Cause.LOST:
        attempts = max(attempts, LOST_ATTEMPTS)
    if job.attempt < attempts:
        delay = backoff_ms(job, chance()) if job.attempt <= job.call.retries else 0
        return Retry(job, delay, None, cause)
    return Finish(job, Status.FAILED, None, cause)


def is_hopeless(job: Job) -> bool:
    """Whether workers have died over it so often that it is not begun again."""
    return job.attempt > job.call.retries + 1 + MAX_ATTEMPTS_LOST
