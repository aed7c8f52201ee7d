"""Waits that end after a time, with one timer of the event loop for all of them.

Nearly every wait ends with an answer long before its time is up. A timer for each costs the loop as
much as sending a request; here most cost an entry in a dict, and the timer stays as it is.
"""

from __future__ import annotations

import asyncio

_EARLY_S = 0.001  # a loop may count in milliseconds: what is due within one is due


class Deadlines:
    """Ends the waits of one connection whose time is up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_s: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when it is due, if there is one

    def add(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """Gives the waiter its result after so many seconds, unless it is removed before."""
        due_s = self._loop.time() + seconds
        self._due_s[waiter] = due_s
        if self._timer is None or due_s < self._timer_s:
            self._set_timer(due_s)

    def remove(self, waiter: asyncio.Future[None]) -> None:
        """Its wait is over, in whichever way. The timer stays: the next wait may need it."""
        self._due_s.pop(waiter, None)

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(due_s, self._ring), due_s

    def _ring(self) -> None:
        self._timer = None
        now_s = self._loop.time() + _EARLY_S
        for waiter in [each for each, due_s in self._due_s.items() if due_s <= now_s]:
            self.remove(waiter)
            if not waiter.done():
                waiter.set_result(None)
        if self._due_s:
            self._set_timer(min(self._due_s.values()))
