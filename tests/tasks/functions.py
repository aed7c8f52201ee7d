"""Tasks that tests submit; workers of tests import this module as users' workers import theirs."""

from __future__ import annotations

from typing import Any

from penstock.tasks.declare import task


@task
def square(x: int) -> int:
    return x * x


@task(retries=3, timeout=30, backoff=0.5, keep=60, rate="100/s")
def careful(x: int) -> int:
    return x


@task(name="stable")
def renamed() -> str:
    return "renamed"


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return [list(args), kwargs]


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def combine(own: int, parents: list[Any], fails: bool = False) -> int:
    """The sum of what succeeded; a parent that did not is not a number."""
    if fails:
        raise ValueError("as told")
    return own + sum(each for each in parents if isinstance(each, int))


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
async def later(x: int) -> int:
    return x + 1


@task
def zeros(size: int) -> bytes:
    return bytes(size)


def undeclared(x: int) -> int:
    return -x


class Holder:
    @staticmethod
    @task
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def of_class(cls) -> None: ...

    def method(self) -> None: ...
