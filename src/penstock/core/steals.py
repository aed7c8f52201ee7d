"""Moving ready messages of a queue to another shard: one record of the shard that they leave.

The record takes the messages out of the queue and puts them into the shard's outbox, in one step:
so they are in one place at any time, and are pushed once where they go. Only messages that nobody
was ever given move, in whole batches or the rest of one: no count of deliveries can be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import NamedTuple

from penstock.core.index import Stored
from penstock.core.lanes import LANE_SHIFT, Lane
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import Drop, Outgoing
from penstock.core.runs import full
from penstock.core.transactions import Transactions
from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.batch import HEADER, Batch, Columns, Header, seal_in_place
from penstock.wire.buffers import Buffer
from penstock.wire.encode import encode_rows


class Loot(NamedTuple):
    """Messages that could move: a batch, or what is left at its end."""

    rank: tuple[int, int]  # the lane (its priority), then the time of arrival
    shard: int
    position: int
    span: int
    stored: Stored


class Steals:
    """What leaves the queues of a node."""

    def __init__(self, queues: Queues, transactions: Transactions) -> None:
        self.kernel = queues.kernel
        self.queues = queues
        self.transactions = transactions

    def may_leave(self, stream: int) -> bool:
        """Whether messages of a queue may move to other shards at all."""
        known = self.kernel.streams.get(stream)
        if known is None or known.info.kind != "queue" or not self.kernel.forwarding:
            return False
        options: m.QueueOptions = known.options
        return options.ordered == "no" and not options.gangs and options.stealing

    def lying(self, stream: int) -> Iterator[Loot]:
        """Messages that nobody was ever given, batch by batch, the first to be popped first."""
        view = self.queues.views.get(stream)
        if view is None:
            return iter(())
        parts = [view.shards[number] for number in view.heads.shards() if number in view.shards]
        return merge(*(_fresh(part) for part in parts), *(_returned(part) for part in parts))

    def move(self, stream: int, target: int, loot: Iterable[tuple[Loot, Buffer]]) -> int:
        """Moves batches, given with their stored bytes, to a shard of another node; how many
        messages they have. What was popped, or moved itself, since they were found stays."""
        groups: dict[int, list[tuple[Loot, Buffer]]] = {}
        for each, data in loot:
            groups.setdefault(each.shard, []).append((each, data))
        moved = sum(self._leave(stream, home, target, group) for home, group in groups.items())
        if moved:
            self.queues.left(self.queues.view(stream))
        return moved

    def _leave(
        self, stream: int, home: int, target: int, group: list[tuple[Loot, Buffer]]
    ) -> int:
        shard = self.kernel.shards[home]
        queue = shard.queues.get(stream)
        if not self.may_leave(stream) or queue is None or not shard.owned or home == target:
            return 0
        pushes: list[m.TxnPush] = []
        drops: list[Drop] = []
        for each, data in group:
            batch = self._travelling(queue, each, data)
            if batch is not None:
                pushes.append(m.TxnPush(stream, 0, target, batch))
                drops.append(Drop(stream, each.position, each.span))
        if not pushes:
            return 0
        moved = m.Transact(0, 0, home, pushes=pushes)
        outgoing = Outgoing([target] * len(pushes), moved, drops)
        try:
            self.transactions.log_outgoing(outgoing, shard, self.kernel.streams[stream].level)
        except PenstockError:  # so much is on its way already that no more may be
            return 0
        return sum(drop.span for drop in drops)

    def _travelling(self, queue: QueueShard, loot: Loot, data: Buffer) -> bytes | None:
        """The batch as it is pushed elsewhere: without its producer, whose numbers stay here, and
        with what is left of its time to live. None if it must stay."""
        if not _is_there(queue, loot):
            return None
        header = Header._make(HEADER.unpack_from(data))
        left_ms = ttl_ms = header.ttl_ms or queue.options.ttl_ms
        if ttl_ms:
            left_ms = ttl_ms - (self.kernel.now_us - loot.stored.arrived_us) // 1000
        if header.columns & Columns.DELTAS or (ttl_ms and left_ms < 1):
            return None
        buffer = bytearray(data) if loot.span == header.count else _rest(data, loot.span)
        header = Header._make(HEADER.unpack_from(buffer))
        plain = header._replace(producer=0, sequence=0, instance=0, due_us=0, ttl_ms=left_ms)
        HEADER.pack_into(buffer, 0, *plain)
        return bytes(seal_in_place(buffer))


def _rest(data: Buffer, count: int) -> bytearray:
    """A batch with the last messages of another."""
    batch = Batch.parse(data, verify=False)
    return encode_rows(batch, range(batch.count - count, batch.count), batch.header.generation)


def _fresh(queue: QueueShard) -> Iterator[Loot]:
    """What is ahead of the cursors; of a batch that was begun, the rest."""
    for lane in queue.lanes.values():
        index = lane.index
        row = index.row_of(lane.cursor) if lane.fresh else -1
        if row < 0 and lane.fresh:
            row = index.next_row(lane.cursor)
        while 0 <= row < index.rows_end:
            stored = index.at(row)
            position = max(stored.base, lane.cursor)
            loot = _loot(queue, stored, position, stored.base + stored.span - position)
            if _is_fresh(lane, loot):
                yield loot
            row += 1


def _returned(queue: QueueShard) -> Iterator[Loot]:
    """Batches that were delayed or held, and are ready."""
    found: list[Loot] = []
    for run in queue.returned.runs.values():
        stored = queue.find(run.position)
        if stored is not None and stored.base == run.position and not run.deliveries:
            loot = _loot(queue, stored, run.position, stored.span)
            if _is_returned(queue, loot):
                found.append(loot)
    return iter(sorted(found))


def _loot(queue: QueueShard, stored: Stored, position: int, span: int) -> Loot:
    rank = (stored.base >> LANE_SHIFT, stored.arrived_us)
    return Loot(rank, queue.shard, position, span, stored)


def _is_there(queue: QueueShard, loot: Loot) -> bool:
    """Whether it is still as it was found."""
    lane = queue.lane_at(loot.position)
    now = queue.find(loot.position)
    if lane is None or now is None:
        return False
    loot = loot._replace(stored=now)
    return _is_returned(queue, loot) or _is_fresh(lane, loot)


def _is_returned(queue: QueueShard, loot: Loot) -> bool:
    run, stored = queue.returned.runs.get(loot.position), loot.stored
    whole = stored.live == stored.span == stored.rows == loot.span
    return run is not None and not run.deliveries and run.mask == full(loot.span) and whole


def _is_fresh(lane: Lane, loot: Loot) -> bool:
    stored = loot.stored
    if stored.base in lane.skips or stored.rows != stored.span:
        return False
    begun = loot.position > stored.base
    return loot.position == lane.cursor if begun else lane.cursor <= stored.base
