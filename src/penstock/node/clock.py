"""The node's clock: wall time at the start, monotonic from then on."""

from __future__ import annotations

import time


class Clock:
    """Microseconds since 1970 that never jump while the process runs."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        """Now."""
        return (time.monotonic_ns() + self._offset_ns) // 1000
