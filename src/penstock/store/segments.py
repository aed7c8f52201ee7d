"""Segments of the journal, as others see them, and the one that is filled."""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.locations import JOURNAL, file_name, locate
from penstock.store.record import FILE_HEADER_BYTES

SMALL_BYTES = 1 << 20  # after the disk was full
SMALL_SEGMENTS = 16  # then one of the usual size is tried again


class Segment(NamedTuple):
    """A segment as the owner sees it; `end` is the position after its last trusted record."""

    number: int
    used: int
    sealed: bool
    end: int


class OpenSegment:
    """A segment that entries are framed for."""

    __slots__ = ("capacity", "name", "number", "used")

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.name = file_name(JOURNAL, number)
        self.capacity = capacity
        self.used = FILE_HEADER_BYTES

    @property
    def end(self) -> int:
        """The position after what was framed for it."""
        return locate(self.number, self.used)


class Sizes:
    """How large segments are made. Where there was no room for one, small ones let work go on that
    makes room: acks, and the next checkpoint."""

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._small = 0  # so many of the next ones are

    def failed(self, full: bool) -> None:
        """The disk refused, perhaps because it is full."""
        self._small = SMALL_SEGMENTS if full else 0

    def next(self, ready: bool) -> int:
        """Of the next one; `ready`: one of the usual size is there to be used again."""
        if ready or not self._small:
            self._small = 0
            return self._usual
        self._small -= 1
        return min(SMALL_BYTES, self._usual)
