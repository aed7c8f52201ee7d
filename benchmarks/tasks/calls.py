"""What tasks do, in every system the same: nothing, or sleeping."""

from __future__ import annotations

import time


def null(number: int) -> int:
    """A task that costs nothing; its result tells which one it was."""
    return number


def nap(seconds: float) -> float:
    """A task of a known length that needs no processor."""
    time.sleep(seconds)
    return seconds
