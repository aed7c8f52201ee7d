"""Who is in a group, and what decides on a member's share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.errors import InvalidError

MAX_MEMBER_BYTES = 200
MAX_WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Drain:
    """A member leaves little by little: its share falls evenly to nothing over the period.

    `since_us` is wall time, the same for all members; clocks that differ only make them disagree
    for as long as they differ."""

    since_us: int
    period_us: int

    def left_us(self, wall_us: int) -> int:
        """How much of the period is left, at most all of it."""
        return min(self.period_us, max(0, self.since_us + self.period_us - wall_us))


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group, as its entry in the table of members tells it.

    The id names one life of one process: who starts again takes another id, so that a claim under
    the own id is always the own claim."""

    id: str
    weight: int = 1
    pins: frozenset[int] = frozenset()
    drain: Drain | None = None

    def __post_init__(self) -> None:
        """InvalidError if there can be no such member."""
        if not 0 < len(self.id.encode()) <= MAX_MEMBER_BYTES:
            raise InvalidError(f"a member's id has 1 to {MAX_MEMBER_BYTES} bytes")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise InvalidError(f"a member's weight is 1 to {MAX_WEIGHT:,}, not {self.weight}")
        if self.drain is not None and self.drain.period_us < 0:
            raise InvalidError("a member cannot drain for less than no time")


def staying(members: Collection[Member]) -> list[Member]:
    """Who is to have partitions for good, by id: all that do not drain; all, if everybody does, so
    that nothing is left alone before they are gone."""
    ordered = sorted(members, key=lambda member: member.id)
    return [member for member in ordered if member.drain is None] or ordered


def pinned(members: Iterable[Member], partitions: Collection[int]) -> dict[int, str]:
    """Whose each pinned partition is; where several pin it, the first by id. `partitions` should
    be quick to search: a set or a range."""
    owners: dict[int, str] = {}
    for member in members:
        for partition in member.pins:
            if partition in partitions:
                owners[partition] = min(owners.get(partition, member.id), member.id)
    return owners
