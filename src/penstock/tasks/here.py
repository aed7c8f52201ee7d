"""A worker inside the program that submits tasks: nothing else has to be started."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from penstock.client.aio import AsyncFabric
from penstock.client.closing import Closing
from penstock.errors import InvalidError
from penstock.tasks.blobs.files import Directory
from penstock.tasks.declare import registry
from penstock.tasks.gangs.places import GangPlaces, open_places, run_both
from penstock.tasks.importing import typed_error
from penstock.tasks.portal import Portal
from penstock.tasks.worker.puller import Puller
from penstock.tasks.worker.settings import Kind, WorkerSettings
from penstock.tasks.worker.worker import open_puller, worker_name

_numbers = itertools.count(1)


def settings_here(
    task_set: str, concurrency: int | None, kind: Kind, modules: Iterable[str],
    pickle_key: bytes | None, allow: Iterable[str], drain_s: float,
    directory: Directory | None = None,
) -> WorkerSettings:  # fmt: skip
    """Of a worker that knows the tasks that this program has declared, if no modules are named."""
    chosen = tuple(modules) or tuple(registry.modules())
    if not chosen and not len(registry):
        raise InvalidError(
            "this program has declared no tasks",
            advice="Decorate functions with @penstock.task, or name the modules that do.",
        )
    if not chosen and kind == "process":
        raise typed_error("every task of this program")
    return WorkerSettings(
        chosen, task_set, concurrency or os.cpu_count() or 1, kind, tuple(allow),
        drain_s=drain_s, pickle_key=pickle_key,
        directory="" if directory is None else directory.path,
    )  # fmt: skip


class AsyncWorkerHere:
    """Runs tasks from `open`, or the beginning of an `async with` block, to `close`."""

    def __init__(self, fabric: AsyncFabric, settings: WorkerSettings, gangs: int = 0) -> None:
        """See `TaskApp.worker`."""
        self._fabric = fabric
        self._settings = settings
        self._gangs = gangs
        self._puller: Puller | None = None
        self._places: GangPlaces | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def in_threads(self) -> bool:
        """Whether it runs, in threads of this process: what is typed at a prompt, too."""
        return self._running is not None and self._settings.kind != "process"

    async def open(self) -> Self:
        """Returns when the first executor is ready; UnavailableError, with the reason, if none
        can be."""
        name = f"{worker_name()}-{next(_numbers)}"  # a program may have several
        puller = await open_puller(self._fabric, self._settings, name)
        places = await open_places(self._fabric, self._settings, self._gangs, name)
        try:
            await puller.start()
        except BaseException:
            await puller.close()
            raise
        self._puller, self._places = puller, places
        self._running = asyncio.get_running_loop().create_task(run_both(puller, places))
        return self

    async def close(self) -> None:
        """Begins nothing more, and waits for what runs, as long as the settings say; what is not
        begun goes back to the queue. Raises what had ended the worker before, if anything had."""
        running, self._running = self._running, None
        if running is None:
            return
        if self._puller is not None and self._places is not None:
            self._puller.drain()
            self._places.drain()
            asyncio.get_running_loop().call_later(self._settings.drain_s, self._places.stop)
        await running

    async def __aenter__(self) -> Self:
        return self if self._running is not None else await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class WorkerHere(Closing):
    """Runs tasks from its making to `close`, or the end of a `with` block."""

    def __init__(self, worker: AsyncWorkerHere, portal: Portal) -> None:
        """See `TaskApp.worker`."""
        self._worker = worker
        self._portal = portal
        self._closed = False
        portal.call(worker.open())

    @property
    def in_threads(self) -> bool:
        """As `AsyncWorkerHere.in_threads`."""
        return self._worker.in_threads

    def close(self) -> None:
        """As `AsyncWorkerHere.close`."""
        if not self._closed:
            self._closed = True
            self._portal.call(self._worker.close())
