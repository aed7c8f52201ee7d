"""What becomes of a small push, before it is worked on.

All that decides what is written for a single message, and what leaves then, is known when its frame
comes. So the shell may write that, and send it or begin the sync, and hand the push in after it: a
consumer that waits has a `written` message while the node is still busy with it, and a `synced`
push is on its way to the disk meanwhile. A message that somebody waits for is logged together with
its lease (see `core.promises`).

Nothing is decided here, and nothing changes: whatever is not plain is not foreseen. What is
foreseen is what the core does then, to the byte, and whoever acts on it compares (`is_what`).

Only the compiled module (`_foresight.c`) is quick enough for that to be worth it. Where it is not
there, nothing is foreseen.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import NamedTuple

import xxhash

from penstock.core.fabric import Fabric
from penstock.core.kernel import EARLY_BYTES
from penstock.core.lanes import lane_start
from penstock.core.queue import QueueShard
from penstock.core.shard import Shard, Stream
from penstock.core.views import QueueView, Subscription, Waiter
from penstock.store.flush import APART_BYTES, Flush
from penstock.store.journal import Journal
from penstock.store.locations import split
from penstock.wire.durability import Durability
from penstock.wire.frames import FRAME_BYTES, PUSH
from penstock.wire.packing import PURE

COMPILED = False  # whether anything is foreseen
if not PURE:
    with suppress(ImportError):
        from penstock.engine import _foresight

        COMPILED = True

_digest = xxhash.xxh3_64_intdigest
_WRITTEN, _SYNCED = int(Durability.WRITTEN), int(Durability.SYNCED)
_LANE = lane_start(0)  # of what is not urgent
_STREAM = Struct("<I")
_BEFORE_BATCH = FRAME_BYTES + PUSH.size
_MORE_BYTES = 256  # beside the frame, of its record and that of its lease
_NOBODY, _POP, _SUBSCRIPTION = range(3)
Reply = tuple[int, bytes]  # for a connection


class Foreseen(NamedTuple):
    """What a push will have written, and where; and what leaves then, for whom: a receipt, and the
    messages, if somebody waits for them."""

    name: str
    location: int  # in the journal, of its first byte
    records: bytes
    replies: tuple[Reply, ...]
    synced: bool  # it leaves once what was written is synced

    @property
    def offset(self) -> int:
        """Where the records are in the file."""
        return split(self.location)[1]

    @property
    def end(self) -> int:
        """Where the journal ends then: so far a sync that begins now must reach, and no further."""
        return self.location + len(self.records)

    def is_what(self, flush: Flush) -> bool:
        """Whether it has come so, to the byte."""
        if len(flush.pieces) != 1 or flush.sync:
            return False
        (piece,) = flush.pieces
        if piece.opening is not None or (piece.name, piece.offset) != (self.name, self.offset):
            return False
        replies = tuple(entry.reply for entry in flush.entries)
        return replies == self.replies and b"".join(piece.parts) == self.records


class _Push(NamedTuple):
    """What is known of a push without a look at its batch."""

    connection: int
    frame: bytearray
    now_us: int
    stream: Stream
    view: QueueView
    waits: bool  # whether anybody waits for messages


class Foresight:
    """Looks at the state of a node that stands alone."""

    def __init__(self, fabric: Fabric, journal: Journal) -> None:
        self._fabric = fabric
        self._journal = journal

    def of(self, connection: int, frame: bytearray, now_us: int) -> Foreseen | None:
        """What a push will bring about if it is the next event, at this time, and the next flush is
        run at once; None unless that is plain. Its batch is stamped with what will be its place.
        """
        if not COMPILED or not _BEFORE_BATCH < len(frame) <= EARLY_BYTES:
            return None
        fabric = self._fabric
        (number,) = _STREAM.unpack_from(frame, FRAME_BYTES)
        stream, view = fabric.kernel.streams.get(number), fabric.queues.views.get(number)
        if stream is None or view is None or not stream.plain:
            return None
        waits = bool(view.waiters or view.subscriptions)
        if not (waits if stream.level == _WRITTEN else self._may_sync(stream, len(frame))):
            return None
        if not self._is_at_rest(now_us) or connection not in fabric.connections:
            return None
        push = _Push(connection, frame, now_us, stream, view, waits)
        return None if (where := self._where(push)) is None else self._seen(push, *where)

    def _where(self, push: _Push) -> tuple[QueueShard, Waiter | Subscription | None] | None:
        """The part of the queue that it comes to, and who gets it at once; None if it may be
        refused, or not come to anything so simple."""
        shards, view = self._fabric.kernel.shards, push.view
        if (found := _foresight.peek(push.frame, _digest)) is None:
            return None
        _, place, producer, sequence, instance, messages, size = found
        shard = shards[place] if place < len(shards) else None
        if shard is None or not _is_stored(shard, push.stream, messages, size):
            return None
        window, queue = shard.producers.windows.get(producer), view.shards.get(place)
        if window is None or (sequence, instance) != (window.next_sequence, window.instance):
            return None
        taker = _taker(push.stream, view, messages, size) if push.waits else None
        if push.waits and (taker is None or taker.connection == push.connection):
            return None
        return None if queue is None else (queue, taker)

    def _seen(
        self, push: _Push, queue: QueueShard, taker: Waiter | Subscription | None
    ) -> Foreseen | None:
        journal, stream = self._journal, push.stream
        end, lane = journal.end_of_written(len(push.frame) + _MORE_BYTES), queue.lanes.get(_LANE)
        if end is None or lane is None:
            return None
        who = grant = lease_us = request = _NOBODY
        if taker is not None:
            who = _POP if isinstance(taker, Waiter) else _SUBSCRIPTION
            grant, request = queue.leases.next_number, taker.request
            lease_us = (taker.body.lease_ms or stream.options.lease_ms) * 1000
        shard = self._fabric.kernel.shards[queue.shard]
        records, receipt, delivery = _foresight.promised(
            push.frame, _digest, lane.tail, shard.epoch, push.now_us, shard.last + 1, grant,
            lease_us, int(stream.level), who, request, end.end, journal.synced,
        )  # fmt: skip
        replies = [(push.connection, receipt)]
        if taker is not None and delivery is not None:
            replies.append((taker.connection, delivery))
        synced = stream.level == _SYNCED
        return Foreseen(end.name, end.end, records, tuple(replies), synced)

    def _may_sync(self, stream: Stream, size: int) -> bool:
        """Whether a frame of that size is written apart from its sync, which begins at once."""
        small = size + _MORE_BYTES <= APART_BYTES
        return stream.level == _SYNCED and small and not self._journal.busy

    def _is_at_rest(self, now_us: int) -> bool:
        """Whether nothing comes before the next event, or with it, and the disk takes writes."""
        kernel = self._fabric.kernel
        if kernel.shared or kernel.effects or kernel.refusing is not None:
            return False
        due_us = kernel.timers.next_due()
        return (due_us is None or due_us > now_us) and not self._fabric.forwards.owes


def _is_stored(shard: Shard, stream: Stream, messages: int, size: int) -> bool:
    """Whether a batch that is next of its producer has room, and nothing before it."""
    options, totals = stream.options, stream.totals
    waiting = totals.messages + totals.coming
    fits = waiting + messages <= options.max_messages and totals.bytes + size <= options.max_bytes
    return bool(fits and shard.owned and not shard.invisible)


def _taker(
    stream: Stream, view: QueueView, messages: int, size: int
) -> Waiter | Subscription | None:
    """Who gets a batch of that size as soon as it is stored, if that is the first in line, and
    nothing else is under way for it."""
    others = stream.totals.coming or view.promised or view.heads or view.parking is not None
    if others or stream.options.ttl_ms:
        return None
    if view.waiters:
        waiter = view.waiters[0]
        wanted = waiter.body
        fits = messages <= wanted.messages and size <= wanted.max_bytes
        return waiter if fits and not waiter.over else None
    first = view.subscriptions[0]
    if first.over or first.paused or first.feeding:
        return None
    return first if messages <= first.credit and size <= first.body.max_bytes else None

