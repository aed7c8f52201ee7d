"""Times in which this whole machine stood still, or was far too busy: then leases run out although
nobody died."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

TICK_SECONDS = 0.05


class Standstill(NamedTuple):
    """Nothing happened between these times, by the monotonic clock."""

    from_ns: int
    until_ns: int


class Standstills:
    """Watches the clock. `found`: those that were longer than so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.found: list[Standstill] = []
        self._least_ns = int(seconds * 1e9)
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        before_ns = time.monotonic_ns()
        while not self._over.wait(TICK_SECONDS):
            now_ns = time.monotonic_ns()
            if now_ns - before_ns > self._least_ns:
                self.found.append(Standstill(before_ns, now_ns))
            before_ns = now_ns

    def close(self) -> None:
        """Watches no more."""
        self._over.set()
        self._watching.join()


class Excuses:
    """What standstills explain. `lease_ns`: what was leased again at the end of one may be begun
    so much later."""

    def __init__(self, standstills: Sequence[Standstill] = (), lease_ns: int = 0) -> None:
        self._standstills, self._lease_ns = standstills, lease_ns

    def begun(self, at_ns: int) -> bool:
        """Whether something may have been begun again at this time."""
        return any(
            each.from_ns <= at_ns <= each.until_ns + self._lease_ns for each in self._standstills
        )

    def lost(self, begun_ns: int, over_ns: int) -> bool:
        """Whether the lease of a run may have been lost; `over_ns`: 0 if it did not end."""
        return self.begun(begun_ns) or any(
            begun_ns <= each.from_ns and (not over_ns or each.from_ns <= over_ns + self._lease_ns)
            for each in self._standstills
        )
