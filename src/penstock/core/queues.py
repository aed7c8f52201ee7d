"""Queues: push, pop, settle, and what time does to messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.core import queue_rules as rules
from penstock.core.changes import Change, Op, pack_changes, pack_grants
from penstock.core.effects import Deliver, Slice
from penstock.core.feeding import Feed, still_ours
from penstock.core.figures import queue_figures
from penstock.core.kernel import Kernel, still_waiting
from penstock.core.parking import Asker
from penstock.core.queue import QueueShard
from penstock.core.records import Forgotten, Kind
from penstock.core.shard import Shard, Stream
from penstock.core.slices import peek_slices
from penstock.core.undelivered import Handed, Undelivered
from penstock.core.views import MAX_POP_MESSAGES, QueueView, Subscription, Taken, Waiter, bounded
from penstock.errors import LeaseLostError, LimitError, NotFoundError, PenstockError
from penstock.wire import frames
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Flag, PopBody, PopMode, SettleItem, Verb
from penstock.wire.limits import MAX_PRIORITY
from penstock.wire.tuples import new_tuple

# Plain numbers: looking up a member of an enum costs more than comparing it.
_EXTEND, _CHANGE, _GRANT = int(Op.EXTEND), int(Kind.CHANGE), int(Kind.GRANT)
MAX_WAITERS = 10_000  # of one queue
FORGET_AFTER_US = 120_000_000
MAX_FEEDING = 4  # deliveries of a subscription that are logged and not yet sent
MAX_CHANGES = 10_000  # of one record


class Queues:
    """The queues of a node."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.views: dict[int, QueueView] = {}
        self.merging: set[int] = set()  # connections that can read merged batches
        # In a cluster: queues that became empty, or not, or were deleted, until somebody looks.
        self.turned: dict[int, None] = {}
        self.hungry: dict[int, None] = {}  # the same for those that somebody got nothing from
        self.on_end: Callable[[int], None] = _nobody  # told when a shard is served here no more
        self.grant_gangs: Callable[[QueueView], None] = _nobody  # to parked workers
        # Takes out of what is overdue what it deals with itself.
        self.on_overdue: Callable[[QueueShard, list[Change]], list[Change]] = lambda _, due: due
        self.undelivered = Undelivered(kernel, self.change, self.arrived)

    def view(self, stream: int) -> QueueView:
        """What this node knows of a queue."""
        view = self.views.get(stream)
        if view is None:
            view = self.views[stream] = QueueView(stream)
        return view

    def part(self, shard: Shard, stream: int) -> QueueShard:
        """A shard's part of a queue, known to its view."""
        queue = shard.queues.get(stream)
        if queue is None:
            queue = shard.queue(stream)
        view = self.views.get(stream)
        if view is None:
            view = self.view(stream)
        if shard.id not in view.shards:
            view.shards[shard.id] = queue
        return queue

    # --- push ------------------------------------------------------------------------------

    def pushed(self, queue: QueueShard, priority: int) -> None:
        """The newest messages of a queue are there: as `arrived`, but often nothing changes."""
        view = self.view(queue.stream)
        view.heads.offer_newest(queue, MAX_PRIORITY - priority)
        if queue.ttl or queue.delayed.runs:
            self.set_timer(view, queue)
        if view.waiters or view.subscriptions or view.parking is not None:
            self.serve(view)
        self._turn(view)

    def arrived(self, queue: QueueShard) -> None:
        """Messages of a queue became ready, or wait for a time."""
        view = self.view(queue.stream)
        view.heads.offer(queue)
        self.set_timer(view, queue)
        self.serve(view)
        self._turn(view)

    def left(self, view: QueueView) -> None:
        """Messages were taken out otherwise than by a pop."""
        view.heads.check(view.shards)
        self._turn(view)

    def _turn(self, view: QueueView) -> None:
        if view.turns() and self.kernel.shared:
            self.turned[view.stream] = None

    def _begin_fill(self, view: QueueView) -> None:
        """A pop may be answered with none whatever else is there: that counts as new, as whoever
        asked takes such an answer for the end of a fill."""
        view.full = False
        self._turn(view)

    # --- pop -------------------------------------------------------------------------------

    def pop(self, connection: int, request: int, body: PopBody) -> Waiter | None:
        """Answers with messages, now or when some arrive (then a waiter), or with none."""
        stream = self.kernel.stream(body.stream, "queue")
        view = self.view(body.stream)
        body = bounded(body)
        if body.mode != PopMode.LEASE:
            slices = peek_slices(view, body)
            self._deliver(connection, Verb.POP, request, Flag.RESPONSE, slices)
            return None
        rules.check_pop(stream.options)
        waiter = Waiter(connection, request, body)
        if not (view.waiters and body.wait_ms) and self._give(waiter, view):
            return None
        if not body.wait_ms:
            self._deliver(connection, Verb.POP, request, Flag.RESPONSE, [])
            return None
        if len(view.waiters) >= MAX_WAITERS:
            view.waiters = still_waiting(view.waiters)
        if len(view.waiters) >= MAX_WAITERS:
            raise LimitError(f"{MAX_WAITERS:,} pops wait for this queue already")
        view.waiters.append(waiter)
        wait_us = self.kernel.now_us + body.wait_ms * 1000
        waiter.timer = self.kernel.timers.at(wait_us, lambda: self._give_up(waiter))
        return waiter

    def _give_up(self, waiter: Waiter) -> None:
        if not waiter.over:
            waiter.over = True
            self._deliver(waiter.connection, Verb.POP, waiter.request, Flag.RESPONSE, [])

    def _give(self, taker: Waiter, view: QueueView) -> bool:
        taken = self._lease(view, taker.body.messages, taker.body)
        if taken is None:
            return False
        self._log_grants(view, taken, taker)
        return True

    def _lease(
        self, view: QueueView, messages: int, body: PopBody, overdraw: bool = False
    ) -> Taken | None:
        options = self.kernel.streams[view.stream].options
        lease_us = (body.lease_ms or options.lease_ms) * 1000
        now_us, joins = self.kernel.now_us, not self.kernel.shared
        taken = view.take(messages, body.max_bytes, lease_us, now_us, overdraw, joins)
        ends_us, timers_us = self.kernel.now_us + lease_us, view.timers_us
        for queue, _, _ in taken.grants.values():
            # A lease is all that is new: a timer that is set for an earlier time will do.
            if timers_us.get(queue.shard, ends_us + 1) > ends_us:
                self.set_timer(view, queue)
        self._turn(view)
        if not taken.order and self.kernel.shared:
            self.hungry[view.stream] = None
        return taken if taken.order else None

    def _log_grants(self, view: QueueView, taken: Taken, taker: Waiter | Subscription) -> None:
        """Logs the grants; the messages leave when the last of them is written."""
        stream = self.kernel.streams[view.stream]
        level = min(stream.level, Durability.WRITTEN)
        epochs: dict[int, int] = {}
        grants: list[Entry] = []
        for number, given in taken.by_shard().items():
            meta = pack_grants(view.stream, given)
            shard = self.kernel.shards[number]
            grants.append(self.kernel.log(shard, _GRANT, meta, level))
            epochs[number] = shard.epoch
        self.send_when_safe(view, taken, grants, epochs, taker)

    def send_when_safe(
        self, view: QueueView, taken: Taken, grants: list[Entry], epochs: dict[int, int],
        taker: Waiter | Subscription,
    ) -> None:  # fmt: skip
        """Messages leave when the grants of them are written. Whoever waited waits no more."""
        handed = new_tuple(Handed, (view.stream, taken, epochs))
        connection, request = taker.connection, taker.request
        if isinstance(taker, Subscription):

            def leave(slices: list[Slice] | None) -> None:
                if slices is not None:  # else they have left, also if whoever took them is gone
                    if taker.over:  # nobody is there to take them, or to give them back
                        slices = []
                    elif slices:  # a delivery of nothing may be an answer
                        self._deliver(connection, Verb.DELIVER, request, 0, slices)
                    self.undelivered.sent(handed, slices)
                self.serve(view)

            Feed(self.kernel, taker, taken, epochs, leave).wait_for(grants)
            if self.kernel.shared:
                self.undelivered.watch(handed, grants)
            return

        def written() -> None:
            slices = still_ours(self.kernel, taken, epochs)
            if not slices:  # shards are lost, or leases have run out meanwhile
                self._begin_fill(view)
            if not grants[-1].answered:
                self._deliver(connection, Verb.POP, request, Flag.RESPONSE, slices)
            self.undelivered.sent(handed, slices)

        taker.over = True
        if taker.timer is not None:
            self.kernel.timers.cancel(taker.timer)
        failed = partial(self.kernel.fail, connection, Verb.POP, request)
        self.undelivered.answer_when_safe(handed, grants[-1], written, failed)
        if self.kernel.shared:
            self.undelivered.watch(handed, grants[:-1])

    def _deliver(
        self, connection: int, verb: int, request: int, flags: int, slices: list[Slice]
    ) -> None:
        merges = connection in self.merging
        self.kernel.effects.append(Deliver(connection, verb, request, flags, slices, merges))

    # --- subscriptions and waiters ------------------------------------------------------------

    def subscribe(self, connection: int, request: int, body: PopBody) -> Subscription:
        """Messages flow to the connection as long as there is credit."""
        rules.check_pop(self.kernel.stream(body.stream, "queue").options)
        view = self.view(body.stream)
        if len(view.subscriptions) >= MAX_WAITERS:
            view.subscriptions = still_waiting(view.subscriptions)
        if len(view.subscriptions) >= MAX_WAITERS:
            raise LimitError(f"{MAX_WAITERS:,} subscriptions to this queue exist already")
        credit = min(body.messages, MAX_POP_MESSAGES)
        subscription = Subscription(connection, request, bounded(body), credit)
        view.subscriptions.append(subscription)
        self.kernel.send(connection, Verb.SUBSCRIBE, request)
        return subscription

    def closed(self, stream: int) -> None:
        """A queue was deleted: whoever waits for its messages is told."""
        view = self.views.pop(stream, None)
        if self.kernel.shared:
            self.turned[stream] = None
        if view is None:
            return
        for shard in list(view.timers):
            view.drop(shard, self.kernel.timers)
        error = NotFoundError("this queue was deleted")
        waiting: list[Waiter | Subscription | Asker] = [*view.waiters, *view.subscriptions]
        if view.parking is not None:
            waiting += view.parking.waiting.values()
        for parked in waiting:
            if not parked.over:
                parked.over = True
                self.kernel.fail(parked.connection, parked.verb, parked.request, error)

    def serve(self, view: QueueView) -> None:
        """Hands ready messages to whoever waits, the longest waiting first."""
        if view.stream not in self.kernel.streams or self.kernel.refusing is not None:
            return
        if view.parking is not None:
            self.grant_gangs(view)
        if not (view.heads or self.kernel.shared):  # in a cluster it is noted who got nothing
            return
        while view.waiters:
            waiter = view.waiters[0]
            if waiter.over or self._give(waiter, view):
                view.waiters.popleft()
            else:
                return
        idle = 0
        while idle < len(view.subscriptions):
            subscription = view.subscriptions[0]
            view.subscriptions.rotate(-1)
            if subscription.over:
                view.subscriptions.remove(subscription)
            elif (
                subscription.paused
                or subscription.credit <= 0
                or (subscription.feeding >= MAX_FEEDING)
            ):
                idle += 1
            elif self._feed(subscription, view):
                idle = 0
            else:
                return

    def _feed(self, subscription: Subscription, view: QueueView) -> bool:
        taken = self._lease(view, subscription.credit, subscription.body, overdraw=True)
        if taken is None:
            return False
        self._log_grants(view, taken, subscription)
        return True

    def refund(self, subscription: Subscription, messages: int) -> None:
        """Messages that were granted to a subscription do not leave: others may instead, soon."""
        subscription.credit += messages
        view = self.view(subscription.body.stream)
        self.kernel.timers.at(self.kernel.now_us, lambda: self.serve(view))

    # --- settle ----------------------------------------------------------------------------

    def settle(
        self, connection: int, request: int, stream_id: int, items: list[SettleItem],
        patient: bool = False, behind: bool = False,
    ) -> None:  # fmt: skip
        """Acks, nacks and extensions; answers when they are as safe as the queue wants. `patient`:
        nobody waits for that. `behind`: messages that were leased before come before the answer."""
        stream = self.kernel.stream(stream_id, "queue")
        view = self.view(stream_id)
        changes: dict[int, list[Change]] = {}
        refused: list[bytes] = []
        accepted = 0
        for at, item in enumerate(items):
            try:
                accepted += self._settle_one(stream, view, item, changes)
            except PenstockError as error:
                refused.append(frames.REFUSED.pack(at, error.code))
        body = frames.COUNT.pack(accepted, len(refused)) + b"".join(refused)
        entry = self._log_changes(stream, changes, patient)
        if behind:  # other shards' grants of them, too
            entry = self.kernel.barrier(stream.level)
        self.kernel.reply_if_served(
            entry, connection, Verb.SETTLE, request, body, changes, patient, behind
        )
        for number, done in changes.items():
            self._settled(view, view.shards[number], done)
        self.serve(view)
        self._turn(view)

    def _settled(self, view: QueueView, queue: QueueShard, changes: list[Change]) -> None:
        if rules.makes_ready(queue, changes):
            view.heads.offer(queue)
            self.set_timer(view, queue)

    def _settle_one(
        self, stream: Stream, view: QueueView, item: SettleItem, changes: dict[int, list[Change]]
    ) -> int:
        queue = view.shards.get(item.shard)
        if queue is None:
            if item.shard >= len(self.kernel.shards):
                raise NotFoundError(f"there is no shard {item.shard}")
            self.kernel.served(item.shard)
            raise LeaseLostError(f"shard {item.shard} has no messages of this queue")
        now_us, leases = self.kernel.now_us, queue.leases
        change = rules.settle(queue, item, now_us, self.kernel.is_old)
        if change is None:
            return item.messages
        before = leases.messages
        queue.changed(change, self.kernel.now_us)
        changes.setdefault(item.shard, []).append(change)
        return item.messages if change.op == _EXTEND else before - leases.messages

    def _log_changes(
        self, stream: Stream, changes: dict[int, list[Change]], patient: bool
    ) -> Entry:
        """Logs changes that are folded already; the last entry, also if there are none."""
        entry, kernel, number, level = None, self.kernel, stream.info.id, stream.level
        for place, items in changes.items():
            meta = pack_changes(number, items)
            entry = kernel.log(kernel.shards[place], _CHANGE, meta, level)
            entry.patient = patient
        return entry or kernel.barrier(level)

    def change(self, stream: Stream, queue: QueueShard, changes: list[Change]) -> None:
        """Folds and logs changes that nobody waits for."""
        for first in range(0, len(changes), MAX_CHANGES):
            group = changes[first : first + MAX_CHANGES]
            for change in group:
                queue.changed(change, self.kernel.now_us)
            meta = pack_changes(stream.info.id, group)
            self.kernel.log(self.kernel.shards[queue.shard], Kind.CHANGE, meta, stream.level)

    # --- time ------------------------------------------------------------------------------

    def set_timer(self, view: QueueView, queue: QueueShard) -> None:
        """Has a shard's part looked at when its next lease, delay or time-to-live ends."""
        due_us = rules.next_due(queue, self.kernel.now_us)
        if due_us is None:
            return
        set_us = view.timers_us.get(queue.shard)
        if set_us is None or due_us < set_us:
            if set_us is not None:  # what is due then is found when this one has fired
                self.kernel.timers.cancel(view.timers[queue.shard])
            view.timers_us[queue.shard] = due_us
            timer = self.kernel.timers.at(due_us, lambda: self._timer(view, queue))
            view.timers[queue.shard] = timer

    def _timer(self, view: QueueView, queue: QueueShard) -> None:
        del view.timers_us[queue.shard]
        self._sweep(view, queue)
        self.arrived(queue)

    def _sweep(self, view: QueueView, queue: QueueShard) -> None:
        stream = self.kernel.streams[view.stream]
        overdue = rules.overdue(queue, self.kernel.now_us)
        self.change(stream, queue, self.on_overdue(queue, overdue))
        rules.make_due(queue, self.kernel.now_us)
        queue.ids.expire(self.kernel.now_us - stream.options.id_window_ms * 1000)

    def begin(self, shard: Shard) -> None:
        """This node serves a shard from now on."""
        for queue in shard.queues.values():
            self.view(queue.stream).shards[shard.id] = queue
            self.arrived(queue)

    def end(self, shard: Shard) -> None:
        """Another node serves a shard from now on; what waits here waits for the others."""
        self.on_end(shard.id)
        for queue in shard.queues.values():
            view = self.view(queue.stream)
            view.drop(shard.id, self.kernel.timers)
            self._begin_fill(view)
            if self.kernel.shared:
                self.turned[view.stream] = None

    def forget_idle(self, shard: Shard) -> None:
        """Drops empty parts of queues that nothing happened to for a while, and notes it: all that
        fold this log do so at the same point.

        A later one starts above all positions and grants that were used, so that an old token is
        never taken for a new one.
        """
        before_us = self.kernel.now_us - FORGET_AFTER_US
        for stream, queue in list(shard.queues.items()) if shard.owned else ():
            if queue.empty and queue.touched_us < before_us:
                note = Forgotten(stream, queue.leases.next_number)
                self.kernel.note(shard, note, self.kernel.streams[stream].level)
                queue.totals.pushed += queue.pushed
                self.view(stream).drop(shard.id, self.kernel.timers)

    # --- figures ---------------------------------------------------------------------------

    def figures(self, stream: Stream) -> dict[str, Any]:
        """What `penstock queue show` prints."""
        view, before = self.view(stream.info.id), stream.totals.pushed
        figures = queue_figures(list(view.shards.values()), before, self.kernel.now_us)
        return figures | ({"parked": view.parked} if stream.options.gangs else {})


def _nobody(_: object) -> None:
    """Until somebody says so."""
