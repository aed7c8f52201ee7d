"""A task from its submission to its outcome on one thread: the one that waits for it.

A blocking app has a loop in a thread of its own. Handing a task to that thread, and being woken by
it when the outcome is there, takes a sixth of the time that a short task needs altogether. So a
program that has lately submitted one task after the other, and waited for each, gets a *turn*: the
thread that submits pushes the task itself, over the fabric's own connection, and the thread that
asks for the result reads the outcome itself.

Whatever is not like that ends the turn: another submission, a result that takes a while, nobody who
asks for it. Then the loop goes on, and nothing is lost by that: it reads outcomes from where it has
read to, and one that was told already is nobody's. An exception that a signal raises, anywhere
here, leaves a turn that ends in this way, too.
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
from penstock.client.push import PushRequest, finish_push
from penstock.client.requests import Pending
from penstock.errors import ClosedError, PenstockError
from penstock.tasks.envelope import read_outcome
from penstock.tasks.futures import TaskFuture
from penstock.tasks.link import TaskLink
from penstock.tasks.outbox import PLAIN, Parcel, Shipment
from penstock.tasks.portal import Portal
from penstock.wire.batch import Batch

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric

ALONE = 4  # tasks in a row, each the only one and waited for, before there are turns
PATIENCE_S = 0.05  # so long a thread reads by itself; who waits for more needs not hurry
TICK_S = 0.005  # how often the loop looks for turns that nobody waits in
IDLE_TICKS = 200  # without a turn: it stops to look
SPURNED = -100  # instead of the number of tasks in a row, after such a turn


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
    """Done when outcomes have come, or none will: the task was refused, or its future is over."""

    def __init__(self, outcomes: Pending, push: Pending, is_over: Callable[[], bool]) -> None:
        self._outcomes = outcomes
        self._push = push
        self._is_over = is_over

    @property
    def done(self) -> bool:
        return self._outcomes.done or self._push.error is not None or self._is_over()


class Direct:
    """The turns of one app: one at a time. Threads may share it.

    There are none in a cluster, where the queue and the outcomes are of several nodes, none over a
    fabric in this process, whose engine would run on the caller's thread, and none while others use
    the connection.
    """

    def __init__(self, fabric: Fabric, link: TaskLink, portal: Portal) -> None:
        self._connection: Connection = fabric._connection
        self._queue, self._reader = link.streams_of(fabric)
        self._link = link
        self._portal = portal
        self._lock = threading.Lock()  # around turns, and what follows
        self._turn: Turn | None = None
        self._off = self._connection.routes is not None
        self._ticking = False
        self._alone = 0
        self.taken = self._seen = 0  # turns, now and at the last tick
        self._idle_ticks = 0

    def take(self, parcel: Parcel) -> bool:
        """Sends a parcel, if it is its turn; whether it did. If there is a turn that nobody waits
        in, that ends."""
        if self._turn is not None:
            self.leave()
            return False
        if self._alone < ALONE or not _is_plain(parcel) or not self._is_quiet():
            return False
        try:
            return self._begin(parcel)
        except PenstockError as error:  # the loop will find out
            self._off = isinstance(error, ClosedError)
            self._alone = 0
            return False

    def leave(self) -> None:
        """Has the loop go on with a turn that nobody waits in, if there is one."""
        with self._lock:
            turn = self._turn
            if turn is None or turn.waited:
                return
            turn.waited = True
        self._alone = min(self._alone, 0)
        try:
            self._hand_over(turn)
        finally:
            turn.waited = False
        self._clear(turn)

    def _clear(self, turn: Turn) -> None:
        with self._lock:
            if self._turn is turn:
                self._turn = None

    def wait(self, future: TaskFuture[Any], timeout: float | None) -> float | None:
        """Waits for an outcome in its turn, a moment at most. What is left of `timeout`."""
        began = time.monotonic()
        ends = began + (PATIENCE_S if timeout is None else min(timeout, PATIENCE_S))
        with self._lock:
            turn = self._turn
            if turn is None or turn.task != future.id or turn.waited:
                alone = len(self._link.waiting) == 1
                self._alone = self._alone + 1 if alone else min(self._alone, 0)
                return timeout
            turn.waited = True
        try:
            self._read(turn, future.done, ends)
        except PenstockError:
            pass  # the loop will find out, too
        finally:
            turn.waited = False
        self._end(turn, future.done())
        return None if timeout is None else max(timeout - (time.monotonic() - began), 0.0)

    def close(self) -> None:
        """There are no turns any more. The push of one that is left is waited for here: a program
        that ends has no other threads for it."""
        with self._lock:
            self._off = True
            turn = self._turn
            if turn is None or turn.waited:
                return
            turn.waited = True
        assert turn.push is not None
        stored: Callable[[], object] = bool
        try:
            self._connection.run(finish_push(turn.push, turn.request))
        except PenstockError as error:
            stored = partial(_raise, error)
        self._adopt(turn, stored)
        self._turn = None

    # --- a turn ------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """Whether nothing is under way that the loop has to care for, or would keep a thread."""
        link = self._link
        if self._off or not link.outbox.empty or len(link.waiting) or self._portal.inside:
            return False
        return self._connection.idle

    def _begin(self, parcel: Parcel) -> bool:
        """Pushes a task; False if another thread was first."""
        link, reader = self._link, self._reader
        turn = Turn(parcel, plain_push(self._queue, parcel.values[0]))
        with self._lock:
            if self._turn is not None or self._off:
                return False
            self._turn = turn
            tick, self._ticking = not self._ticking, True
        try:
            if tick:
                self._portal.soon(self._tick)
            self.taken += 1
            reader.offset = max(reader.offset or 0, link.read_to)
            assert parcel.sink is not None
            link.waiting.add(parcel.tasks, parcel.sink)
            link.outbox.begin(parcel)
            turn.push = self._connection.start(turn.request)
        except BaseException:
            if parcel.sink is not None:
                link.waiting.leave(turn.task, parcel.sink)
            link.outbox.finished(turn.shipment)
            self._turn = None
            raise
        turn.waited = False
        return True

    def _read(self, turn: Turn, is_over: Callable[[], bool], ends: float) -> None:
        """Until the outcome is there, or the time is over, or the loop has to care for it."""
        connection, reader = self._connection, self._reader
        assert turn.push is not None
        while not is_over() and (left_s := ends - time.monotonic()) > 0:
            request = reader.request(left_s)
            outcomes = connection.start(request)
            try:
                connection.wait(_Told(outcomes, turn.push, is_over), ends)
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
        """Ends a turn, unless another thread does. Until it has ended it can be seen: should this
        be interrupted, the loop ends it once more, which does no harm."""
        with self._lock:
            if self._turn is not turn or turn.waited:
                return
        if is_over:
            self._link.outbox.finished(turn.shipment)
            offset = self._reader.offset or 0  # read before it is looked who waits
            if not len(self._link.waiting):
                self._link.skip(offset)
        else:
            self._alone = 0
            self._hand_over(turn)
        self._clear(turn)

    def _hand_over(self, turn: Turn) -> None:
        push = turn.push
        assert push is not None
        if push.done and push.error is None:
            self._adopt(turn, bool)
        else:
            self._adopt(turn, partial(self._connection.run, finish_push(push, turn.request)), True)

    def _adopt(self, turn: Turn, stored: Callable[[], object], waits: bool = False) -> None:
        """Has the loop go on. `stored` raises if the task is not; whether it may wait."""

        async def pushed(_: Shipment) -> None:
            if waits:
                await _in_thread(stored)
            else:
                stored()

        self._portal.soon(partial(self._link.adopt, turn.shipment, pushed))

    # --- on the loop -------------------------------------------------------------------------

    def _tick(self) -> None:
        turn = self._turn
        if turn is not None and not turn.waited:
            turn.ticks += 1
            if turn.ticks > 1:
                self.leave()
                self._alone = SPURNED
        self._idle_ticks = self._idle_ticks + 1 if self.taken == self._seen else 0
        self._seen = self.taken
        with self._lock:
            if self._idle_ticks >= IDLE_TICKS and self._turn is None:
                self._ticking = False
                self._alone = min(self._alone, 0)
                return
        self._portal.later(TICK_S, self._tick)


def _is_plain(parcel: Parcel) -> bool:
    """Whether it is one task, that somebody waits for, and that needs nothing but a push."""
    alone = parcel.terms == PLAIN and len(parcel.tasks) == 1
    return alone and isinstance(parcel.sink, TaskFuture) and not parcel.large


def _raise(error: PenstockError) -> None:
    raise error


def _in_thread(work: Callable[[], object]) -> Awaitable[object]:
    """What a thread of its own does, which nobody waits for when the program ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def end(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(end, error)
        except RuntimeError:
            return  # the loop has been closed meanwhile

    threading.Thread(target=run, name="penstock-tasks-push", daemon=True).start()
    return done
