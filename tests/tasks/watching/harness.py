"""A worker in this process, on a loop in a thread of its own; its executors are threads, too."""

from __future__ import annotations

import asyncio
import threading

import penstock
from penstock.tasks.watching.reports import WorkerReport
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import WorkerSettings
from penstock.tasks.worker.worker import open_puller

LONG_S = 30.0
MODULE = "tests.tasks.watching.shop"


class OwnWorker:
    """From its making to `end`, it runs the tasks of `shop`."""

    def __init__(self, fabric: penstock.Fabric, task_set: str, concurrency: int = 2) -> None:
        self._fabric = fabric
        self._settings = WorkerSettings((MODULE,), task_set, concurrency, "thread")
        self._ready = threading.Event()
        self._puller: Puller | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(LONG_S)
        assert self._puller is not None

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with await self._fabric._asynchronous() as fabric:
            try:
                self._puller = await open_puller(fabric, self._settings)
                await self._puller.start()
            finally:
                self._ready.set()
            await self._puller.run()

    def end(self) -> None:
        assert self._loop is not None
        assert self._puller is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._puller.drain)
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()


def tells(reports: list[WorkerReport], task: bytes) -> bool:
    """Whether a worker says that it runs a task."""
    return any(begun.task == task for report in reports for begun in report.running)
