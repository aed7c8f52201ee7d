"""Buffers for large frames, used again when nobody has them any more.

A buffer of a megabyte that is freed goes back to the system, and each page of the next one costs a
fault when it is first written: more than receiving what is in it.
"""

from __future__ import annotations

import sys
from collections import deque
from functools import cache

from penstock.wire.packing import unfilled

LEAST_BYTES = 256 << 10  # smaller ones stay with the process when they are freed
MOST_BYTES = 6 << 20  # larger ones are rare, and too much to keep
ROOM_BYTES = 16 << 20  # of all that are kept, unless somebody says otherwise
SETTLING_BYTES = 16 << 20


@cache
def settle_heap() -> None:
    """Has the C library keep memory that a batch's values leave behind, for the next batch's.

    That of Linux gives memory back as soon as 128 KiB at the end of the heap are free, until the
    program has freed a block that it had mapped: from then on it waits for twice as much as that.
    Values of a kilobyte come twice as fast by it. The block is never used, and costs nothing; once
    a process is enough. Where the C library is another one, nothing changes.
    """
    bytes(SETTLING_BYTES)


class Spares:
    """The buffers of one connection, or of a node; only by whoever receives."""

    __slots__ = ("_kept", "_kept_bytes", "_room_bytes")

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        settle_heap()
        self._kept: deque[bytearray] = deque()  # the one that was used longest ago first
        self._kept_bytes = 0
        self._room_bytes = room_bytes

    def take(self, size: int) -> bytearray:
        """A buffer for a caller who fills all of it, or drops it: what is in it is not known."""
        if not LEAST_BYTES <= size <= MOST_BYTES:
            return unfilled(size)
        kept = self._kept
        for _ in range(len(kept)):
            idle = _references(kept) == _IDLE and size < kept[0].__alloc__() <= 2 * size
            kept.rotate(-1)
            if idle:
                _fit(kept[-1], size)
                return kept[-1]
        buffer = unfilled(size)
        kept.append(buffer)
        self._kept_bytes += buffer.__alloc__()
        while self._kept_bytes > self._room_bytes:
            self._kept_bytes -= kept.popleft().__alloc__()
        return buffer


def _references(line: deque[bytearray]) -> int:
    """How many refer to the first in a line, as this very call sees it."""
    return sys.getrefcount(line[0])


_IDLE = _references(deque([bytearray()]))  # so many, if only the line does


def _fit(buffer: bytearray, size: int) -> None:
    """Changes the length; it stays where it is, as there is room, and at least half is used."""
    if size < len(buffer):
        del buffer[size:]
    elif size > len(buffer):
        buffer += bytes(size - len(buffer))
