"""Tasks that the tests of the worker run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from penstock.tasks.declare import task


@task
def double(number: int) -> int:
    return 2 * number


@task
def add(*numbers: int) -> int:
    return sum(numbers)


@task
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task
async def nap_async(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def fail_until(path: str, attempts: int) -> int:
    """Succeeds at the attempt of this number; a file counts."""
    counter = Path(path)
    count = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(count))
    if count < attempts:
        raise RuntimeError(f"attempt {count}")
    return count


@task
def die(path: str) -> str:
    """Takes its process along, the first time."""
    marker = Path(path)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@task
def wait_for(path: str, begun: str) -> str:
    """Says that it has begun, and ends when a file is there."""
    Path(begun).touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return path


@task(rate="20/s")
def limited(number: int) -> int:
    return number


def undeclared(number: int) -> int:
    return number
