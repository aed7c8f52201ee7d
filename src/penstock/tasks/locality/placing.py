"""Locality on a fabric: what a worker says of its data, and how a task goes to another host.

Every host has a queue, `tasks.NAME.at.HOST`, whose depth is bounded: what is there, waiting or
running, is the host's load, and a full queue is how it refuses. A task is moved by one transaction
(away from where it was, into that queue), so that it is at one of them, whatever dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from penstock.client.aio import AsyncFabric, AsyncSession
from penstock.client.aio_messages import AsyncDelivery
from penstock.client.aio_streams import AsyncQueue, AsyncTable
from penstock.errors import ConflictError, NotFoundError, PenstockError
from penstock.tasks.locality.directory import (
    BLOCK_PREFIX,
    HOST_PREFIX,
    Directory,
    block_key,
    host_key,
)
from penstock.tasks.locality.engine import Engine, Run, Send
from penstock.tasks.names import streams_of
from penstock.tasks.worker.following import follow
from penstock.wire.messages import Entry

DEPTH = 64  # tasks at one host, of those that were sent there
SESSION_S = 10.0
_MAX_DELIVERIES = 1_000_000  # workers count attempts, not the queue

_log = logging.getLogger("penstock.worker")

T = TypeVar("T")


class Leased(NamedTuple, Generic[T]):
    """A task that this worker has a lease of: one row of a delivery, and what it is here."""

    item: T
    delivery: AsyncDelivery
    row: int


class Due(NamedTuple, Generic[T]):
    """What is to be done with tasks now."""

    runs: list[Run[Leased[T]]]
    gone: list[T]
    """Others have them: their leases are not needed any more."""


class Placing(Generic[T]):
    """The locality of one worker. `open` it; `close` it when nothing is under way.

    `queue` is the host's own: what comes from there was sent, and is given to `found` as moved.
    """

    queue: AsyncQueue

    def __init__(
        self,
        fabric: AsyncFabric,
        control: AsyncTable,
        task_set: str,
        host: str,
        worker: str,
        depth: int = DEPTH,
        session_s: float = SESSION_S,
    ) -> None:
        """`control` is the task set's. A worker's name must be its own, a host's is shared by its
        workers."""
        self.directory = Directory()
        self.engine: Engine[Leased[T]] = Engine(host, self.directory)
        self._fabric = fabric
        self._control = control
        self._prefix = f"{streams_of(task_set).queue}.at."
        self._host = host
        self._worker = worker
        self._depth = depth
        self._session_s = session_s
        self._session: AsyncSession | None = None
        self._owned: set[str] = set()
        self._duties: list[asyncio.Task[None]] = []
        self._queues: dict[str, AsyncQueue] = {}

    async def open(self) -> None:
        """Makes the host's queue, and says that this worker takes what is sent there: until
        `close`, or until its session ends with it. What others say is known a moment later."""
        self.queue = await self._queue_at(self._host)
        await self._register()
        self._duties = [
            asyncio.create_task(follow(self._control, prefix, self._heard))
            for prefix in (BLOCK_PREFIX, HOST_PREFIX)
        ]
        self._duties.append(asyncio.create_task(self._stay()))

    async def close(self) -> None:
        """The host's data and queue are not this worker's any more."""
        for each in self._duties:
            each.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def own(self, blocks: Iterable[str]) -> None:
        """Says that the host has these blocks; others know it a moment later."""
        for block in blocks:
            self._owned.add(block)
            await self._say(block_key(block, self._worker))

    async def disown(self, blocks: Iterable[str]) -> None:
        """Says that this worker does not vouch for them any more."""
        for block in blocks:
            self._owned.discard(block)
            key = block_key(block, self._worker)
            await self._control.delete(key)
            self.directory.remove(key)

    async def _register(self) -> None:
        """Says in a new session all that this worker has said."""
        self._session = await self._fabric.session(self._session_s)
        await self._say(host_key(self._worker))
        for block in sorted(self._owned):
            await self._say(block_key(block, self._worker))

    async def _say(self, key: bytes) -> None:
        host = self._host.encode()
        await self._control.put(key, host, session=self._session)
        self.directory.put(key, host)

    async def _stay(self) -> None:
        """Says it all again if the session was lost: this worker was taken for dead; for ever."""
        while True:
            await asyncio.sleep(self._session_s / 2)
            if self._session is None or self._session.alive:
                continue
            try:
                await self._register()
            except PenstockError as error:
                if isinstance(error, NotFoundError):
                    self._session.alive = False  # over again: another one next time
                elif not error.retriable:
                    raise
                _log.warning("others are not told of this host's data now: %s", error)

    def _heard(self, entry: Entry) -> None:
        if entry.version:
            self.directory.put(entry.key, entry.value)
        else:
            self.directory.remove(entry.key)

    # --- tasks -----------------------------------------------------------------------------

    def found(
        self, item: T, delivery: AsyncDelivery, row: int, block: str, moved: bool = False
    ) -> None:
        """A task was leased, from the main queue or, if `moved`, from the host's own.

        One that is not in its first attempt stays here in any case: at another host, its attempts
        would be counted anew.
        """
        stays = moved or delivery.deliveries[row] > 1
        self.engine.found(Leased(item, delivery, row), block, stays)

    async def due(self, room: int) -> Due[T]:
        """Sends what is to be sent, and returns at most `room` tasks that are to run here now.

        A task whose lease was lost before it could be sent is somebody else's, and gone. One that
        could not be sent for any other reason stays here.
        """
        due: Due[T] = Due([], [])
        self.engine.run(room)
        while effects := self.engine.taken():
            due.runs.extend(each for each in effects if isinstance(each, Run))
            offers = [each for each in effects if isinstance(each, Send)]
            taken = await asyncio.gather(*[self._offer(each) for each in offers])
            for offer, accepted in zip(offers, taken, strict=True):
                if accepted:
                    self.engine.accepted(offer.placed)
                    due.gone.append(offer.placed.task.item)
                else:
                    self.engine.refused(offer.placed, offer.host)
            self.engine.run(room - len(due.runs))
        return due

    async def _offer(self, offer: Send[Leased[T]]) -> bool:
        """Whether the task is not here any more."""
        _, delivery, row = offer.placed.task
        try:
            queue = await self._queue_at(offer.host)
            async with self._fabric.transaction() as transaction:
                transaction.ack(delivery, rows=[row])
                transaction.push(queue, delivery.values[row])
        except ConflictError:
            _log.warning("a lease was lost before its task could be sent")
        except PenstockError as error:
            _log.debug("%s does not take a task: %s", offer.host, error)
            return False
        return True

    async def orphaned(self) -> list[AsyncQueue]:
        """The queues of hosts that have no worker: whoever has nothing to do works them off, as
        moved tasks."""
        hosts = [
            info.name.removeprefix(self._prefix)
            for info in await self._fabric.queues()
            if info.name.startswith(self._prefix)
        ]
        alive = self.directory.hosts()
        return [await self._queue_at(host) for host in hosts if host not in alive]

    async def _queue_at(self, host: str) -> AsyncQueue:
        if host not in self._queues:
            self._queues[host] = await self._fabric.queue(
                f"{self._prefix}{host}", max_messages=self._depth, max_deliveries=_MAX_DELIVERIES
            )
        return self._queues[host]
