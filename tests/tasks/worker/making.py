"""Jobs for tests of the pure parts."""

from __future__ import annotations

from itertools import count
from typing import Any

from penstock.tasks.envelope import Status, TaskCall
from penstock.tasks.worker.jobs import Ended, Job

_numbers = count(1)


def job(function: str = "f", attempt: int = 1, **terms: Any) -> Job:
    """A job of one message, as a delivery would bring it."""
    number = next(_numbers)
    call = TaskCall(function, b"", number.to_bytes(16, "big"), **terms)
    return Job(number, number, 0, call, b"", attempt, 0)


def done(each: Job, took_us: int = 10) -> Ended:
    """It returned."""
    return Ended(each.number, Status.DONE, b"outcome", took_us)


def raised(each: Job, took_us: int = 10) -> Ended:
    """It raised."""
    return Ended(each.number, Status.FAILED, b"outcome", took_us)
