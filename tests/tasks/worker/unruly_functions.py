"""Tasks that let out what ends a coroutine, a thread or a process, or leave something behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock.tasks.declare import task


@task
def tame(number: int = 1) -> int:
    return number


@task
async def tame_async() -> int:
    """Gives other coroutines of its loop their turn."""
    for _ in range(9):
        await asyncio.sleep(0)
    return 1


@task
async def leak_cancellation() -> None:
    """It was another task that was cancelled."""
    other = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    other.cancel()
    await other


@task
async def cancel_itself(late: bool) -> None:
    own = asyncio.current_task()
    assert own is not None
    own.cancel()
    if not late:
        await asyncio.sleep(0)


@task
def raise_cancellation() -> None:
    raise asyncio.CancelledError


@task
def leave() -> None:
    sys.exit("enough")


@task
async def leave_async() -> None:
    await asyncio.sleep(0)
    sys.exit("enough")


async def _leave_later() -> None:
    await asyncio.sleep(0)
    sys.exit("enough")


@task
async def leave_in_a_task() -> None:
    await asyncio.get_running_loop().create_task(_leave_later())


_left: list[asyncio.Task[None]] = []


@task
async def leave_afterwards() -> int:
    """Returns; a coroutine that it has left to the loop calls `sys.exit` when others run."""
    _left.append(asyncio.get_running_loop().create_task(_leave_later()))
    return 1


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
async def interrupt_async() -> None:
    raise KeyboardInterrupt


@task
async def stop_the_loop() -> int:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return 1


@task
def raise_stop_iteration() -> None:
    next(iter([]))


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        sys.exit("not even that")


@task
def raise_unspeakable() -> None:
    raise _UnspeakableError


@task
async def cancel_all() -> None:
    """Ends whatever else its loop has: the habit of programs that own theirs."""
    for each in asyncio.all_tasks():
        each.cancel()
    await asyncio.Event().wait()


def _open(pipe: str) -> None:
    Path(pipe).write_bytes(b"")


@task
async def wait_to_be_cancelled(begun: str, ended: str) -> None:
    """Opens pipes, for those who wait for that."""
    try:
        _open(begun)
        await asyncio.Event().wait()
    finally:
        _open(ended)
