"""Tasks that the tests of watching run, in threads of the test's own process."""

from __future__ import annotations

import threading

from penstock.tasks.declare import task

begun = threading.Event()
go_on = threading.Event()


def reset() -> None:
    """`wait` waits again."""
    begun.clear()
    go_on.clear()


@task
def price(item: int) -> int:
    return 10 * item


@task
def total(prices: list[int]) -> int:
    return sum(prices)


@task
def wait() -> str:
    """Says that it has begun, and ends when it is told to."""
    begun.set()
    assert go_on.wait(60)
    return "waited"


@task
def refuse(item: int) -> None:
    raise ValueError(f"no price for item {item}")


@task(rate="1/h")
def seldom() -> None: ...
