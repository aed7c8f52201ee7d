"""The last things that happened to a member's partitions, and why."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_MOVES = 1000


class Move(NamedTuple):
    """One of them."""

    at_us: int  # on the member's own clock
    partition: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class Moves:
    """The last thousand; older ones are forgotten."""

    def __init__(self, limit: int = MAX_MOVES) -> None:
        self._ring: deque[Move] = deque(maxlen=limit)

    def note(self, at_us: int, partition: int, what: str, why: str) -> None:
        """Keeps one."""
        self._ring.append(Move(at_us, partition, what, why))

    def last(self, partition: int | None = None, count: int = MAX_MOVES) -> list[Move]:
        """The latest first; all, or those of one partition."""
        found = (move for move in reversed(self._ring) if partition in (None, move.partition))
        return [move for move, _ in zip(found, range(count), strict=False)]
