"""Segments of the journal, as others see them, and the one that is filled."""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.locations import JOURNAL, file_name, locate
from penstock.store.record import FILE_HEADER_BYTES


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
