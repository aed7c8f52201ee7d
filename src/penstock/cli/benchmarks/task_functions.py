"""What the worker of the benchmarks runs."""

from __future__ import annotations

import time

from penstock.tasks.declare import task


def plain_null(item: int) -> int:
    """Nothing."""
    return item


@task
def null(item: int) -> int:
    """Nothing."""
    return item


@task
def nap(seconds: float) -> float:
    """Sleeps: a task of a known length that needs no processor."""
    time.sleep(seconds)
    return seconds
