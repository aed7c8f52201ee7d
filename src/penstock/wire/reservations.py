"""Requests and answers about reservations."""

from __future__ import annotations

import msgspec

from penstock.wire.request import ColdRequest


class ReservedPart(msgspec.Struct, array_like=True, frozen=True):
    """What a reservation has in one shard."""

    shard: int
    messages: int
    bytes: int


class Reservation(msgspec.Struct, frozen=True):
    """Messages that are kept for a key under a number; `parts` never change. `since_us`: when that
    was decided."""

    key: str
    number: int
    parts: list[ReservedPart]
    since_us: int = 0

    @property
    def messages(self) -> int:
        """In all parts."""
        return sum(part.messages for part in self.parts)


class Reserve(ColdRequest):
    """Lease messages in the asked node's shards for a reservation, or find those that were leased
    for it before. Answer: list[ReservedPart]. They stay leased for an hour, for ever once the
    reservation is sealed."""

    stream: int
    key: str
    number: int
    messages: int
    max_bytes: int


class SealReservation(ColdRequest):
    """Decide what a reservation is: the first to say so decides. Asked of the owner of the key's
    shard. Without parts: only look, and hear whether the number may be used. Answer: Reservation,
    or None if there is none yet."""

    stream: int
    key: str
    number: int
    parts: list[ReservedPart] | None = None


class ReadReserved(ColdRequest):
    """Messages of a sealed reservation in a shard, after a grant's position. The answer is laid out
    like that of a pop; no message: that was all."""

    stream: int
    key: str
    number: int
    shard: int
    grant: int = 0
    position: int = 0
    max_bytes: int = 0


class FinishReservations(ColdRequest):
    """Acknowledge all reservations of a key up to a number. Answer: int, how many messages they
    had; 0 when it is done already."""

    stream: int
    key: str
    through: int


class Unreserve(ColdRequest):
    """Give back what reservations of a key hold: those of some numbers, or all. Answer: int, how
    many messages they had."""

    stream: int
    key: str
    numbers: list[int] | None = None


class Reservations(ColdRequest):
    """Open reservations of a queue whose keys belong to this node's shards. Answer:
    list[Reservation]."""

    stream: int
