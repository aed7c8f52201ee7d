"""The world of a simulation: one clock, one source of chance, one line of events."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]

START_US = 1_700_000_000_000_000  # a plausible wall clock, so that absolute times look real
TRACE_LINES = 400


class Event:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """It will not happen."""
        self.action = None


class World:
    """Virtual time and everything that is random. The same seed makes the same world.

    `trace` keeps the last lines for a reader; `digest` covers all of them since the start.
    """

    def __init__(self, seed: int, trace_lines: int = TRACE_LINES) -> None:
        self.random = random.Random(seed)
        self.now_us = START_US
        self.events = 0
        self.trace: deque[str] = deque(maxlen=trace_lines)
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[int, int, Event]] = []
        self._order = count()

    @property
    def elapsed_us(self) -> int:
        """Since the start."""
        return self.now_us - START_US

    def after(self, delay_us: int, action: Action) -> Event:
        """Has something happen in a while; with equal times, in the order of the calls."""
        event = Event(action)
        heappush(self._heap, (self.now_us + max(0, delay_us), next(self._order), event))
        return event

    def run(self, until_us: int, stop: Callable[[], bool] | None = None) -> None:
        """Lets things happen up to a time, or until `stop` says so."""
        while self._heap and self._heap[0][0] <= until_us:
            if stop is not None and stop():
                return
            self.now_us, _, event = heappop(self._heap)
            if event.action is not None:
                self.events += 1
                event.action()
        self.now_us = max(self.now_us, until_us)

    def note(self, text: str) -> None:
        """A line of the trace."""
        line = f"{self.elapsed_us / 1e6:11.6f} {text}"
        self.trace.append(line)
        self._hash.update(line.encode())
        self._hash.update(b"\n")

    @property
    def digest(self) -> str:
        """A hash of the whole trace so far."""
        return self._hash.hexdigest()

    # --- chance ----------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)

    def latency(self, typical_us: int) -> int:
        """A duration with a long tail, around a typical one."""
        return int(typical_us * self.random.lognormvariate(0.0, 0.6)) + 1
