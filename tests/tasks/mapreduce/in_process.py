"""Tasks without a fabric: each is run when it is submitted, by the caller's own thread.

What goes in and comes out is packed and unpacked as it would be on its way to a worker and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from penstock.tasks.codec import Codec


class InProcess:
    """A stand-in for a task app."""

    def __init__(self, attempts: int = 1) -> None:
        """`attempts`: every task is run so often, and the last result counts."""
        self._codec = Codec(lambda _: True)
        self._attempts = attempts
        self.calls: list[str] = []

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append(function.__name__)
        try:
            future.set_result(self._run(function, [self._resolved(each) for each in args]))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], /, *iterables: Iterable[Any]) -> Iterator[Any]:
        for args in zip(*iterables, strict=False):
            yield self.submit(function, *args).result()

    def _run(self, function: Callable[..., Any], args: list[Any]) -> Any:
        sent = self._codec.unpack(self._codec.pack(args))
        results = [self._codec.pack(function(*sent)) for _ in range(self._attempts)]
        return self._codec.unpack(results[-1])

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Future):
            return value.result()
        return [self._resolved(each) for each in value] if isinstance(value, list) else value
