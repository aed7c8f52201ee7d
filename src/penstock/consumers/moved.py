"""Keys that left a partition when its topic grew."""

from __future__ import annotations

from typing import NamedTuple

from penstock.wire.growth import hash_of


class Moved(NamedTuple):
    """Fragments before `offset` whose keys have hashes from `low` on and below `high` are not this
    partition's business any more. Those without a key never leave."""

    offset: int
    low: int
    high: int

    def has(self, key: bytes) -> bool:
        """Whether a key is one of them."""
        return bool(key) and self.low <= hash_of(key) < self.high
