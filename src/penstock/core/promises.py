"""Messages that are leased while they are on their way into the log.

A push that finds its queue empty, and somebody waiting, is logged together with the lease: both are
safe after the same write and sync, and the messages leave at once. Otherwise the lease would be
made, and written, once the push is safe. Only a node that stands alone does this: in a cluster
others have to agree to a lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import NamedTuple

from penstock.core.changes import Given, pack_grants
from penstock.core.kernel import EARLY_BYTES, Kernel
from penstock.core.queue import QueueShard
from penstock.core.queues import MAX_FEEDING, Queues
from penstock.core.records import Kind
from penstock.core.shard import Shard, Stream
from penstock.core.views import QueueView, Subscription, Taken, Waiter
from penstock.wire.batch import DUE_AT, HEADER_BYTES, Batch
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import FRAME_BYTES, PUSH, Flag, Verb, one_grant
from penstock.wire.tuples import new_tuple

_PUSH_BYTES, _WRITTEN = FRAME_BYTES + PUSH.size, int(Durability.WRITTEN)
_DUE = Struct("<q")
_GRANT, _POP, _DELIVER = int(Kind.GRANT), int(Verb.POP), int(Verb.DELIVER)


class Promise(NamedTuple):
    """A lease of messages that are not visible yet. `taken` is filled once they are."""

    view: QueueView
    given: Given
    taken: Taken
    entry: Entry


class Promises:
    """Makes and keeps them."""

    def __init__(self, kernel: Kernel, queues: Queues) -> None:
        self._kernel = kernel
        self._queues = queues
        self.waking: set[int] = set()  # connections that may be told what will come in a moment

    def make(
        self, shard: Shard, stream: Stream, batch: Batch, level: Durability
    ) -> Promise | None:
        """Leases a batch that was logged just now, and is visible once that is safe; None if it
        has to wait for its turn, or nobody waits for it."""
        if self._kernel.shared or not level or not stream.plain:
            return None
        view = self._queues.views.get(stream.info.id)
        if view is None or view.heads or view.parking is not None:
            return None
        header = batch.header
        count = header.count
        if stream.totals.coming != view.promised or header.due_us:
            return None  # others come first, or this one is not due
        if header.ttl_ms or stream.options.ttl_ms:
            return None
        taker = _taker(view, count, header.length)
        return None if taker is None else self._lease(shard, stream, view, batch, taker)

    def awaited_by(self, push: Buffer) -> int | None:
        """The connection that what is pushed would be promised to, if nothing is wrong with it.
        None if there is none, or messages are seen only once they are synced: that takes longer
        than all that could be done before it."""
        if not _PUSH_BYTES + HEADER_BYTES < len(push) <= EARLY_BYTES or self._kernel.shared:
            return None
        number, _, _, _, extra = PUSH.unpack_from(push, FRAME_BYTES)
        if extra or _DUE.unpack_from(push, _PUSH_BYTES + DUE_AT)[0]:
            return None  # it may be held, or stored before; or it is not due
        stream, view = self._kernel.streams.get(number), self._queues.views.get(number)
        if stream is None or view is None or stream.level != _WRITTEN or stream.totals.coming:
            return None
        if view.heads or not stream.plain:
            return None
        line: deque[Waiter] | deque[Subscription] = view.waiters or view.subscriptions
        first = line[0] if line else None
        if first is None or first.over:
            return None
        if isinstance(first, Subscription) and (first.paused or first.feeding or not first.credit):
            return None
        return first.connection

    def _lease(
        self, shard: Shard, stream: Stream, view: QueueView, batch: Batch,
        taker: Waiter | Subscription,
    ) -> Promise:  # fmt: skip
        header = batch.header
        leases = view.shards[shard.id].leases
        lease_us = (taker.body.lease_ms or stream.options.lease_ms) * 1000
        given = new_tuple(Given, (leases.next_number, header.base, header.count, lease_us))
        leases.next_number += 1
        meta = pack_grants(view.stream, (given,))
        # Not less, also if the queue wants less: it must not be safe before the messages are.
        entry = self._kernel.log(shard, _GRANT, meta, Durability.WRITTEN)
        shard.invisible.add(entry.number)  # a snapshot that lacks the messages lacks their lease
        view.promised += header.count
        taken = Taken(header.count)
        self._queues.send_when_safe(view, taken, [entry], {shard.id: shard.epoch}, taker)
        if entry.answer is not None:  # not before there is something to answer with
            entry.done, entry.answer = partial(_answer, entry.answer), None
        if header.length <= EARLY_BYTES and _is_next(taker):
            entry.reply = taker.connection, delivery_of(taker, shard.id, given, batch)
            if isinstance(taker, Subscription):  # whoever waited for one pop waits no more now
                entry.reader = taker
        return new_tuple(Promise, (view, given, taken, entry))

    def keep(self, promise: Promise, shard: Shard, queue: QueueShard) -> None:
        """The messages are visible now: nobody else gets them."""
        view, given, taken, _ = promise
        self.end(promise, shard)
        grant = queue.granted(given, self._kernel.now_us)
        taken.grants[0] = (queue, given, grant)
        taken.order.append(0)
        if view.timers_us.get(queue.shard, grant.deadline_us + 1) > grant.deadline_us:
            self._queues.set_timer(view, queue)

    def end(self, promise: Promise, shard: Shard) -> None:
        """The messages are visible, or never will be."""
        promise.view.promised -= promise.given.span
        shard.invisible.discard(promise.entry.number)


def _is_next(taker: Waiter | Subscription) -> bool:
    """Whether what it is promised now may leave early: nothing for it is under way that might leave
    later."""
    return not isinstance(taker, Subscription) or taker.feeding == 1


def delivery_of(
    taker: Waiter | Subscription, shard: int, given: Given, batch: Batch
) -> bytes:
    """The frame that a whole batch is delivered by, for the first time."""
    subscribed = isinstance(taker, Subscription)
    verb, flags = (_DELIVER, 0) if subscribed else (_POP, Flag.RESPONSE)
    number, position, span, _ = given
    head = one_grant(verb, taker.request, flags, number, position, span, shard, batch.header.length)
    return head + batch.buffer


def _answer(answer: Callable[[], None], _: Entry) -> None:
    answer()


def _taker(view: QueueView, messages: int, size: int) -> Waiter | Subscription | None:
    """Who gets so many messages of that size; whoever waits longest may want less, or more."""
    waiters, subscriptions = view.waiters, view.subscriptions
    while waiters and waiters[0].over:
        waiters.popleft()
    if waiters:
        wanted = waiters[0].body
        fits = messages <= wanted.messages and size <= wanted.max_bytes
        return waiters.popleft() if fits else None
    for _ in range(len(subscriptions)):
        first = subscriptions.popleft()
        if first.over:
            continue
        subscriptions.append(first)
        ready = not first.paused and first.feeding < MAX_FEEDING
        if ready and messages <= first.credit and size <= first.body.max_bytes:
            return first
    return None
