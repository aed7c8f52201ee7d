"""A whole worker inside the test's process: its executors are threads, its fabric is in memory."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import penstock
from penstock.tasks.portal import Portal
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import WorkerSettings
from penstock.tasks.worker.worker import open_puller


class InThread:
    """Works until it is left; what runs then may end."""

    def __init__(self, fabric: penstock.Fabric, *modules: str, **settings: Any) -> None:
        self._fabric = fabric
        self._settings = WorkerSettings(modules, **{"kind": "thread"} | settings)
        self._portal = Portal("worker")
        self._run: Future[None]
        self.puller: Puller

    def __enter__(self) -> InThread:
        ready: Future[Puller] = Future()
        self._run = self._portal.start(self._work(ready))
        self.puller = ready.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.soon(self.puller.drain)
        self._run.result(60)
        self._portal.close()

    async def _work(self, ready: Future[Puller]) -> None:
        try:
            async with self._fabric._asynchronous() as twin:
                puller = await open_puller(twin, self._settings)
                await puller.start()
                ready.set_result(puller)
                await puller.run()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise
        await asyncio.sleep(0)
