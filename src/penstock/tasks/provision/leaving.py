"""When a worker ends itself: a state machine without clock or I/O."""

from __future__ import annotations

from penstock.errors import InvalidError

MARGIN = 0.1  # of the period: so near its end, ending pays
MAX_MARGIN_S = 300.0


class Leaving:
    """Whether a worker that began at a time should end now: it is idle, and the period that was
    paid for is nearly over. An idle worker with paid time left stays: it costs nothing, and may
    have something to do again."""

    def __init__(self, period_s: float, idle_s: float, began_s: float) -> None:
        if period_s <= 0 or idle_s < 0:
            raise InvalidError("a paid period must be longer than 0 s, and idle time 0 or more")
        self.margin_s = min(period_s * MARGIN, MAX_MARGIN_S)
        self._period_s = period_s
        self._idle_s = idle_s
        self._began_s = began_s
        self._idle_since_s: float | None = None

    def seen(self, busy: bool, now_s: float) -> None:
        """The worker is ready, and was looked at: it has tasks, or none."""
        if busy:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s

    def should_leave(self, now_s: float) -> bool:
        """Whether it should begin nothing more, and end."""
        if self._idle_since_s is None or now_s - self._idle_since_s < self._idle_s:
            return False
        return self.left_s(now_s) <= self.margin_s

    def left_s(self, now_s: float) -> float:
        """Of the period that is being paid for."""
        return self._period_s - (now_s - self._began_s) % self._period_s
