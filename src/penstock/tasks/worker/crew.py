"""The executors of a worker: started, replaced when they die, ended."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.errors import UnavailableError
from penstock.tasks.worker.executors import AnyExecutor, Gone, Heard, ProcessExecutor
from penstock.tasks.worker.local import AsyncExecutor, ThreadExecutor
from penstock.tasks.worker.protocol import Broken, Ready, Setup, ToPuller
from penstock.tasks.worker.settings import Kind, WorkerSettings

MAX_FAILED_STARTS = 5  # in a row: then there is no point in trying on

MakeExecutor = Callable[[int, Heard, Gone], AnyExecutor]
MAKERS: dict[Kind, MakeExecutor] = {
    "process": ProcessExecutor,
    "thread": ThreadExecutor,
    "async": AsyncExecutor,
}


class Crew:
    """As many executors as the settings say; one that dies is replaced by a new one."""

    def __init__(self, settings: WorkerSettings, name: str, heard: Heard, lost: Gone) -> None:
        """`heard` is told what executors say, from Ready on; `lost` of the end of one that was
        ready."""
        self.rates: dict[str, tuple[float, float]] = {}
        self.functions: list[str] = []
        self._settings = settings
        self._name = name
        self._tell = heard
        self._lost = lost
        self._numbers = itertools.count(1)
        self._ready: dict[int, AnyExecutor] = {}
        self._starting: dict[int, AnyExecutor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed_starts = 0
        self._shrinking = False
        self._closing = False

    async def start(self) -> None:
        """Starts all; returns when the first is ready. UnavailableError, with the reason, if none
        can be started."""
        for _ in range(self._settings.concurrency):
            self._begin()
        first = asyncio.get_running_loop().create_task(self._first.wait())
        either: list[asyncio.Future[Any]] = [first, self._failed]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if self._failed.done():
            self._failed.result()

    async def failed(self) -> None:
        """Waits until executors cannot be started any more, and raises UnavailableError."""
        await asyncio.shield(self._failed)

    def get(self, number: int) -> AnyExecutor:
        """One that is ready."""
        return self._ready[number]

    def all(self) -> list[AnyExecutor]:
        """Those that are ready."""
        return list(self._ready.values())

    def shrink(self) -> None:
        """Replaces nobody any more."""
        self._shrinking = True

    async def close(self) -> None:
        """Ends all, and waits until they are gone."""
        self._closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        present = [*self._ready.values(), *self._starting.values()]
        await asyncio.gather(*[each.close() for each in present])
        self._ready.clear()
        self._starting.clear()
        self._failed.cancel()

    def _begin(self) -> None:
        make = MAKERS[self._settings.kind]
        executor = make(next(self._numbers), self._heard, self._gone)
        self._starting[executor.number] = executor
        settings = self._settings
        setup = Setup(
            list(settings.modules), list(settings.allowed), f"{self._name}/{executor.number}",
            settings.pickle_key, settings.directory,
        )  # fmt: skip
        self._spawn(self._start(executor, setup))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, executor: AnyExecutor, setup: Setup) -> None:
        try:
            await executor.start(setup)
        except OSError as error:
            del self._starting[executor.number]
            self._fail(f"an executor cannot be started: {error}")

    def _heard(self, executor: AnyExecutor, message: ToPuller) -> None:
        if isinstance(message, Broken):
            self._fail(message.text)
            return
        if isinstance(message, Ready):
            self._failed_starts = 0
            self.rates.update(message.rates)
            self.functions = message.functions
            self._ready[executor.number] = self._starting.pop(executor.number)
            self._first.set()
        self._tell(executor, message)

    def _gone(self, executor: AnyExecutor) -> None:
        if self._closing:
            return
        if self._ready.pop(executor.number, None) is not None:
            self._lost(executor)
        elif self._starting.pop(executor.number, None) is not None:
            self._failed_starts += 1
        self._spawn(executor.close())
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._fail(f"executors died {self._failed_starts} times in a row while they started")
        elif not self._failed.done() and not self._shrinking:
            self._begin()

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_exception(
                UnavailableError(
                    f"the worker's functions cannot be run: {why}",
                    advice="Check that the module can be imported here. A script does its work "
                    'under `if __name__ == "__main__":`.',
                )
            )
