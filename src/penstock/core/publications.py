"""What a home shard remembers of publications: the highest number of every key."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.outbox import DropStages, PublishStages
from penstock.core.records import (
    Folds,
    PublicationMade,
    PublicationRefused,
    PublicationsForgotten,
)
from penstock.errors import LimitError

if TYPE_CHECKING:
    from penstock.core.shard import Shard

MAX_KEYS = 20_000  # of one shard
KEPT_US = 90 * 86_400 * 1_000_000  # after the last publication of a key


class Made(NamedTuple):
    """The last publication of a key: its number, a digest of its stages, and when it was."""

    number: int
    digest: int
    at_us: int


class Publications:
    """By key, the one that was idle for longest first."""

    def __init__(self) -> None:
        self.keys: dict[str, Made] = {}

    def made(self, key: str, made: Made) -> None:
        """There is a new publication of a key."""
        self.keys.pop(key, None)
        self.keys[key] = made

    def has_room(self, key: str) -> None:
        """LimitError if a new key cannot be remembered."""
        if key not in self.keys and len(self.keys) >= MAX_KEYS:
            raise LimitError(
                f"{MAX_KEYS:,} keys of publications are remembered in one shard",
                advice="Forget some: `penstock publication forget KEY`.",
            )

    def idle(self, now_us: int) -> list[str]:
        """Up to two keys that may be forgotten: so many for each new one, and they get fewer."""
        oldest = islice(self.keys.items(), 2)
        return [key for key, made in oldest if made.at_us + KEPT_US <= now_us]

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`."""
        return [(key, *made) for key, made in self.keys.items()]

    @classmethod
    def restore(cls, rows: list[Any]) -> Publications:
        """The publications that made this snapshot."""
        publications = cls()
        publications.keys = {key: Made(*made) for key, *made in rows}
        return publications


def _made(shard: Shard, note: PublicationMade, number: int, now_us: int) -> None:
    shard.publications.made(note.key, Made(note.number, note.digest, note.at_us))
    for index, each in enumerate(note.shards):
        names = [part.stage for part in each.stages]
        shard.outbox.add(each.shard, number, index, PublishStages(names))


def _refused(shard: Shard, note: PublicationRefused, number: int, now_us: int) -> None:
    for index, each in enumerate(note.shards):
        names = [part.stage for part in each.stages]
        shard.outbox.add(each.shard, number, index, DropStages(names))


def _forgotten(shard: Shard, note: PublicationsForgotten, number: int, now_us: int) -> None:
    for key in note.keys:
        shard.publications.keys.pop(key, None)


PUBLICATION_NOTES: Folds = {
    PublicationMade: _made,
    PublicationRefused: _refused,
    PublicationsForgotten: _forgotten,
}
