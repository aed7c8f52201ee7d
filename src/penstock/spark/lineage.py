"""Where the keys of a partition come from and went to, as it travels with the rows of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.consumers.moved import Moved
from penstock.wire.growth import PartitionFamily


class Handed(msgspec.Struct, array_like=True, frozen=True):
    """Keys with hashes from `low` on and below `high` are a child's from an offset on."""

    offset: int
    child: int
    low: int
    high: int

    @property
    def moved(self) -> Moved:
        """The same as the consumers have it."""
        return Moved(self.offset, self.low, self.high)


class Lineage(msgspec.Struct, array_like=True, frozen=True):
    """A partition. `root`: the first of its ancestors. `birth`: what its parent handed to it."""

    partition: int
    root: int
    parent: int | None = None
    birth: Handed | None = None
    handed: list[Handed] = []  # by offset, to children

    @classmethod
    def alone(cls, number: int) -> Lineage:
        """Of a partition, or a bucket, that never had another's keys."""
        return cls(number, number)

    def encode(self) -> bytes:
        """For the metadata of rows."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, packed: bytes) -> Lineage:
        """What `encode` made."""
        return msgspec.msgpack.decode(packed, type=cls)


def lineages(families: Sequence[PartitionFamily]) -> dict[int, Lineage]:
    """Of all partitions of a topic."""
    highs = {each.number: each.high for each in families}
    for each in reversed(families):  # children come after their parents, and above them
        if each.parent is not None:
            highs[each.parent] = max(highs[each.parent], highs[each.number])
    lows = {each.number: each.low for each in families}
    roots: dict[int, int] = {}
    births: dict[int, Handed] = {}
    found: dict[int, Lineage] = {}
    for each in families:
        roots[each.number] = each.number if each.parent is None else roots[each.parent]
        handed = [
            Handed(split.offset, child, lows[child], highs[child])
            for split in each.splits
            for child in split.children
        ]
        births |= {birth.child: birth for birth in handed}
        found[each.number] = Lineage(
            each.number, roots[each.number], each.parent, births.get(each.number), handed
        )
    return found


def held_back(
    lines: dict[int, Lineage], start: dict[int, int], end: dict[int, int]
) -> dict[int, int]:
    """An end that reads a child only when its parent is read up to where it handed keys over."""
    allowed = dict(end)
    for number in sorted(end):
        line = lines.get(number)
        if line is None or line.birth is None or line.parent is None:
            continue
        if allowed.get(line.parent, 0) < line.birth.offset:
            allowed.pop(number)
            if number in start:
                allowed[number] = start[number]
    return allowed
