"""Fragments that came ahead of the watermark wait here, and leave in the order of their time.

Kept as few sorted runs of rows: a new part is merged with the run before it once it is as long, so
that a row is moved O(log n) times, by NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.consumers.fragments import Rows, joined
from penstock.wire.columns import Longs

_MOST_RUNS = 8


@dataclass(slots=True)
class _Run:
    rows: Rows  # by (time, offset)
    start: int  # rows before it have left
    oldest: Longs  # of each row and those behind it: where the lowest offset is

    @classmethod
    def of(cls, rows: Rows) -> _Run:
        offsets = rows.offsets
        lowest = np.minimum.accumulate(offsets[::-1])[::-1]
        # Offsets are unique, so that a row is the lowest from itself on where both are equal.
        places = np.where(offsets == lowest, np.arange(len(rows)), len(rows))
        return cls(rows, 0, np.minimum.accumulate(places[::-1])[::-1])

    def __len__(self) -> int:
        return len(self.rows) - self.start

    def left(self) -> Rows:
        return self.rows.cut(self.start, len(self.rows)) if self.start else self.rows


class Held:
    """The rows that wait."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.count = 0
        self.bytes = 0  # of values

    def add(self, rows: Rows) -> None:
        """Takes rows in; they come out by (time, offset)."""
        if not len(rows):
            return
        self.count += len(rows)
        self.bytes += sum(map(len, rows.values))
        self._runs.append(_Run.of(rows.by_time()))
        runs = self._runs
        while len(runs) > 1 and (len(runs) > _MOST_RUNS or len(runs[-2]) <= len(runs[-1])):
            last, before = runs.pop(), runs.pop()
            runs.append(_Run.of(joined([before.left(), last.left()]).by_time()))

    def release(self, through_us: int) -> Rows | None:
        """Takes out all rows up to a time, that included, by (time, offset)."""
        parts = []
        for run in self._runs:
            stop = int(np.searchsorted(run.rows.times_us, through_us, "right"))
            if stop > run.start:
                parts.append(run.rows.cut(run.start, stop))
                run.start = stop
        if not parts:
            return None
        self._runs = [run for run in self._runs if len(run)]
        released = joined(parts).by_time() if len(parts) > 1 else parts[0]
        self.count -= len(released)
        self.bytes -= sum(map(len, released.values))
        return released

    def oldest(self) -> tuple[int, int] | None:
        """The lowest offset that waits, and the highest time read before it."""
        found = []
        for run in self._runs:
            at = int(run.oldest[run.start])
            found.append((int(run.rows.offsets[at]), int(run.rows.high_us[at])))
        return min(found) if found else None

    def rows(self) -> Rows | None:
        """All that wait, by (time, offset); None if nothing does."""
        return joined([run.left() for run in self._runs]).by_time() if self._runs else None
