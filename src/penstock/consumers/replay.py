"""A new owner's way from the safe offset to where the one before it stood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from penstock.consumers.fragments import Fragments
from penstock.consumers.moved import Moved
from penstock.consumers.progress import IgnoreList, Progress, name_of
from penstock.consumers.stateful import Flags
from penstock.wire.columns import Longs


class Replay:
    """What a progress says of fragments that have been read before."""

    def __init__(
        self, progress: Progress, moved: Sequence[Moved] = (), left: int | None = None
    ) -> None:
        """`moved`: keys that are others' by now. `left`: so many moves of the clock, the last ones,
        are still ahead; all, unless given."""
        self.progress = progress
        self._moved = moved
        self._ignore = IgnoreList(progress.ignore)
        passed = 0 if left is None else len(progress.advances) - left
        self._advances = list(progress.advances[passed:])

    @property
    def left(self) -> int:
        """Moves of the clock that are still ahead."""
        return len(self._advances)

    def advance_before(self, offset: int) -> int | None:
        """The highest time that the clock had moved to before this offset was read, once."""
        passed_us: int | None = None
        while self._advances and self._advances[0][0] <= offset:
            passed_us = self._advances.pop(0)[1]
        return passed_us

    def cuts(self, fragments: Fragments) -> Iterator[Fragments]:
        """The fragments in parts, cut where something happened between two of them."""
        snapshot = self.progress.snapshot
        places = [offset for offset, _ in self._advances] + [self.progress.through]
        if snapshot is not None:
            places.append(snapshot.offset)
        found = set(np.searchsorted(fragments.offsets, places).tolist())
        borders = sorted(found | {0, len(fragments)})
        for start, stop in pairwise(borders):
            yield fragments.cut(start, stop)

    def wanted(self, fragments: Fragments, times_us: Longs) -> Flags:
        """Which of these were not used up by objects that are over, nor went elsewhere."""
        rows = zip(fragments.keys, times_us.tolist(), fragments.offsets.tolist(), strict=True)
        covers = self._ignore.covers
        wanted = np.fromiter(
            (not covers(name_of(key), time_us, offset) for key, time_us, offset in rows),
            np.bool_,
            len(fragments),
        )
        for moved in self._moved:
            before = int(np.searchsorted(fragments.offsets, moved.offset))
            went = (not moved.has(key) for key in fragments.keys[:before])
            wanted[:before] &= np.fromiter(went, np.bool_, before)
        return wanted
