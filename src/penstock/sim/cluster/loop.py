"""An asyncio event loop on the clock of the world: the production client runs in it as it is.

Every client process has a loop of its own. It never blocks: whatever the world does to the process
(a timer, bytes that arrive) is done through `enter`, which runs all that follows from it at the
same virtual time.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import ceil
from typing import Any, Protocol, TypeVar

from penstock.sim.world import START_US, World

MAX_TURNS = 100_000  # callbacks in one go: more means that the process never sleeps
MAX_BURIALS = 1000  # rounds until all that was cancelled has ended

T = TypeVar("T")


class Dialer(Protocol):
    """Where connections of a process come from."""

    async def dial(self, protocol: asyncio.BaseProtocol, host: str, port: int) -> asyncio.Transport:
        """Connects a protocol to an address; OSError if nobody is there."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process. `failed` is told of exceptions that nobody caught."""

    def __init__(self, world: World, dialer: Dialer, failed: Callable[[str], None]) -> None:
        self._world = world
        self._dialer = dialer
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were made
        self._alive = True

    # --- the world's side ------------------------------------------------------------------

    def enter(self, action: Callable[..., object], *args: object) -> None:
        """Does something to the process, and all that follows from it now; unless it is dead."""
        if self._alive:
            self.call_soon(action, *args)
            self._run()

    def _run(self) -> None:
        ready, turns = self._ready, 0
        events._set_running_loop(self)
        try:
            while ready:
                turns += 1
                if turns > MAX_TURNS:
                    ready.clear()
                    self._failed("the client never sleeps: one callback follows another")
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)

    def kill(self) -> None:
        """The process is gone. Its coroutines are ended here and now, so that nothing of them runs
        when memory happens to be freed; what they do then has no effect any more."""
        self._alive = False
        self._ready.clear()
        for _ in range(MAX_BURIALS):
            if not self._tasks:
                return
            for task in list(self._tasks):
                task.cancel()
            self._run()
        raise AssertionError("a task of a killed process does not end")

    # --- asyncio ---------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the start of the world."""
        return (self._world.now_us - START_US) / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        return self._set_timer(ceil(delay * 1e6), callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        wait_us = ceil(when * 1e6 - (self._world.now_us - START_US))
        return self._set_timer(wait_us, callback, args, context)

    def _set_timer(
        self, wait_us: int, callback: Callable[..., object], args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        """The wait was rounded up: a timer that rings a moment too early is set again and again."""
        when = self.time() + wait_us / 1e6
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self._alive:
            self._world.after(wait_us, lambda: self._ring(handle))
        return handle

    def _ring(self, handle: asyncio.TimerHandle) -> None:
        if self._alive and not handle.cancelled():
            self._ready.append(handle)
            self._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio: the timer rings in vain."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        protocol = protocol_factory()
        return await self._dialer.dial(protocol, host, port), protocol

    def spawn(self, work: Coroutine[Any, Any, T]) -> None:
        """Starts a task from outside."""
        self.enter(self.create_task, work)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._alive:
            error = context.get("exception")
            self._failed(f"{context.get('message')}: {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._alive
