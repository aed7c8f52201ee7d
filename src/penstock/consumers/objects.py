"""The open objects of a partition: by key, by when they are due, by what must be read again."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from penstock.consumers.fragments import NEVER_US

S = TypeVar("S")

FOREVER_US = 1 << 62


class OpenObject(Generic[S]):
    """The fragments of a key that belong together, folded. Open until it is removed.

    `tail_offset` is the offset of the latest fragment by (time, offset), `end_us` the time of its
    marker. `unsaved` is the lowest offset of the fragments that no snapshot has, and
    `unsaved_high_us` the highest time that was read before it.
    """

    __slots__ = (
        "count", "end_us", "first_offset", "first_us", "key", "last_offset", "last_us", "queued_us",
        "saved", "size", "state", "tail_offset", "tick_us", "unsaved", "unsaved_high_us",
    )  # fmt: skip

    def __init__(self, key: bytes, state: S, time_us: int, offset: int) -> None:
        self.key = key
        self.state = state
        self.count = 0
        self.first_us = self.last_us = time_us
        self.first_offset = self.last_offset = self.tail_offset = offset
        self.end_us: int | None = None
        self.tick_us: int | None = None
        self.queued_us = FOREVER_US
        self.unsaved: int | None = None
        self.unsaved_high_us = NEVER_US
        self.saved = False
        self.size = 0

    def add(self, time_us: int, offset: int) -> None:
        """Takes in a fragment."""
        self.count += 1
        if time_us > self.last_us:
            self.last_us, self.tail_offset = time_us, offset
        elif time_us == self.last_us and offset > self.tail_offset:
            self.tail_offset = offset
        elif time_us < self.first_us:
            self.first_us = time_us
        if offset > self.last_offset:
            self.last_offset = offset
        elif offset < self.first_offset:
            self.first_offset = offset


class OpenObjects(Generic[S]):
    """At most one open object per key. Every change costs O(log n) at most."""

    def __init__(self, timeout_us: int | None) -> None:
        self.by_key: dict[bytes, OpenObject[S]] = {}
        self.dues: list[tuple[int, bytes]] = []  # a heap; see `next_due` for what counts in it
        self.changed: set[bytes] = set()  # keys that the last snapshot does not show as they are
        self.ended: set[bytes] = set()  # keys of the snapshot's objects that are over
        self._timeout_us = timeout_us
        self._unsaved: list[tuple[int, bytes]] = []  # a heap by offset; stale ones are passed over

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[OpenObject[S]]:
        return iter(self.by_key.values())

    def remove(self, found: OpenObject[S]) -> None:
        """The object is over."""
        del self.by_key[found.key]
        self.changed.discard(found.key)
        if found.saved:
            self.ended.add(found.key)

    # --- time ------------------------------------------------------------------------------

    def over_us(self, found: OpenObject[S]) -> int:
        """When the object is over, as things stand."""
        if found.end_us is not None:
            return found.end_us
        return FOREVER_US if self._timeout_us is None else found.last_us + self._timeout_us

    def queue(self, found: OpenObject[S]) -> None:
        """Sees to it that the object is found when it is due. A later due needs no call."""
        due_us = self.over_us(found)
        if found.tick_us is not None and found.tick_us < due_us:
            due_us = found.tick_us
        if due_us < found.queued_us:
            found.queued_us = due_us
            heappush(self.dues, (due_us, found.key))

    def next_due(self, limit_us: int) -> tuple[int, OpenObject[S]] | None:
        """Takes out the next object that is due up to a time: by due time, then by key."""
        dues = self.dues
        while dues and dues[0][0] <= limit_us:
            due_us, key = heappop(dues)
            found = self.by_key.get(key)
            if found is None or found.queued_us != due_us:
                continue  # of an object that is over, or queued anew for an earlier time
            found.queued_us = FOREVER_US
            if self.over_us(found) == due_us or found.tick_us == due_us:
                return due_us, found
            self.queue(found)
        return None

    # --- what is saved ---------------------------------------------------------------------

    def unsaved(self, found: OpenObject[S], offset: int, high_us: int) -> None:
        """The lowest offset of an object that no snapshot has is this one from now on."""
        found.unsaved, found.unsaved_high_us = offset, high_us
        heappush(self._unsaved, (offset, found.key))
        self.changed.add(found.key)

    def oldest_unsaved(self) -> tuple[int, int] | None:
        """The lowest offset that a new owner must read again, and the highest time before it."""
        heap = self._unsaved
        while heap:
            offset, key = heap[0]
            found = self.by_key.get(key)
            # An offset belongs to one object only, so an equal one is not a leftover.
            if found is not None and found.unsaved == offset:
                return offset, found.unsaved_high_us
            heappop(heap)
        return None

    def all_saved(self) -> None:
        """A snapshot shows everything as it is now."""
        for key in self.changed:
            found = self.by_key[key]
            found.unsaved, found.saved = None, True
        self.changed.clear()
        self.ended.clear()
        self._unsaved.clear()

    def restore(self, found: OpenObject[S]) -> None:
        """Puts an object of a snapshot in place."""
        found.saved = True
        self.by_key[found.key] = found
        self.queue(found)

    def compact(self) -> None:
        """Drops leftovers once they are most of the heap."""
        if len(self.dues) > 64 + 4 * len(self.by_key):
            queued = ((each.queued_us, each.key) for each in self)
            self.dues[:] = [(due_us, key) for due_us, key in queued if due_us < FOREVER_US]
            heapify(self.dues)
        if len(self._unsaved) > 64 + 4 * len(self.by_key):
            open_ones = ((each.unsaved, each.key) for each in self)
            self._unsaved[:] = [(offset, key) for offset, key in open_ones if offset is not None]
            heapify(self._unsaved)
