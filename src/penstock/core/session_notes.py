"""What notes about sessions and their entries say to a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import records
from penstock.core.outbox import EndSession

if TYPE_CHECKING:
    from penstock.core.shard import Shard


class Session(NamedTuple):
    """A session in its home shard: how long it lasts without a sign of life, and which shards have
    entries that are bound to it."""

    ttl_us: int
    shards: set[int]


def _opened(shard: Shard, note: records.SessionOpened, number: int, now_us: int) -> None:
    shard.sessions[note.session] = Session(note.ttl_us, set())


def _bound(shard: Shard, note: records.SessionBound, number: int, now_us: int) -> None:
    shard.sessions[note.session].shards.add(note.shard)


def _closed(shard: Shard, note: records.SessionClosed, number: int, now_us: int) -> None:
    session = shard.sessions.pop(note.session)
    for index, target in enumerate(sorted(session.shards)):
        shard.outbox.add(target, number, index, EndSession(note.session))


def _unbound(shard: Shard, note: records.Unbound, number: int, now_us: int) -> None:
    shard.bound.discard(note.session)
    for table in shard.tables.values():
        for key in table.keys_of(note.session):
            table.remove(key)


SESSION_NOTES: records.Folds = {
    records.SessionOpened: _opened,
    records.SessionBound: _bound,
    records.SessionClosed: _closed,
    records.Unbound: _unbound,
}
