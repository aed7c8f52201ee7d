"""What the log says of edges between tables and held messages, as a shard folds it.

Every record here may put parts into the shard's outbox: who waits is watched for where the entry
will be, who was waited for is told to the messages, and what a message falls back to is carried
out. So an edge is in one place at any time, and a crash between two records loses none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core import holds
from penstock.core.holds import Hold, Watcher
from penstock.core.outbox import MeetEdges, WatchKeys
from penstock.core.records import (
    Edge,
    EdgesMet,
    Folds,
    HoldsEnded,
    PushMeta,
    Watched,
    Written,
)

if TYPE_CHECKING:
    from penstock.core.shard import Shard

# Of edges in one part: it is a frame on its way, and a record where it is carried out. Part of what
# the log means: all who fold it must cut at the same place.
MAX_EDGES_BYTES = 1 << 20
_EDGE_BYTES = 24  # beside its key and id


def began_to_wait(shard: Shard, meta: PushMeta, number: int) -> None:
    """A push is in the log whose message waits: the shards of the entries are to watch for them."""
    if not meta.waits or meta.stream not in shard.streams:
        return
    waits = holds.read_waits(meta.waits)
    holds.began(shard.queue(meta.stream), meta.id, waits)
    targets: dict[int, list[Edge]] = {}
    for target, table, key in waits.after:
        targets.setdefault(target, []).append(Edge(table, key, meta.stream, meta.id))
    _tell(shard, number, targets, WatchKeys)


def _tell(
    shard: Shard, number: int, targets: dict[int, list[Edge]], kind: type[WatchKeys | MeetEdges]
) -> None:
    parts = ((target, some) for target, edges in targets.items() for some in _in_parts(edges))
    for index, (target, some) in enumerate(parts):
        shard.outbox.add(target, number, index, kind(some))


def _in_parts(edges: list[Edge]) -> Iterator[list[Edge]]:
    some: list[Edge] = []
    size = 0
    for edge in edges:
        size += len(edge.key) + len(edge.id) + _EDGE_BYTES
        if some and size > MAX_EDGES_BYTES:
            yield some
            some, size = [], len(edge.key) + len(edge.id) + _EDGE_BYTES
        some.append(edge)
    yield some


def written(shard: Shard, note: Written, number: int) -> None:
    """An entry is there: all who wait for it are told, in the order in which they came."""
    targets: dict[int, list[Edge]] = {}
    for target, stream, name in shard.watchers.take(note.stream, note.key):
        edge = Edge(note.stream, note.key, stream, name, note.mark)
        targets.setdefault(target, []).append(edge)
    _tell(shard, number, targets, MeetEdges)


def _watched(shard: Shard, note: Watched, number: int, now_us: int) -> None:
    for edge in note.kept:
        if edge.table in shard.streams and edge.stream in shard.streams:
            watcher = Watcher(note.shard, edge.stream, edge.id)
            shard.watchers.add(edge.table, edge.key, watcher)
    if note.met:
        _tell(shard, number, {note.shard: note.met}, MeetEdges)


def _edges_met(shard: Shard, note: EdgesMet, number: int, now_us: int) -> None:
    failed: list[Hold] = []
    for table, key, stream, name, mark in note.edges:
        if (queue := shard.queues.get(stream)) is not None:
            hold = holds.met(queue, name, holds.packed_edge(table, key), mark)
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
