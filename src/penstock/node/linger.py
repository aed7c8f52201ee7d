"""Staying awake for a moment after an answer, where the next request follows at once.

A client that waits for each answer sends its next request some ten microseconds after it. Going to
sleep in between and being woken costs a node more than that. So a loop whose requests have lately
come so soon goes round idle for a short while; if they come later, it sleeps as any other.

Each time round it makes way. A client that was just sent something may have been woken on this very
core, and would get it only when the loop has gone to sleep, or has had its turn of milliseconds.

That moment is also used to tidy up, if that is due; whether the loop stays awake after it or not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock.node.tidy import Tidy
from penstock.way import Way

# A request that comes after 30 is found to have come after 80 to 110 by a loop that had to be woken
# for it: with less than that, one that has gone to sleep once would not stay awake again.
AWAKE_US = 120
MOST_AWAKE_US = 10_000  # that can be asked for
_MEMORY = 0.25  # the weight of the last gap
_LONGEST_REMEMBERED = 8  # times as long as it would stay awake: so much is one gap remembered as


class Linger:
    """Of one loop. `idle` says whether there is nothing at all to do: a thread that is at work
    must not be kept from it. `awake_us` is how long it stays awake, if requests come that soon."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle: Callable[[], bool],
        clock: Callable[[], int] = time.perf_counter_ns,
        way: Way | None = None,
        awake_us: int = AWAKE_US,
    ) -> None:
        self._awake_us = awake_us
        self._longest_us = _LONGEST_REMEMBERED * awake_us
        self._way = way or Way()
        self._loop = loop
        self._idle = idle
        self._clock = clock
        self._answered_ns = 0
        self._expected_us: float = self._longest_us
        self._until_ns = 0
        self._turning = False
        self.tidy: Tidy | None = None

    def requested(self) -> None:
        """A request has come."""
        if self._answered_ns:
            gap_us = (self._clock() - self._answered_ns) / 1000
            if gap_us > self._longest_us:
                gap_us = self._longest_us
            self._expected_us += _MEMORY * (gap_us - self._expected_us)
            self._answered_ns = 0

    def answered(self) -> None:
        """Something was sent: the next request may follow from it."""
        self._answered_ns = self._clock()
        if self._expected_us < self._awake_us:
            self._until_ns = self._answered_ns + self._awake_us * 1000
        elif self.tidy is None or not self.tidy.is_due():
            return
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = self._idle()
        if not self._turning:
            return
        if self.tidy is not None and self.tidy.is_due():
            self.tidy.collect()
        self._turning = self._clock() < self._until_ns
        if self._turning:
            self._way.make()
            self._loop.call_soon(self._turn)
