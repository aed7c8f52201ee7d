"""What becomes of a push that somebody waits for, before it is worked on.

A single message to a consumer that waits is logged together with its lease, and leaves when both
are written (see `core.promises`). All that decides what is written then, and what leaves, is known
when the frame comes. So the shell may write and send that first, and hand the push in after it: the
consumer has the message while the node is still busy with it, and so has whoever pushed an answer.

Nothing is decided here, and nothing changes: whatever is not plain is not foreseen. What is
foreseen is what the core does then, to the byte, and whoever acts on it compares (`is_what`).

Only the compiled module (`_foresight.c`) is quick enough for that to be worth it. Where it is not
there, nothing is foreseen.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import xxhash

from penstock.core.fabric import Fabric
from penstock.core.kernel import Kernel
from penstock.core.lanes import lane_start
from penstock.core.shard import Shard, Stream
from penstock.core.views import QueueView, Subscription, Waiter
from penstock.store.flush import Flush
from penstock.store.journal import Journal
from penstock.wire.durability import Durability
from penstock.wire.packing import PURE

COMPILED = False  # whether anything is foreseen
if not PURE:
    with suppress(ImportError):
        from penstock.engine import _foresight

        COMPILED = True

_digest = xxhash.xxh3_64_intdigest
_WRITTEN = int(Durability.WRITTEN)
_LANE = lane_start(0)  # of what is not urgent
_MORE_BYTES = 256  # beside the batch, of its record and that of its lease
Reply = tuple[int, bytes]  # for a connection


class Foreseen(NamedTuple):
    """What a push will have written, and where; and what leaves then, for whom: a receipt, and the
    messages."""

    name: str
    offset: int
    records: bytes
    replies: tuple[Reply, Reply]

    def is_what(self, flush: Flush) -> bool:
        """Whether it has come so, to the byte."""
        if len(flush.pieces) != 1 or flush.sync:
            return False
        (piece,) = flush.pieces
        if piece.opening is not None or (piece.name, piece.offset) != (self.name, self.offset):
            return False
        replies = tuple(entry.reply for entry in flush.entries)
        return replies == self.replies and b"".join(piece.parts) == self.records


class Foresight:
    """Looks at the state of a node that stands alone."""

    def __init__(self, fabric: Fabric, journal: Journal) -> None:
        self._fabric = fabric
        self._journal = journal

    def of(self, connection: int, frame: bytearray, now_us: int) -> Foreseen | None:
        """What a push will bring about if it is the next event, at this time, and the next flush is
        run at once; None unless that is plain. Its batch is stamped with what will be its place.
        """
        fabric, kernel = self._fabric, self._fabric.kernel
        if not COMPILED or not _is_at_rest(kernel, now_us) or connection not in fabric.connections:
            return None
        if (found := _foresight.peek(frame, _digest)) is None:
            return None
        number, place, producer, sequence, instance, messages, size = found
        stream, view = kernel.streams.get(number), fabric.queues.views.get(number)
        if stream is None or view is None or place >= len(kernel.shards):
            return None
        shard, queue = kernel.shards[place], view.shards.get(place)
        window = shard.producers.windows.get(producer)
        if window is None or (sequence, instance) != (window.next_sequence, window.instance):
            return None
        if queue is None or not _is_stored_at_once(shard, stream, view, messages, size):
            return None
        taker, lane = _taker(view, messages, size), queue.lanes.get(_LANE)
        end = self._journal.end_of_written(size + _MORE_BYTES)
        if taker is None or lane is None or end is None:
            return None
        lease_us = (taker.body.lease_ms or stream.options.lease_ms) * 1000
        records, receipt, delivery = _foresight.promised(
            frame, _digest, lane.tail, shard.epoch, now_us, shard.last + 1,
            queue.leases.next_number, lease_us, _WRITTEN, isinstance(taker, Waiter), taker.request,
            end.number << 32 | end.used, self._journal.synced,
        )  # fmt: skip
        replies = (connection, receipt), (taker.connection, delivery)
        return Foreseen(end.name, end.used, records, replies)


def _is_at_rest(kernel: Kernel, now_us: int) -> bool:
    """Whether nothing comes before the next event, and the disk takes writes."""
    if kernel.shared or kernel.effects or kernel.refusing is not None:
        return False
    due_us = kernel.timers.next_due()
    return due_us is None or due_us > now_us


def _is_stored_at_once(
    shard: Shard, stream: Stream, view: QueueView, messages: int, size: int
) -> bool:
    """Whether a batch that is next of its producer has nothing before it, and there is room."""
    if not stream.plain or stream.level != _WRITTEN or shard.invisible or not shard.owned:
        return False
    options, totals = stream.options, stream.totals
    if totals.coming or view.promised or view.heads or view.parking is not None or options.ttl_ms:
        return False
    room = options.max_messages - totals.messages, options.max_bytes - totals.bytes
    return bool(messages <= room[0] and size <= room[1])


def _taker(view: QueueView, messages: int, size: int) -> Waiter | Subscription | None:
    """Who gets a batch of that size, if that is the first in line, and nothing else is under way
    for it."""
    if view.waiters:
        waiter = view.waiters[0]
        wanted = waiter.body
        fits = messages <= wanted.messages and size <= wanted.max_bytes
        return waiter if fits and not waiter.over else None
    if not view.subscriptions:
        return None
    first = view.subscriptions[0]
    if first.over or first.paused or first.feeding:
        return None
    return first if messages <= first.credit and size <= first.body.max_bytes else None
