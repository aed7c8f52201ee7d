"""What the parts of a worker tell each other: jobs, how they ended, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from penstock.tasks.envelope import Status, TaskCall


@dataclass(slots=True, eq=False)
class Job:
    """One delivered task in the hands of this worker."""

    number: int
    """Counts the jobs of this worker."""
    delivery: int
    row: int
    """Which message of which delivery it is."""
    call: TaskCall
    packed: bytes
    """The call as it came: executors read it themselves."""
    attempt: int
    popped_us: int
    shard: int = -1
    """Where its message is, in a cluster: what is checked together must be in one shard."""
    parents: list[bytes] = field(default_factory=list)
    """Outcomes of the tasks whose results are arguments."""
    expected_us: int = 0
    """How long it was thought to take when it was given to an executor."""
    ready_us: int = 0
    """Since when it waits for an executor."""
    moved: bool = False
    """Another host has sent it here, for its data."""
    cancelled: bool = False
    lost: bool = False
    """Its lease is: somebody else has it, or will."""

    @property
    def waited(self) -> bool:
        """Whether the queue kept it back, for other tasks or for a time."""
        return bool(self.call.after or self.call.delay_ms)


class Ended(NamedTuple):
    """An attempt is over, says the executor: the function has returned (DONE) or raised."""

    number: int
    status: int
    outcome: bytes
    """The packed `TaskOutcome`."""
    took_us: int
    waited_us: int = 0
    """From when it was ready until it began."""


class Running(NamedTuple):
    """What an executor is doing at this moment."""

    number: int
    began_us: int
    """By the clock that dispatch goes by."""


class Cause(Enum):
    """Why an attempt ended without the function's own word."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its executor is."""
    LEASE = "lease"
    """That is lost."""


class Send(NamedTuple):
    """Give these jobs to an executor: it runs them in this order."""

    executor: int
    jobs: list[Job]


class TakeBack(NamedTuple):
    """Ask an executor for jobs that it has not begun: so many, those that it would begin last."""

    executor: int
    jobs: int


class Kill(NamedTuple):
    """End an executor if it is still at this job. It will be missed, or spared."""

    executor: int
    number: int


class Finish(NamedTuple):
    """A task is over: settle it together with its outcome, which may be made from the cause."""

    job: Job
    status: Status
    outcome: bytes | None
    cause: Cause | None = None


class Retry(NamedTuple):
    """An attempt failed: the task is delivered again after a delay, with the attempt counted."""

    job: Job
    delay_ms: int
    outcome: bytes | None = None
    """What is told of the attempt, or why it has nothing to tell. Neither: it was ended with its
    worker, or for the sake of another."""
    cause: Cause | None = None


class GiveBack(NamedTuple):
    """Nobody has begun it here: it is somebody else's, now or after a delay."""

    job: Job
    delay_ms: int = 0


Effect = Send | TakeBack | Kill | Finish | Retry | GiveBack
