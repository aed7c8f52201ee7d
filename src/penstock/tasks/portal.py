"""An event loop in a thread of its own, for programs that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from penstock.client.closing import end_tasks
from penstock.errors import ClosedError

T = TypeVar("T")


class Portal:
    """The way into a loop that runs in a thread in the background, from its making to `close`."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def inside(self) -> bool:
        """Whether the caller is on the loop's own thread, and must not wait for it."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Has the loop do this, and waits for it; from any other thread."""
        return self.result(self.start(work))

    def result(self, future: Future[T]) -> T:
        """Waits for what was started; ClosedError if the loop ends before."""
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("the app was closed meanwhile") from None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Has the loop do this."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, callback: Callable[[], object]) -> None:
        """Has the loop call this as soon as it can."""
        self._loop.call_soon_threadsafe(callback)

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Has the loop call this after a while; on its own thread only."""
        self._loop.call_later(seconds, callback)

    def close(self) -> None:
        """Ends the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        end_tasks(self._loop)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
