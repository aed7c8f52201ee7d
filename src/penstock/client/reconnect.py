"""How both shells come back after a lost connection."""

from __future__ import annotations

import random

CONNECT_S = 5.0  # for one attempt
IS_A_NODE_THERE = (
    "Check the address, and that a node runs there (`penstock serve`). Then retry with the same "
    "producer (it is stored once)."
)
_FIRST_S = 0.05
_LONGEST_S = 2.0


def pause_s(strikes: int) -> float:
    """How long to wait before the next attempt, after so many in vain: doubling, with jitter."""
    longest = min(_FIRST_S * 2.0 ** min(strikes - 1, 16), _LONGEST_S)
    return longest * random.uniform(0.5, 1.0)
