"""`concurrent.futures.Executor` on a task set: existing code runs on workers by changing a line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, wait
from typing import Any

from penstock.tasks.app import TaskApp
from penstock.tasks.calls import CallOptions
from penstock.tasks.futures import TaskFuture
from penstock.tasks.mapping import BUNDLE

_UNKEPT = CallOptions(keep=0.0)  # nobody but the holder of the future can ask for the result


class TaskExecutor(Executor):
    """Runs functions on the workers of a task set. They are found there by their import paths:
    functions that were not declared as tasks need workers that allow their module."""

    def __init__(self, app: TaskApp) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._pending: set[TaskFuture[Any]] = set()
        self._shut = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> TaskFuture[Any]:
        """Has a worker call `fn`; RuntimeError after `shutdown`."""
        self._check()
        future = self._app.submit_call((fn, args, kwargs), _UNKEPT)
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._forget)
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = BUNDLE,
    ) -> Iterator[Any]:
        """Results in order. Unlike other executors, this takes items while results are taken, so
        that endless iterables and large ones do no harm."""
        self._check()
        return self._app.map(fn, *iterables, batch=chunksize).results(timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more; waits for what was submitted, unless told not to. Workers and the app go
        on. With `cancel_futures`, asks that what has not ended be cancelled."""
        self._shut = True
        with self._lock:
            pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            _wait_for(pending)

    def _forget(self, future: Any) -> None:
        with self._lock:
            self._pending.discard(future)

    def _check(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")


def _wait_for(futures: list[TaskFuture[Any]]) -> None:
    wait(futures)
