"""How much room the disk has left, and whether that is little.

A disk that is full takes no checkpoint, and without one nothing is let go that nobody wants any
more: however much of it is garbage, it would stay full. So where room gets scarce, what can be let
go is not waited for.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.engine.maintenance import Work

SEGMENTS = 4  # less than room for so many is little
LOOKS = 4  # while one segment is filled


class Room:
    """Looks now and then, while something is written."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at = -1  # bytes that had been appended then
        self._free: int | None = None

    @property
    def is_scarce(self) -> bool:
        """Whether there was little room at the last look. Segments that are ready count as room."""
        journal = self._engine.journal
        if self._free is None:
            return False
        ready = journal.spares * journal.segment_bytes
        return self._free + ready < SEGMENTS * journal.segment_bytes

    @property
    def is_unknown(self) -> bool:
        """Whether so much was written since the last look that it is time for another."""
        journal = self._engine.journal
        since = journal.appended_bytes - self._looked_at
        return self._looked_at < 0 or since >= journal.segment_bytes // LOOKS

    def look(self) -> Generator[Work, None, None]:
        """Asks the disk."""
        free: list[int] = []
        self._looked_at = self._engine.journal.appended_bytes
        yield lambda: free.append(self._engine.disk.free_bytes())
        self._free = free[0] if free else None
