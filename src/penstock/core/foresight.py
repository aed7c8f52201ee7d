"""What becomes of a push that somebody waits for, before it is worked on.

A single message to a consumer that waits is logged together with its lease, and leaves when both
are written (see `promises`). All that decides what is written then, and what leaves, is known when
the frame comes. So the shell may write and send that first, and let the core work on the push after
it: the consumer has the message while the node is still busy with it.

Nothing changes here, and nothing is decided: whatever is not plain is not foreseen. What is
foreseen is what the core does then, to the byte, and whoever acts on it compares.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.changes import Given, pack_grants
from penstock.core.dedupe import Window
from penstock.core.kernel import EARLY_BYTES, Kernel
from penstock.core.lanes import lane_start
from penstock.core.promises import delivery_of
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.shard import Shard, Stream
from penstock.core.views import QueueView, Subscription, Waiter
from penstock.wire.batch import Batch, Header
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import FRAME, FRAME_BYTES, RECEIPT, Flag, PushBody, Verb
from penstock.wire.frames import frame as framed
from penstock.wire.plain import read_push
from penstock.wire.tuples import new_tuple

_WRITTEN, _PUSH, _GRANT = int(Durability.WRITTEN), int(Kind.PUSH), int(Kind.GRANT)
_LANE, _VERB = lane_start(0), int(Verb.PUSH)  # the lane of what is not urgent

Plain = tuple[PushBody, Batch]


Reply = tuple[int, bytes]  # for a connection


class Seen(NamedTuple):
    """The records that will be logged, and what leaves for whom once they are written: first the
    receipt, which leaves last. The entries are not those that the core makes, only like them."""

    entries: tuple[Entry, Entry]
    replies: tuple[Reply, Reply]


class Foresight:
    """Looks at the state of a node, and changes nothing of it."""

    def __init__(self, kernel: Kernel, queues: Queues) -> None:
        self._kernel = kernel
        self._queues = queues
        self._read: tuple[Buffer, Plain] | None = None

    def read(self, body: memoryview) -> Plain | None:
        """As `read_push`; not again if it was just looked at."""
        before, self._read = self._read, None
        return read_push(body) if before is None or before[0] is not body.obj else before[1]

    def of(self, connection: int, frame: Buffer, now_us: int) -> Seen | None:
        """What a push will bring about if it is the next event, at this time; None if that is not
        plain. Its batch is stamped with what will be its place."""
        kernel = self._kernel
        due_us = kernel.timers.next_due()
        if kernel.refusing is not None or kernel.effects or kernel.shared:
            return None
        if due_us is not None and due_us <= now_us:
            return None  # what time brings comes before it
        if (plain := read_push(memoryview(frame)[FRAME_BYTES:])) is None:
            return None
        self._read, (body, batch) = (frame, plain), plain
        stream, view = kernel.streams.get(body.stream), self._queues.views.get(body.stream)
        if stream is None or view is None or body.durability or body.shard >= len(kernel.shards):
            return None
        shard, header = kernel.shards[body.shard], batch.header
        queue = view.shards.get(shard.id)
        if queue is None or not self._is_next(shard, stream, view, header):
            return None
        taker = _taker(view, header.count, header.length)
        if taker is None or (lane := queue.lanes.get(_LANE)) is None:
            return None
        batch.stamp(lane.tail, shard.epoch, now_us)
        _, _, _, _, request = FRAME.unpack_from(frame)
        entries, delivery = _logged(shard, stream, queue, body, batch, taker)
        receipt = RECEIPT.pack(lane.tail, header.count, shard.id, stream.level, False)
        answer = connection, framed(_VERB, request, Flag.RESPONSE, receipt)
        return Seen(entries, (answer, (taker.connection, delivery)))

    def _is_next(self, shard: Shard, stream: Stream, view: QueueView, header: Header) -> bool:
        """Whether a batch is stored and leased as soon as it is there."""
        window: Window | None = shard.producers.windows.get(header.producer)
        if window is None or not window.expects(header) or shard.invisible or not shard.owned:
            return False
        if not stream.plain or stream.level != _WRITTEN or header.length > EARLY_BYTES:
            return False
        options, totals = stream.options, stream.totals
        if totals.coming or view.promised or view.heads or view.parking is not None:
            return False
        if header.due_us or header.ttl_ms or options.ttl_ms:
            return False
        if totals.messages + header.count > options.max_messages:
            return False
        return bool(totals.bytes + header.length <= options.max_bytes)


def _logged(
    shard: Shard, stream: Stream, queue: QueueShard, body: PushBody, batch: Batch,
    taker: Waiter | Subscription,
) -> tuple[tuple[Entry, Entry], bytes]:  # fmt: skip
    """The records of a batch and of its lease, and what the batch leaves as."""
    header, number, level = batch.header, shard.last + 1, stream.level
    fields = (
        stream.info.id, body.partition, header.base, header.count, header.producer,
        header.sequence, header.instance, False, b"", b"",
    )  # fmt: skip
    meta = pack_push(new_tuple(PushMeta, fields))
    push = Entry(shard.id, _PUSH, shard.epoch, number, meta, batch.buffer, level)
    lease_us = (taker.body.lease_ms or stream.options.lease_ms) * 1000
    given = new_tuple(Given, (queue.leases.next_number, header.base, header.count, lease_us))
    meta = pack_grants(stream.info.id, (given,))
    grant = Entry(shard.id, _GRANT, shard.epoch, number + 1, meta, None, level)
    return (push, grant), delivery_of(taker, shard.id, given, batch)


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
    ready = not (first.over or first.paused or first.feeding)
    fits = messages <= first.credit and size <= first.body.max_bytes
    return first if ready and fits else None
