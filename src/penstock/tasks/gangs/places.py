"""The places that a worker has for gangs: so many it can be a member of at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.aio import AsyncFabric
from penstock.errors import InvalidError
from penstock.tasks.gangs.opening import open_gang_worker
from penstock.tasks.gangs.worker import GangWorker
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import MAX_CONCURRENCY, WorkerSettings


class GangPlaces:
    """Workers of gangs, each a place, on one event loop."""

    def __init__(self, workers: Sequence[GangWorker]) -> None:
        self._workers = workers
        self._running: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Works until `drain`, or `stop`; an error that does not pass ends all of them."""
        loop = asyncio.get_running_loop()
        self._running = [loop.create_task(worker.run()) for worker in self._workers]
        try:
            if self._running:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.stop()
            await asyncio.gather(*self._running, return_exceptions=True)
        for task in self._running:
            if not task.cancelled():
                task.result()

    @property
    def busy(self) -> bool:
        """Whether a gang runs in any of them."""
        return any(worker.busy for worker in self._workers)

    def drain(self) -> None:
        """Takes no more gangs; those that run may end."""
        for worker in self._workers:
            worker.drain()

    def stop(self) -> None:
        """Ends now: gangs that run lose this member."""
        for task in self._running:
            task.cancel()


async def open_places(
    fabric: AsyncFabric, settings: WorkerSettings, count: int, name: str, address: str = ""
) -> GangPlaces:
    """So many places; none is of no use, and does no harm. `name` is the worker's."""
    if not 0 <= count <= MAX_CONCURRENCY:
        raise InvalidError(f"{count} places for gangs: use up to {MAX_CONCURRENCY:,}")
    names = [f"{name}/gang-{number}" for number in range(1, count + 1)]
    opened = [open_gang_worker(fabric, settings, each, address) for each in names]
    return GangPlaces([await worker for worker in opened])


async def run_both(puller: Puller, places: GangPlaces) -> None:
    """Until both have ended. What ends one ends the other, too."""
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(puller.run())
            both.create_task(places.run())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
