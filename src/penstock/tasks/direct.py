"""A task from its submission to its outcome on one thread: the one that waits for it.

A blocking app has a loop in a thread of its own. Handing a task to that thread, and being woken by
it when the outcome is there, takes a fifth of the time that a short task needs altogether. So a
program that has lately submitted one task after the other, and waited for each, gets a *turn*: the
thread that submits pushes the task itself, over the fabric's own connection, and the thread that
asks for the result reads the outcome itself.

Whatever is not like that ends the turn: another submission, a result that takes a while, nobody who
asks for it. Then the loop goes on, and nothing is lost by that: it reads outcomes from where it has
read to, and one that was told already is nobody's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client.connection import Connection
from penstock.client.ops_push import plain_push
from penstock.client.ops_topic import PartitionReader
from penstock.client.push import PushRequest, finish_push
from penstock.client.requests import Pending
from penstock.errors import PenstockError
from penstock.tasks.envelope import read_outcome
from penstock.tasks.futures import TaskFuture
from penstock.tasks.link import TaskLink
from penstock.tasks.names import reply_partition, streams_of
from penstock.tasks.outbox import PLAIN, Parcel, Shipment
from penstock.tasks.portal import Portal
from penstock.wire.batch import Batch

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric
    from penstock.client.blocking_streams import Queue

ALONE = 4  # tasks in a row, each the only one and waited for, before there are turns
PATIENCE_S = 0.05  # so long a thread reads by itself; who waits for more needs not hurry
TICK_S = 0.005  # how often the loop looks for turns that nobody waits in
IDLE_TICKS = 200  # without a turn: it stops to look
SPURNED = -100  # instead of the number of tasks in a row, after such a turn
_READ_BYTES = 1 << 20


class Turn:
    """A task that was pushed past the loop."""

    __slots__ = ("push", "request", "shipment", "task", "ticks", "waited")

    def __init__(self, parcel: Parcel, request: PushRequest) -> None:
        self.task = parcel.tasks[0]
        self.shipment = Shipment(PLAIN, [parcel])
        self.request = request
        self.push: Pending | None = None  # once it is sent
        self.waited = True  # by a thread: it reads the outcome, or pushes the task still
        self.ticks = 0  # that the loop has seen it without one


class _Told:
    """Done when outcomes have come, or none will, because the task was refused."""

    def __init__(self, outcomes: Pending, push: Pending) -> None:
        self._outcomes = outcomes
        self._push = push

    @property
    def done(self) -> bool:
        return self._outcomes.done or self._push.error is not None


class Direct:
    """The turns of one app: one at a time. Threads may share it.

    A cluster has none: there the queue and the outcomes are of several nodes.
    """

    def __init__(self, fabric: Fabric, task_set: str, link: TaskLink, portal: Portal) -> None:
        self._fabric = fabric
        self._connection: Connection = fabric._connection
        self._names = streams_of(task_set)
        self._link = link
        self._portal = portal
        self._lock = threading.Lock()  # around the three that follow
        self._turn: Turn | None = None
        self._alone = 0
        self._off = fabric._connection.routes is not None
        self._queue: Queue | None = None  # opened for the first turn
        self._reader: PartitionReader
        self._ticking = False
        self.taken = self._seen = 0  # turns, now and at the last tick
        self._idle_ticks = 0

    def take(self, parcel: Parcel) -> bool:
        """Sends a parcel, if it is its turn; whether it did. If there is a turn that nobody waits
        in, that ends."""
        if self._turn is not None:
            self.leave()
            return False
        if self._alone < ALONE or self._off or not self._is_quiet() or not _is_plain(parcel):
            return False
        try:
            turn = self._begin(parcel)
        except PenstockError:  # the loop will find out
            self._off = True
            return False
        if turn is not None and not self._ticking:
            self._ticking = True
            self._portal.soon(self._tick)
        return turn is not None

    def leave(self) -> None:
        """Has the loop go on with a turn that nobody waits in, if there is one."""
        with self._lock:
            turn = self._turn
            if turn is None or turn.waited:
                return
            self._turn = None
        self._hand_over(turn)

    def wait(self, future: TaskFuture[Any], timeout: float | None) -> float | None:
        """Waits for an outcome in its turn, a moment at most. What is left of `timeout`."""
        with self._lock:
            turn = self._turn
            if turn is None or turn.task != future.id or turn.waited:
                self._alone = self._alone + 1 if len(self._link.waiting) == 1 else 0
                return timeout
            turn.waited = True
        began = time.monotonic()
        ends = began + (PATIENCE_S if timeout is None else min(timeout, PATIENCE_S))
        try:
            self._read(turn, future.done, ends)
        except PenstockError:
            pass  # the loop will find out, too
        finally:
            with self._lock:
                self._turn = None
            self._end(turn, future.done())
        return None if timeout is None else max(timeout - (time.monotonic() - began), 0.0)

    def close(self) -> None:
        """There are no turns any more."""
        self._off = True
        self.leave()

    # --- a turn ------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """Whether nothing is under way that the loop has to care for."""
        return self._link.outbox.empty and not len(self._link.waiting) and not self._portal.inside

    def _begin(self, parcel: Parcel) -> Turn | None:
        """Pushes a task; None if another thread was first."""
        queue = self._queue or self._open()
        turn = Turn(parcel, plain_push(queue, parcel.values[0]))
        with self._lock:
            if self._turn is not None:
                return None
            self._turn = turn
        self.taken += 1
        link = self._link
        if parcel.sink is not None:
            link.waiting.add(parcel.tasks, parcel.sink)
        link.outbox.begin(parcel)
        try:
            turn.push = self._connection.start(turn.request)
        except BaseException:
            with self._lock:
                self._turn = None
            if parcel.sink is not None:
                link.waiting.leave(turn.task, parcel.sink)
            link.outbox.finished(turn.shipment)
            raise
        turn.waited = False
        return turn

    def _open(self) -> Queue:
        names, fabric = self._names, self._fabric
        queue = fabric.queue(names.queue, create=False)
        replies = fabric.topic(names.replies, create=False)
        partition = reply_partition(self._link.client)
        self._reader = PartitionReader(replies, partition, "end", _READ_BYTES)
        self._connection.run(self._reader.locate())
        self._queue = queue
        return queue

    def _read(self, turn: Turn, is_over: Callable[[], bool], ends: float) -> None:
        """Until the outcome is there, or the time is over, or the loop has to care for it."""
        connection, reader = self._connection, self._reader
        reader.offset = max(reader.offset or 0, self._link.read_to)
        assert turn.push is not None
        while not is_over() and (left_s := ends - time.monotonic()) > 0:
            request = reader.request(left_s)
            outcomes = connection.start(request)
            try:
                connection.wait(_Told(outcomes, turn.push), ends)
            finally:
                connection.abandon(outcomes)
            if not outcomes.done:
                return
            batches = reader.advance(request, outcomes.result())
            if any(self._tell(turn.task, batch) for batch in batches):
                return

    def _tell(self, task: bytes, batch: Batch) -> bool:
        """Whether the outcome is in a batch. If it refers to large values, the loop reads it again,
        and them."""
        keys = batch.keys
        if task not in keys:
            return False
        outcome = read_outcome(batch.values[keys.index(task)])
        if not outcome.blobs:
            self._link.waiting.take_apart(task, outcome)
        return True

    def _end(self, turn: Turn, is_over: bool) -> None:
        if not is_over:
            self._alone = 0
            self._hand_over(turn)
            return
        self._link.outbox.finished(turn.shipment)
        if not len(self._link.waiting):  # looked at after the outcomes were: it misses nothing
            self._link.skip(self._reader.offset or 0)

    def _hand_over(self, turn: Turn) -> None:
        assert turn.push is not None
        rest = partial(self._connection.run, finish_push(turn.push, turn.request))

        def stored(_: Shipment) -> Awaitable[object]:
            return asyncio.to_thread(rest)

        self._portal.soon(partial(self._link.adopt, turn.shipment, stored))

    # --- on the loop -------------------------------------------------------------------------

    def _tick(self) -> None:
        turn = self._turn
        if turn is not None and not turn.waited:
            turn.ticks += 1
            if turn.ticks > 1:
                self._alone = SPURNED
                self.leave()
        self._idle_ticks = self._idle_ticks + 1 if self.taken == self._seen else 0
        self._seen = self.taken
        if self._idle_ticks >= IDLE_TICKS and self._turn is None:
            self._ticking = False
            self._alone = min(self._alone, 0)
        else:
            self._portal.later(TICK_S, self._tick)


def _is_plain(parcel: Parcel) -> bool:
    """Whether it is one task, that somebody waits for, and that needs nothing but a push."""
    alone = parcel.terms == PLAIN and len(parcel.tasks) == 1
    return alone and isinstance(parcel.sink, TaskFuture) and not parcel.large
