"""Large values in a worker: pieces for its executors, arguments that are over, old files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.client.aio import AsyncFabric
from penstock.tasks.blobs.blob import Blob
from penstock.tasks.blobs.carrier import PieceRequest, carry
from penstock.tasks.blobs.files import Directory
from penstock.tasks.blobs.pieces import PatientPieces, Pieces
from penstock.tasks.blobs.store import BlobStore
from penstock.tasks.envelope import Status
from penstock.tasks.worker.completing import Over
from penstock.tasks.worker.executors import AnyExecutor
from penstock.tasks.worker.settings import WorkerSettings

SWEEP_S = 600.0


class LargeValues:
    """Executors have no connection: the puller carries pieces for them, a few at a time."""

    def __init__(self, fabric: AsyncFabric, settings: WorkerSettings) -> None:
        """InvalidError if the directory of the settings is none."""
        pieces = Pieces(fabric, settings.task_set, settings.durability)
        self._patient = PatientPieces(pieces)
        self._directory = Directory(settings.directory) if settings.directory else None
        self._store = BlobStore(pieces, self._directory)
        self._under_way: set[asyncio.Task[None]] = set()

    def carry(self, executor: AnyExecutor, request: PieceRequest) -> None:
        """Does what an executor asks for, and answers it."""
        self._begin(self._carry(executor, request))

    def arguments_over(self, over: Sequence[Over]) -> None:
        """Tasks are over: nobody needs their arguments any more. Those of dead tasks stay, to be
        sent again with them, until they expire."""
        large = [
            each.job.call.large
            for each in over
            if each.job.call.large is not None and each.status is not Status.FAILED
        ]
        if large:
            self._begin(self._remove(large))

    async def sweep(self) -> None:
        """Removes files that have expired, now and then, for ever."""
        while True:
            if self._directory is not None:
                await asyncio.to_thread(self._directory.sweep, time.time())
            await asyncio.sleep(SWEEP_S)

    async def close(self) -> None:
        """What is under way is given up: it expires."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _carry(self, executor: AnyExecutor, request: PieceRequest) -> None:
        executor.answer(await carry(self._patient, request))

    async def _remove(self, blobs: list[Blob]) -> None:
        await self._store.remove(blobs)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
