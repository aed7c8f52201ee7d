"""What the log says of edges between tables and held messages, as a shard folds it.

Every record here may put parts into the shard's outbox: who waits is watched for where the entry
will be, who was waited for is told to the messages, and what a message falls back to is carried
out. So an edge is in one place at any time, and a crash between two records loses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import holds
from penstock.core.holds import Hold, Watcher
from penstock.core.outbox import MeetEdges, WatchKeys
from penstock.core.records import EdgesMet, Folds, HoldsEnded, PushMeta, Watched, Written

if TYPE_CHECKING:
    from penstock.core.shard import Shard


def began_to_wait(shard: Shard, meta: PushMeta, number: int) -> None:
    """A push is in the log whose message waits: the shards of the entries are to watch for them."""
    if not meta.waits or meta.stream not in shard.streams:
        return
    waits = holds.read_waits(meta.waits)
    holds.began(shard.queue(meta.stream), meta.id, waits)
    targets: dict[int, list[tuple[int, bytes]]] = {}
    for target, table, key in waits.after:
        targets.setdefault(target, []).append((table, key))
    for index, (target, keys) in enumerate(targets.items()):
        shard.outbox.add(target, number, index, WatchKeys(meta.stream, meta.id, keys))


def written(shard: Shard, note: Written, number: int) -> None:
    """An entry is there: all who wait for it are told, in the order in which they came."""
    watchers = shard.watchers.take(note.stream, note.key)
    if watchers:
        told = [(each, note.stream, note.key, note.mark) for each in watchers]
        _tell(shard, told, number)


def _tell(shard: Shard, told: list[tuple[Watcher, int, bytes, int]], number: int) -> None:
    parts: dict[tuple[int, int, bytes], MeetEdges] = {}
    for watcher, table, key, mark in told:
        part = parts.setdefault((watcher.shard, table, key), MeetEdges(table, key, mark, []))
        part.messages.append((watcher.stream, watcher.id))
    for index, ((target, _, _), part) in enumerate(parts.items()):
        shard.outbox.add(target, number, index, part)


def _watched(shard: Shard, note: Watched, number: int, now_us: int) -> None:
    for table, key, stream, name in note.kept:
        if table in shard.streams:
            shard.watchers.add(table, key, Watcher(note.shard, stream, name))
    met = [
        (Watcher(note.shard, stream, name), table, key, mark)
        for table, key, stream, name, mark in note.met
    ]
    _tell(shard, met, number)


def _edges_met(shard: Shard, note: EdgesMet, number: int, now_us: int) -> None:
    edge = holds.edge_of(note.table, note.key)
    failed: list[Hold] = []
    for stream, name in note.messages:
        if (queue := shard.queues.get(stream)) is not None:
            hold = holds.met(queue, name, edge, note.mark)
            failed += [] if hold is None else [hold]
    _fall_back(shard, failed, number)


def _holds_ended(shard: Shard, note: HoldsEnded, number: int, now_us: int) -> None:
    queue = shard.queue(note.stream)
    found = [holds.ended(queue, name) for name in note.ids]
    queue.forget_ttls()
    _fall_back(shard, [hold for hold in found if hold is not None], number)


def _fall_back(shard: Shard, failed: list[Hold], number: int) -> None:
    parts = (each for hold in failed for each in hold.parts())
    for index, (target, part) in enumerate(parts):
        if part.stream in shard.streams:
            shard.outbox.add(target, number, index, part)


EDGE_NOTES: Folds = {Watched: _watched, EdgesMet: _edges_met, HoldsEnded: _holds_ended}
