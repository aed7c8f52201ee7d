"""The gangs of a queue that are ready, in line: which of them so many workers are enough for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from penstock.core.runs import Run
from penstock.core.waiting import SPARE_PLACES, Returned

MAX_OVERTAKEN = 16  # times that the first gang in line may see others go before it


class GangLine(Returned):
    """Ready gangs, lowest position (highest priority, oldest) first, and the size of all gangs that
    are not finished, ready or not. A gang is one message."""

    __slots__ = ("_by_size", "_overtaken", "sizes")

    def __init__(self, sizes: Iterable[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.sizes = dict(sizes)  # by position
        self._by_size: dict[int, list[int]] = {}  # heaps of positions; some may have left
        # How often each was overtaken: what the owner remembers, no part of the log's fold.
        self._overtaken: dict[int, int] = {}

    def came(self, position: int, size: int) -> None:
        """There is a gang that needs so many workers; it may have to wait for its time."""
        self.sizes[position] = size

    def add(self, run: Run) -> None:
        """The gang of the run is ready."""
        super().add(run)
        size = self.sizes[run.position]
        heap = self._by_size.setdefault(size, [])
        heappush(heap, run.position)
        if len(heap) > 2 * len(self.runs) + SPARE_PLACES:
            self._by_size[size] = sorted(each for each in self.runs if self.sizes[each] == size)

    def finished(self, position: int) -> None:
        """The gang is no more."""
        del self.sizes[position]
        self._overtaken.pop(position, None)

    def first(self, workers: int) -> int | None:
        """The position of the first gang in line that so many workers are enough for."""
        sizes = [size for size in self._by_size if size <= workers]
        heads = (self._head_of(size) for size in sizes)
        return min((head for head in heads if head is not None), default=None)

    def _head_of(self, size: int) -> int | None:
        heap = self._by_size[size]
        while heap:
            if heap[0] in self.runs:
                return heap[0]
            heappop(heap)
        del self._by_size[size]
        return None

    def choose(self, free: int, known: Callable[[], int]) -> int | None:
        """The position of the gang that `free` workers are granted to now, if any is.

        That is the first in line that fits, with one exception. Of the gangs that all `known`
        workers together are enough for, the first in line is overtaken at most MAX_OVERTAKEN
        times; from then on workers are kept until there are enough for it. One that needs more
        workers than are known keeps nobody waiting.
        """
        found = self.first(free)
        if found is None or found == self.head():
            return found
        waiting = self.first(max(free, known()))
        if waiting is None or waiting == found:
            return found
        overtaken = self._overtaken.get(waiting, 0)
        if overtaken >= MAX_OVERTAKEN:
            return None
        self._overtaken[waiting] = overtaken + 1
        return found
