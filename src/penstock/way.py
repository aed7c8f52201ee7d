"""Making way for other processes while there is nothing to do but to look for what comes next.

Whoever looks again and again, instead of sleeping, keeps its core awake, and others away from it:
also those that it waits for, or that wait for what it has just sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LONG_S = 250e-6  # a client that takes an answer or a delivery needs less: others want the core
SHORTEST_REST, LONGEST_REST = 8, 1024  # times without it that follow; more every time
CALM = 64  # times that it did not take long, after which the next rest is half as long
# Only time that nobody else wants is used then.
give_way: Callable[[], object] = getattr(os, "sched_yield", time.monotonic)


class Way:
    """The habit of one loop.

    Whoever makes way comes last. Where others want the core for as long as they can have it, that
    takes milliseconds: the more often it takes longer than `LONG_S`, the more rarely it is done.
    `clock_ns` and `give` are those of the system, unless a test brings its own.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        give: Callable[[], object] = give_way,
    ) -> None:
        self._clock_ns = clock_ns
        self._give = give
        self._resting = 0
        self._next_rest = SHORTEST_REST
        self._calm = 0

    def make(self) -> None:
        """Whoever waits for this core may have it now."""
        if self._resting:
            self._resting -= 1
            return
        started_ns = self._clock_ns()
        self._give()
        if self._clock_ns() - started_ns > LONG_S * 1e9:
            self._resting, self._calm = self._next_rest, 0
            self._next_rest = min(2 * self._next_rest, LONGEST_REST)
            return
        self._calm += 1
        if self._calm >= CALM:
            self._next_rest, self._calm = max(self._next_rest // 2, SHORTEST_REST), 0
