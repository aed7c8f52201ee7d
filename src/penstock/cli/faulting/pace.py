"""When a client works next, and when it stops."""

from __future__ import annotations

import time
from threading import Event
from typing import NamedTuple


class Orders(NamedTuple):
    """What all workers of a station obey: first nothing new is made, then everything ends."""

    rest: Event
    end: Event


class Pace:
    """Keeps a loop at a rate. Time that was lost is not made up for: after a pause it goes on as
    before, without a burst."""

    def __init__(self, per_second: float) -> None:
        self._seconds_each = 1.0 / per_second
        self._due = time.monotonic()

    def wait(self, count: int, stop: Event) -> bool:
        """Waits until `count` more may be made; False if there is nothing to be made any more."""
        self._due = max(self._due + count * self._seconds_each, time.monotonic())
        return not stop.wait(max(self._due - time.monotonic(), 0.0))
