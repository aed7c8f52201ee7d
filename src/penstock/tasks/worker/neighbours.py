"""Locality of a worker: tasks whose data is elsewhere go there, if that host takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.client.aio_messages import AsyncDelivery
from penstock.client.aio_streams import AsyncQueue
from penstock.errors import PenstockError
from penstock.tasks.locality.placing import SESSION_S, Placing
from penstock.tasks.worker.deliveries import Deliveries
from penstock.tasks.worker.jobs import GiveBack, Job

_log = logging.getLogger("penstock.worker")

Pull = Callable[[AsyncQueue], Awaitable[None]]


class Neighbours:
    """Holds tasks that work on data until they run here, or another host has them.

    The host's own queue, and those of hosts without workers, are pulled from like the main one;
    what came from there is `moved`.
    """

    def __init__(
        self, placing: Placing[Job], blocks: Sequence[str], deliveries: Deliveries
    ) -> None:
        self._placing = placing
        self._blocks = blocks
        self._deliveries = deliveries
        self._draining = False

    async def open(self) -> None:
        """Says what data this host has."""
        await self._placing.open()
        await self._placing.own(self._blocks)

    async def close(self) -> None:
        """This worker is not there for its host any more."""
        await self._placing.close()

    @property
    def queue(self) -> AsyncQueue:
        """The host's own."""
        return self._placing.queue

    def take(self, jobs: Sequence[Job], delivery: AsyncDelivery, moved: bool) -> list[Job]:
        """Keeps the jobs that work on data, until they are `due`; returns the others."""
        free: list[Job] = []
        for job in jobs:
            job.moved = moved
            if job.call.block or moved:
                self._placing.found(job, delivery, job.row, job.call.block, moved)
            else:
                free.append(job)
        return free

    @property
    def waiting(self) -> bool:
        """Whether there are jobs that `due` would give, or send."""
        return self._placing.engine.waiting > 0

    async def due(self, room: int) -> list[Job]:
        """Sends what is to be sent; at most `room` jobs that are to run here now."""
        runs, gone = await self._placing.due(room)
        self._deliveries.settled(gone)
        if self._draining:
            self.drain()
        return [run.task.item for run in runs]

    def drain(self) -> None:
        """Gives back what has not begun, now and whenever something comes."""
        self._draining = True
        left = self._placing.engine.drain()
        self._deliveries.give_back([GiveBack(leased.item) for leased in left])

    async def adopt(self, pull: Pull) -> None:
        """Has tasks pulled that were sent to hosts which have no worker any more; for ever."""
        while True:
            await asyncio.sleep(SESSION_S)
            try:
                for queue in await self._placing.orphaned():
                    await pull(queue)
            except PenstockError as error:
                if not error.retriable:
                    raise
                _log.warning("queues of other hosts cannot be seen now: %s", error)
