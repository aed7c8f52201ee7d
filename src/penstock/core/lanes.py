"""The lanes of a queue in a shard: one for each priority, with a cursor over fresh messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.index import BatchIndex
from penstock.wire.limits import MAX_PRIORITY

LANE_SHIFT = 56


def lane_start(priority: int) -> int:
    """The first position of a priority."""
    return (MAX_PRIORITY - priority) << LANE_SHIFT


@dataclass(slots=True)
class Lane:
    """The messages of one priority. Fresh: never delivered, at `cursor` or after it."""

    cursor: int
    end: int  # after the last visible message
    tail: int  # after the last accepted message, visible or not
    index: BatchIndex = field(default_factory=BatchIndex)
    skips: set[int] = field(default_factory=set)  # bases of batches that wait out of line
    fresh: int = 0  # messages

    def grow(self, base: int, count: int) -> None:
        """A batch at `base` counts from now on."""
        if base > self.end and self.fresh:  # the record of what was between is lost: passed over
            self.skips.add(self.end)
        if base < self.end:  # made while the log is folded: it began later than when it was live
            self.cursor = self.end = self.tail = base
        self.end = base + count
        if self.tail < self.end:
            self.tail = self.end

    def set_aside(self, base: int, count: int) -> None:
        """The batch at `base` is not fresh: the cursor passes it, now or when it gets there."""
        if self.fresh:
            self.skips.add(base)
        else:
            self.skips.clear()
            self.cursor = base + count

    def pass_skips(self) -> None:
        """Moves the cursor to the next fresh message; there must be one."""
        while self.skips:
            row = self.index.row_of(self.cursor)
            if row < 0:  # nothing is left of what was here
                row = self.index.next_row(self.cursor)
                self.cursor = self.index.at(row).base
                self.skips = {base for base in self.skips if base >= self.cursor}
                continue
            stored = self.index.at(row)
            if stored.live and stored.base not in self.skips:
                return
            self.skips.discard(stored.base)
            self.cursor = stored.base + stored.span
