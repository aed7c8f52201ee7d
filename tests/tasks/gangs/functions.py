"""Functions that gangs of the tests run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from penstock.tasks.declare import task
from penstock.tasks.gangs import AsyncGang, Gang


@task
def simulate(gang: Gang, number: int, seconds: float) -> tuple[int, int, float, float]:
    """Who ran it, and from when to when: all members are there at the same time."""
    began = time.monotonic()
    gang.barrier(30)
    time.sleep(seconds)
    numbers = gang.gather((gang.rank, number))
    assert numbers == [(rank, number) for rank in range(gang.size)]
    return gang.rank, os.getpid(), began, time.monotonic()


@task
def share(gang: Gang) -> list[Any]:
    told = gang.broadcast({"from": gang.rank, "to": gang.addresses})
    return [gang.rank, gang.size, gang.manager, told, gang.gather(gang.rank * 10)]


@task
async def share_async(gang: AsyncGang) -> list[Any]:
    await gang.barrier()
    return [gang.rank, await gang.broadcast(gang.rank), await gang.gather(gang.attempt)]


@task(retries=2, backoff=0.01)
def fail_twice(gang: Gang) -> int:
    """Of the last member, the first two attempts fail; the others wait for it."""
    if gang.rank == gang.size - 1 and gang.attempt < 3:
        raise ValueError(f"attempt {gang.attempt}")
    gang.barrier()
    return gang.attempt


@task
def fail(gang: Gang) -> None:
    gang.barrier()
    if gang.rank == 1:
        raise ValueError("on purpose")
    gang.barrier()


@task
def leave_early(gang: Gang) -> None:
    if gang.manager:
        gang.barrier()


@task
def large(gang: Gang, given: bytes = b"") -> bytes:
    """Too large for a meeting."""
    assert not any(given[:: 1 << 16])
    return bytes((1 << 20) - 1) + bytes([gang.rank])


@task
def lengths(values: list[bytes]) -> list[int]:
    """Of what a gang has returned."""
    return [len(each) for each in values]


@task(timeout=0.5)
def slow(gang: Gang) -> None:
    """The manager waits for a member that sleeps; it hears that the gang is over."""
    if not gang.manager:
        time.sleep(1.5)
    gang.barrier()


@task
def die_once(gang: Gang, folder: str) -> int:
    """The process of the last member dies in the first attempt."""
    gang.barrier()
    mark = Path(folder) / "died"
    if gang.rank == gang.size - 1 and not mark.exists():
        mark.touch()
        os._exit(3)
    gang.barrier()
    return gang.attempt


@task
def spin_and_fail(gang: Gang, folder: str, fails: bool = True) -> None:
    """The manager keeps the interpreter busy for ever; the other one fails."""
    if gang.manager:
        (Path(folder) / "spinning").write_text(str(os.getpid()))
        gang.barrier()
        while True:
            pass
    gang.barrier()
    if fails:
        raise ValueError("on purpose")
    time.sleep(60)


@task
def plain() -> str:
    return "plain"
