"""Waiting for an answer that is due in a moment without going to sleep for it.

Waking a core that has gone to sleep costs more than a whole small request: half of the time of a
push went there. So a client that has lately got its answers within half a millisecond looks
for the next one again and again for a short while, before it lets the kernel wait. If answers take
longer than that, or if there is only one core, it does not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from penstock.way import give_way

LONGEST_SPIN_S = 400e-6  # in one wait
SOON_S = 450e-6  # beyond this, waking up is small beside the wait
CROWDED_S = 1e-3  # an answer that late was kept waiting for a core, perhaps by this very process
GIVEN_AWAY_S = 50e-6  # so long between two looks: another process wanted the core, and got it
SHORTEST_REST, LONGEST_REST = 8, 64  # waits without looking that follow; longer every time
CALM_WAITS = 50  # answers in time, after which the next rest is a short one again
_MEMORY = 0.25  # the weight of the last wait
_LONGEST_REMEMBERED_S = 2e-3  # so that one idle hour is forgotten after a few answers


class Spin:
    """The habit of one connection; not thread safe, as only one thread receives at a time.

    `clock` is that of the system, unless a test brings its own.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._expected_s = _LONGEST_REMEMBERED_S
        self._resting = 0  # so many waits without it
        self._next_rest = SHORTEST_REST
        self._in_time = 0  # answers since the last rest
        self._given_away = False  # the core, in this wait

    def make_way(self) -> None:
        """A request was sent, and its answer is waited for next. Who answers it may have been put
        on this very core, and would stand behind all that comes before the wait. Not if others than
        that want the core: they would keep it for milliseconds."""
        if not self._resting:
            started_s = self._clock()
            give_way()
            if self._clock() - started_s > CROWDED_S:
                self._rest()

    def wait(self, attempt: Callable[[], int], block: Callable[[], int]) -> int:
        """What `attempt` returns once it raises BlockingIOError no more, or else `block` does.

        Both must return after something arrived, or raise what else happened.
        """
        started_s = self._clock()
        spins = self._expected_s < SOON_S and not self._resting
        try:
            if spins:
                with contextlib.suppress(BlockingIOError):  # it takes longer today
                    return self._spin(started_s + LONGEST_SPIN_S, attempt)
            return block()
        finally:
            self._learn(self._clock() - started_s, spins)

    def wait_announced(self, attempt: Callable[[], int]) -> int:
        """What `attempt` returns for what was said to come in a moment: it is looked for whatever
        the habit is, which learns nothing from that. 0: it does not come, or others want the core.
        """
        if self._resting:
            return 0
        try:
            return self._spin(self._clock() + LONGEST_SPIN_S, attempt)
        except BlockingIOError:
            if self._given_away:
                self._rest()
            return 0

    def _learn(self, taken_s: float, spun: bool) -> None:
        if spun and (taken_s > CROWDED_S or self._given_away):
            self._rest()
        elif spun:
            self._in_time += 1
        elif self._resting:
            self._resting -= 1
        remembered_s = min(taken_s, _LONGEST_REMEMBERED_S)
        self._expected_s += _MEMORY * (remembered_s - self._expected_s)

    def _rest(self) -> None:
        """One answer that is late is an accident, and those that follow should not suffer from it;
        if it happens again and again, others want the cores."""
        if self._in_time >= CALM_WAITS:
            self._next_rest = SHORTEST_REST
        self._resting, self._in_time, self._given_away = self._next_rest, 0, False
        self._next_rest = min(2 * self._next_rest, LONGEST_REST)

    def _spin(self, until_s: float, attempt: Callable[[], int]) -> int:
        looked_s = self._clock()
        while True:
            try:
                return attempt()
            except BlockingIOError:
                give_way()
                now_s = self._clock()
                # Whoever makes way where that is wanted comes last: not twice in a row, or others
                # have the core for milliseconds after the answer is there.
                self._given_away = now_s - looked_s > GIVEN_AWAY_S
                if now_s >= until_s or self._given_away:
                    raise
                looked_s = now_s
