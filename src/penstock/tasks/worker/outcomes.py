"""Outcomes of tasks whose function had no say: timed out, cancelled, lost with its executor."""

from __future__ import annotations

from penstock.tasks.envelope import MAX_PARENTS_TOLD, Failure, Status, TaskOutcome, encode
from penstock.tasks.errors import TaskCancelledError, TaskTimeoutError
from penstock.tasks.worker.jobs import Cause, Job

LOST_KIND = "penstock.tasks.ExecutorLost"


def broken_outcome(job: Job, cause: Cause, worker: str, now_us: int) -> bytes:
    """The packed outcome of a task that ends for this cause."""
    status = Status.CANCELLED if cause is Cause.CANCELLED else Status.FAILED
    outcome = TaskOutcome(
        status, encode(_failure(job, cause)), job.attempt, worker, job.popped_us, 0, now_us,
        job.call.function, [], job.call.submitted_us, 0, job.call.after[:MAX_PARENTS_TOLD], now_us,
    )  # fmt: skip
    return encode(outcome)


def _failure(job: Job, cause: Cause) -> Failure:
    if cause is Cause.TIMEOUT:
        limit_s = job.call.timeout_ms / 1000
        return Failure(_kind(TaskTimeoutError), f"it took longer than {limit_s:g} s and was ended")
    if cause is Cause.CANCELLED:
        return Failure(_kind(TaskCancelledError), "it was cancelled")
    if cause is Cause.LEASE:
        return Failure(LOST_KIND, "its lease was lost, and it was ended")
    return Failure(LOST_KIND, f"its executor died, or was killed, in {job.attempt} attempts")


def _kind(error: type[Exception]) -> str:
    return f"{error.__module__}.{error.__qualname__}"
