"""What workers of gangs note, in both simulators."""

from __future__ import annotations

from typing import NamedTuple


class SeatNote(NamedTuple):
    """A worker was given a place in a gang."""

    queue: str
    value: bytes
    shard: int
    grant: int
    attempt: int
    rank: int
    addresses: tuple[str, ...]
    worker: str
    asked_us: int
    got_us: int
