"""Turning an operation (see `steps`) into a method of the blocking or of the asyncio classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.client.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound="Runs")


class Runs:
    """Base of everything that has operations: `_run` performs their steps.

    In the blocking shell it returns the result, in the asyncio shell a coroutine of it.
    """

    _run: Callable[[Steps[Any]], Any]


def blocking(
    operation: Callable[Concatenate[Owner, P], Steps[T]],
) -> Callable[Concatenate[Owner, P], T]:
    """The operation as a method that returns its result."""

    @functools.wraps(operation)
    def method(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._run(operation(self, *args, **kwargs))
        return result

    return method


def awaitable(
    operation: Callable[Concatenate[Owner, P], Steps[T]],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """The operation as a method whose result is awaited."""

    @functools.wraps(operation)
    def method(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        outcome: Coroutine[Any, Any, T] = self._run(operation(self, *args, **kwargs))
        return outcome

    return method
