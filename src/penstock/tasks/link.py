"""The client's side of a task set on an event loop: submissions go out, outcomes come in.

Both apps stand on it: the asyncio one directly, the blocking one through a loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue, AsyncTable
from penstock.client.inputs import milliseconds
from penstock.client.ops_topic import PartitionReader
from penstock.errors import ClosedError, InvalidError, PenstockError
from penstock.tasks.blobs.files import Directory
from penstock.tasks.blobs.pieces import Pieces
from penstock.tasks.blobs.store import BlobStore
from penstock.tasks.dependence import hold_of
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.gangs.streams import open_gang_queue
from penstock.tasks.lookups import Lookups
from penstock.tasks.losses import Losses
from penstock.tasks.names import cancel_key, reply_partition
from penstock.tasks.outbox import Outbox, Parcel, Shipment, Sink
from penstock.tasks.replies import Replies
from penstock.tasks.silence import Silence
from penstock.tasks.streams import OpenStreams, open_streams
from penstock.tasks.waiting import MOST_WAITING, Waiting, cancelled_error
from penstock.tasks.watching.observer import Observer
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric
    from penstock.client.blocking_streams import Queue

log = logging.getLogger("penstock.tasks")
Push = Callable[[Shipment], Awaitable[object]]  # stores it

_UNDER_WAY = 4  # shipments; what is submitted meanwhile is sent together after the first of them
_FETCHES = 4  # outcomes with large values that are read at a time
_CANCEL_TTL_S = 86_400.0
_MOST_UNWANTED = 10_000


class LinkLimits(NamedTuple):
    """What one client may hold, and where it keeps what is very large."""

    outstanding: int = MOST_WAITING
    """Tasks that it waits for."""
    patience_s: float | None = None
    """How long a submission waits for room; None: for ever."""
    directory: Directory | None = None


DEFAULT_LIMITS = LinkLimits()


def checked_limits(
    outstanding: int, patience: float | None, directory: str | os.PathLike[str] | None
) -> LinkLimits:
    """Limits as a program gives them; InvalidError names the one that is wrong."""
    if isinstance(outstanding, bool) or not isinstance(outstanding, int) or outstanding < 1:
        raise InvalidError(f"outstanding must be a number, 1 or more, not {outstanding!r}")
    if patience is not None:
        milliseconds("patience", patience)
    return LinkLimits(outstanding, patience, None if directory is None else Directory(directory))


class TaskLink:
    """Sends what is in the outbox, and tells those who wait. All but `outbox` and `waiting` belongs
    to one event loop."""

    def __init__(
        self, fabric: AsyncFabric, client: bytes, limits: LinkLimits = DEFAULT_LIMITS
    ) -> None:
        self.outbox = Outbox()
        self.waiting = Waiting(client, self._fetch, limits.outstanding)
        self._fabric = fabric
        self._client = client
        self._limits = limits
        self._under_way = 0
        self._fetching = asyncio.Semaphore(_FETCHES)
        self._jobs: set[asyncio.Task[None]] = set()
        self._closed = False
        self._gangs: AsyncQueue | None = None  # opened with the first gang
        self._unwanted: dict[bytes, None] = {}  # cancelled, and maybe on their way to the queue
        self._unsent: PenstockError | None = None  # why something was lost that nobody waits for

    async def open(self, task_set: str, durability: str | None = None) -> None:
        """Opens the streams, and listens for outcomes: those of all tasks sent after this."""
        self._task_set, self._durability = task_set, durability
        self._loop = asyncio.get_running_loop()
        self._streams: OpenStreams = await open_streams(self._fabric, task_set, durability)
        pieces = Pieces(self._fabric, task_set, durability)
        self._store = BlobStore(pieces, self._limits.directory)
        self._losses = Losses(self.outbox, self.waiting, self._streams.results)
        self._lookups = Lookups(self._streams.results, self.waiting)
        self._silence = Silence(self.waiting, self._streams.control, task_set)
        replies = Replies(self._streams.replies, self.waiting, self._client, self._missed)
        await replies.locate()
        self._replies = replies
        self._spawn(replies.run())

    def _missed(self) -> None:
        log.warning("outcomes were dropped, as too old, before they were read; kept ones are read")
        self._spawn(self._lookups.run_all())

    @property
    def observer(self) -> Observer:
        """Whoever looks at tasks and workers."""
        return Observer(self._fabric, self._task_set, self._streams)

    @property
    def control(self) -> AsyncTable:
        """The table of schedules, cancels and the like."""
        return self._streams.control

    def crowded(self, waited: bool = True) -> Outbox | Waiting | None:
        """What has no room for another submission; `waited`: for one whose outcome is waited for.
        From any thread."""
        if self.outbox.full:
            return self.outbox
        return self.waiting if waited and self.waiting.full else None

    @property
    def patience_s(self) -> float | None:
        """How long a submission may wait for room."""
        return self._limits.patience_s

    def offer(self, parcel: Parcel) -> bool:
        """Takes a parcel in, to be sent; whether `pump` must be called, on the loop. From any
        thread. ClosedError after `close`."""
        if self._closed:
            raise ClosedError("the task app is closed", advice="Open another one.")
        if parcel.sink is not None:
            if parcel.terms.named:
                self.waiting.join(parcel.tasks[0], parcel.sink)
            else:
                self.waiting.add(parcel.tasks, parcel.sink)
        return self.outbox.add(parcel)

    def withdraw(self, task: bytes) -> bool:
        """Takes a task back that was not sent, and tells whoever submitted it; whether it could.
        From any thread."""
        parcel = self.outbox.withdraw(task)
        if parcel is None:
            return False
        if parcel.sink is not None:
            self.waiting.leave(task, parcel.sink)
            parcel.sink.fail(task, cancelled_error(task))
        self._loop.call_soon_threadsafe(self._losses.withdrawn, parcel)
        return True

    def streams_of(self, fabric: Fabric) -> tuple[Queue, PartitionReader]:
        """The queue and the outcomes of this client as another fabric of the same node has them."""
        from penstock.client.blocking_streams import Queue, Topic  # for those who block

        replies = Topic(fabric, self._streams.replies.info)
        reader = PartitionReader(replies, reply_partition(self._client), "end")
        reader.offset = self.read_to
        return Queue(fabric, self._streams.queue.info), reader

    @property
    def read_to(self) -> int:
        """The offset of the next outcome that is to be read. From any thread."""
        return self._replies.offset

    def skip(self, offset: int) -> None:
        """Another thread has read all outcomes before this, and nobody waited for others."""
        self._replies.skip(offset)

    def adopt(self, shipment: Shipment, stored: Push) -> None:
        """Goes on with what another thread has begun to push: `stored` waits for that."""
        self._under_way += 1
        self._spawn(self._ship(shipment, stored))
        self._listen()

    def pump(self) -> None:
        """Sends what there is, as far as that may be under way at once."""
        while self._under_way < _UNDER_WAY and (shipment := self.outbox.take()) is not None:
            self._under_way += 1
            self._spawn(self._ship(shipment, self._push))
        self._listen()

    def _listen(self) -> None:
        if self._silence.idle and len(self.waiting):
            self._spawn(self._silence.listen())
        if self._replies.resting and len(self.waiting):
            self._loop.call_soon(self._replies.wanted)  # soon: what is shipped goes out before

    async def _ship(self, shipment: Shipment, push: Push) -> None:
        try:
            await push(shipment)
            if self._unwanted and (late := self._unwanted.keys() & set(shipment.tasks)):
                self._spawn(self._let_go(list(late)))
        except Exception as problem:  # whatever it is, those who wait must hear of it
            error = problem if isinstance(problem, PenstockError) else PenstockError(repr(problem))
            error.add_note("The task could not be submitted; see the error for what was stored.")
            self.waiting.fail(shipment.tasks, error)
            self._losses.unsent(shipment.parcels, error)
            if any(parcel.sink is None for parcel in shipment.parcels):
                self._unsent = error
        finally:
            self._under_way -= 1
            self.outbox.finished(shipment)
            if self.outbox.empty:
                self._unwanted.clear()
            self.pump()

    async def _push(self, shipment: Shipment) -> None:
        terms, queue, values = shipment.terms, self._streams.queue, shipment.values
        for parcel in shipment.parcels:
            for blob, packed in parcel.large:  # before anybody can ask for them
                await self._store.write(blob, packed)
        if terms.members:
            await self._push_gangs(shipment)
        elif terms.held:
            await self._hold(shipment)
        elif terms.named or terms.delay_s:  # to be found by its id if it is cancelled
            await self._push_with_ids(shipment)
        elif len(values) == 1:
            await queue.push(values[0], priority=terms.priority)
        else:
            await queue.push_many(values, priority=terms.priority)

    async def _push_with_ids(self, shipment: Shipment) -> None:
        tasks, terms = shipment.tasks, shipment.terms
        receipts = await self._streams.queue.push_many(
            shipment.values, ids=tasks, delay=terms.delay_s, priority=terms.priority
        )
        for parcel, receipt in zip(shipment.parcels, receipts, strict=True):
            if receipt.duplicate and terms.named:
                # Another submission of this name was first: whoever made that gets the outcome.
                self._look_up(parcel.tasks[0])
                await self._store.remove([blob for blob, _ in parcel.large])

    async def _push_gangs(self, shipment: Shipment) -> None:
        if self._gangs is None:
            self._gangs = await open_gang_queue(self._fabric, self._task_set, self._durability)
        terms = shipment.terms
        for task, value in zip(shipment.tasks, shipment.values, strict=True):
            receipt = await self._gangs.push_gang(
                value, terms.members, id=task, delay=terms.delay_s, priority=terms.priority
            )
            if receipt.duplicate and terms.named:
                self._look_up(task)

    async def _hold(self, shipment: Shipment) -> None:
        streams, fabric = self._streams, self._fabric
        holds = [hold_of(parcel, streams, fabric) for parcel in shipment.parcels]
        await streams.queue.hold_many(holds)
        if shipment.terms.named:
            for task in shipment.tasks:  # there may be an older one of this name
                self._look_up(task)

    def wait_for_kept(self, task: bytes, sink: Sink) -> None:
        """Has `sink` told of an outcome that is kept, or will be."""
        self.waiting.join(task, sink)
        self._look_up(task)
        self._listen()

    def _look_up(self, task: bytes) -> None:
        self._spawn(self._lookups.run(task))

    def _fetch(self, task: bytes, outcome: TaskOutcome) -> None:
        self._spawn(self._fetched(task, outcome))

    async def _fetched(self, task: bytes, outcome: TaskOutcome) -> None:
        try:
            async with self._fetching:
                large = await self.large_of(outcome)
        except PenstockError as error:
            self.waiting.fail([task], error)
        else:
            self.waiting.settle(task, outcome, large)

    async def large_of(self, outcome: TaskOutcome) -> list[Buffer]:
        """The large values that an outcome refers to, packed. Those that nobody else can ask for
        are removed then. TaskError if one is not there any more."""
        large = [await self._store.read(blob) for blob in outcome.blobs]
        if once := [blob for blob in outcome.blobs if blob.once]:
            self._spawn(self._store.remove(once))
        return large

    async def cancel(self, task: bytes) -> None:
        """Tells all workers to drop the task, or to stop it; that is recorded when this returns. If
        it is held or delayed, it is let go, so that a worker comes to it now."""
        await self._streams.control.put(cancel_key(task), b"", ttl=_CANCEL_TTL_S)
        self._unwanted[task] = None
        if len(self._unwanted) > _MOST_UNWANTED:
            del self._unwanted[next(iter(self._unwanted))]
        (found,) = await self._streams.queue.release([task])
        if found != "unknown" or self.outbox.empty:
            self._unwanted.pop(task, None)

    async def _let_go(self, tasks: list[bytes]) -> None:
        """Tasks were cancelled while they were on their way to the queue, which has them now."""
        try:
            await self._streams.queue.release(tasks)
        except PenstockError as error:
            log.warning("cancelled tasks end when their time has come: %s", error)

    async def flush(self) -> None:
        """Waits until all that was submitted is stored, or has failed. Raises why something could
        not be stored that nobody waits for."""
        stored, loop = asyncio.Event(), asyncio.get_running_loop()
        self.outbox.when_empty(lambda: loop.call_soon_threadsafe(stored.set))
        await stored.wait()
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            raise unsent

    async def close(self) -> None:
        """Sends what is left, then stops listening: futures without an outcome end with
        ClosedError, and their tasks go on."""
        self._closed = True
        try:
            await self.flush()
        finally:
            await self._losses.finish()
            for job in self._jobs:
                job.cancel()
            await asyncio.gather(*self._jobs, return_exceptions=True)
            self._forsake()

    def _forsake(self) -> None:
        self.waiting.fail_all(
            ClosedError(
                "the task app was closed before the task's outcome came",
                advice="The task goes on; ask for its outcome by its id, if that is kept.",
            )
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
