"""How long partitions stood still: the last spans, and what is said of them."""

from __future__ import annotations

from collections import deque
from typing import Any

MAX_SPANS = 10_000
TOLD_SPANS = 100  # as they are, so that those of several members can be taken together


class Gaps:
    """The last ten thousand spans of time."""

    def __init__(self) -> None:
        self._spans_us: deque[int] = deque(maxlen=MAX_SPANS)
        self.count = 0

    def note(self, span_us: int) -> None:
        """One more."""
        self.count += 1
        self._spans_us.append(max(0, span_us))

    def summary(self) -> dict[str, Any]:
        """How many there were; of the last ones p50, p99 and the longest; and the very last ones:
        in milliseconds."""
        ordered = sorted(self._spans_us)
        if not ordered:
            return {"count": 0}
        last = len(ordered) - 1
        return {
            "count": self.count,
            "p50_ms": ordered[last // 2] / 1000,
            "p99_ms": ordered[-(-last * 99 // 100)] / 1000,
            "max_ms": ordered[last] / 1000,
            "last_ms": [span_us / 1000 for span_us in list(self._spans_us)[-TOLD_SPANS:]],
        }
