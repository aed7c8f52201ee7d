"""The fragments of a bucket that are of no finished session yet, in columns.

They lie in the order in which they came, and are looked at as whole columns: which are of certain
keys is one pass over numbers, and a value is touched only when its session is over. Parts that
were added one by one are put together as they become many, so that a row is copied seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.consumers.stateful import Flags
from penstock.wire.columns import Longs, Rows


@dataclass(frozen=True, slots=True)
class Part:
    """Rows in columns, ascending by offset. `slots`: numbers of their keys. `folds_us`: the time
    by which a row is folded, which is its own unless it came behind the watermark."""

    values: pa.BinaryArray
    times_us: Longs
    offsets: Longs
    folds_us: Longs
    slots: Longs
    ends: Flags

    def __len__(self) -> int:
        return len(self.times_us)

    @property
    def bytes(self) -> int:
        """Of values."""
        first = self.values.offset
        edges = np.frombuffer(self.values.buffers()[1], np.int32)
        return int(edges[first + len(self.values)] - edges[first]) if len(self) else 0

    def pick(self, rows: Rows) -> Part:
        """These rows, in this order."""
        if len(rows) == len(self) and _is_all(rows):
            return self
        return Part(
            self.values.take(pa.array(rows)), self.times_us[rows], self.offsets[rows],
            self.folds_us[rows], self.slots[rows], self.ends[rows],
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        """All rows of several parts, one part after the other."""
        found = [part for part in parts if len(part)] or list(parts[:1])
        if len(found) == 1:
            return found[0]
        return cls(
            pa.concat_arrays([part.values for part in found]),
            np.concatenate([part.times_us for part in found]),
            np.concatenate([part.offsets for part in found]),
            np.concatenate([part.folds_us for part in found]),
            np.concatenate([part.slots for part in found]),
            np.concatenate([part.ends for part in found]),
        )

    @classmethod
    def empty(cls) -> Part:
        """No rows."""
        none = np.empty(0, np.int64)
        return cls(pa.array([], pa.binary()), none, none, none, none, np.empty(0, np.bool_))


def _is_all(rows: Rows) -> bool:
    return bool((rows == np.arange(len(rows))).all())


class _Run:
    """A part some of whose rows are gone."""

    __slots__ = ("alive", "left", "part")

    def __init__(self, part: Part) -> None:
        self.part = part
        self.alive = np.ones(len(part), np.bool_)
        self.left = len(part)

    def whole(self) -> Part:
        return self.part if self.left == len(self.part) else self.part.pick(self.rows())

    def rows(self) -> Rows:
        return np.flatnonzero(self.alive)


class OpenRows:
    """All open rows of a bucket, ascending by offset."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.removed: list[Longs] = []  # offsets, since whoever stores them cleared the list
        self.count = 0
        self.bytes = 0  # of values; also of rows that are gone and were not cleared away yet

    def add(self, part: Part) -> None:
        """Rows that came after all the others."""
        if not len(part):
            return
        self.count += len(part)
        self.bytes += part.bytes
        self._runs.append(_Run(part))
        while len(self._runs) > 1 and self._runs[-2].left <= 2 * self._runs[-1].left:
            last, before = self._runs.pop(), self._runs.pop()
            self._replace(len(self._runs), [before, last])

    def of_slots(self, chosen: Flags) -> tuple[Part, list[Rows]]:
        """Rows of keys, by a flag for each; and where they are, for `remove`."""
        parts, places = [Part.empty()], []
        for run in self._runs:
            rows = np.flatnonzero(chosen[run.part.slots] & run.alive)
            parts.append(run.part.pick(rows))
            places.append(rows)
        return Part.joined(parts), places

    def remove(self, places: list[Rows], gone: Flags) -> None:
        """Those of the rows that `of_slots` found which are gone now."""
        start = 0
        for run, rows in zip(self._runs, places, strict=True):
            ours = rows[gone[start : start + len(rows)]]
            start += len(rows)
            run.alive[ours] = False
            run.left -= len(ours)
            self.count -= len(ours)
            self.removed.append(run.part.offsets[ours])
        for at in range(len(self._runs) - 1, -1, -1):
            if 2 * self._runs[at].left <= len(self._runs[at].part):
                self._replace(at, [self._runs.pop(at)])

    def _replace(self, at: int, runs: list[_Run]) -> None:
        """Puts what is left of runs in one, without what is gone."""
        part = Part.joined([run.whole() for run in runs])
        self.bytes += part.bytes - sum(run.part.bytes for run in runs)
        if len(part):
            self._runs.insert(at, _Run(part))

    def ended_through(self, limit_us: int) -> Longs:
        """The keys that have an end up to a time."""
        found = [np.empty(0, np.int64)]
        for run in self._runs:
            part = run.part
            found.append(part.slots[part.ends & run.alive & (part.times_us <= limit_us)])
        return np.concatenate(found)

    def since(self, offset: int) -> Part:
        """All rows from an offset on."""
        parts = [
            run.part.pick(np.flatnonzero(run.alive & (run.part.offsets >= offset)))
            for run in self._runs
            if run.part.offsets[-1] >= offset
        ]
        return Part.joined([Part.empty(), *parts])

    def used_slots(self, count: int) -> Flags:
        """Which of so many keys have rows."""
        used = np.zeros(count, np.bool_)
        for run in self._runs:
            used[run.part.slots[run.alive]] = True
        return used

    def renumber(self, numbers: Longs) -> None:
        """Keys have other numbers from now on."""
        for run in self._runs:
            part = run.whole()
            run.part = Part(
                part.values, part.times_us, part.offsets, part.folds_us, numbers[part.slots],
                part.ends,
            )  # fmt: skip
            run.alive = np.ones(len(part), np.bool_)
            run.left = len(part)
