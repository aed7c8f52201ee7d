"""The node's clock: wall time at the start, monotonic from then on."""

from __future__ import annotations

import time


class Clock:
    """Microseconds since 1970 that never jump while the process runs."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def not_before(self, time_us: int) -> None:
        """A clock that was set back while the node was down starts where it had been."""
        behind_us = time_us - self.now_us()
        if behind_us > 0:
            self._offset_ns += behind_us * 1000

    def now_us(self) -> int:
        """Now."""
        return (time.monotonic_ns() + self._offset_ns) // 1000
