"""Tasks for event loops: what `AsyncFabric.tasks` gives. The same names as in the blocking app."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.client.aio import AsyncFabric
from penstock.client.closing import AsyncClosing
from penstock.errors import ClosedError
from penstock.tasks.aio_results import AsyncTaskResults
from penstock.tasks.calls import DEFAULT, Caller, CallOptions
from penstock.tasks.codec import Codec, Parent
from penstock.tasks.declare import package_names
from penstock.tasks.futures import AsyncTaskFuture, TaskRef
from penstock.tasks.here import AsyncWorkerHere, settings_here
from penstock.tasks.link import TaskLink, checked_limits
from penstock.tasks.mapping import BUNDLE, Mapping
from penstock.tasks.outbox import Parcel
from penstock.tasks.schedules.book import AsyncSchedules
from penstock.tasks.submitting import Call, Submitting, task_id_of, zipped
from penstock.tasks.waiting import MOST_WAITING, limit_error
from penstock.tasks.watching.observer import Observer
from penstock.tasks.watching.shells import AsyncWatched
from penstock.tasks.worker.loading import refuse_while_loading
from penstock.tasks.worker.settings import Kind

if TYPE_CHECKING:
    from penstock.tasks.progress import TaskProgress

R = TypeVar("R")


class AsyncTaskApp(AsyncWatched, AsyncClosing):
    """Submits tasks of one task set, and waits for their outcomes; for one event loop."""

    def __init__(
        self,
        fabric: AsyncFabric,
        name: str = "default",
        *,
        durability: str | None = None,
        pickle_key: bytes | None = None,
        allow: Iterable[str] = (),
        outstanding: int = MOST_WAITING,
        patience: float | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """See `Fabric.tasks`, which also opens it."""
        self.name = name
        self._durability = durability
        self._fabric = fabric
        self._secrets = (pickle_key, package_names(allow))
        self._workers: list[AsyncWorkerHere] = []
        self._limits = checked_limits(outstanding, patience, directory)
        files, home = self._limits.directory is not None, f"{fabric.namespace}/{name}"
        self._caller = Caller.new(*self._secrets, files, home)
        self._submitting: Submitting[AsyncTaskFuture[Any]] = Submitting(
            self._caller, self._new_future
        )
        self._caller.runs_here = lambda: any(each.in_threads for each in self._workers)
        self._link = TaskLink(fabric, self._caller.client, self._limits)
        self._closed = False

    async def _open(self) -> Self:
        await self._link.open(self.name, self._durability)
        return self

    def _new_future(
        self, task: bytes, codec: Codec, function: str, kept: bool
    ) -> AsyncTaskFuture[Any]:
        return AsyncTaskFuture(task, codec, self, function, kept)

    async def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        task_id: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # of the task
        on_failure: str = "fail",
        block: str = "",
        **kwargs: Any,
    ) -> AsyncTaskFuture[Any]:
        """Has a worker call the function; a future of its result, to be awaited. As
        `TaskApp.submit`; this waits only if very much waits to be sent."""
        options = CallOptions(
            task_id, priority, delay, keep, retries, timeout, on_failure, block
        )
        return await self.submit_call((function, args, kwargs), options)

    async def submit_call(
        self, call: Call, options: CallOptions = DEFAULT
    ) -> AsyncTaskFuture[Any]:
        """As `submit`, for arguments whose names `submit` takes for itself."""
        future, parcel = self._submitting.waited(call, options)
        await self._offer(parcel)
        return future

    async def gang(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        size: int,
        task_id: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # of the gang
        on_loss: str = "restart",
        **kwargs: Any,
    ) -> AsyncTaskFuture[list[Any]]:
        """Has `size` workers call the function together; as `TaskApp.gang`."""
        options = CallOptions(task_id, priority, delay, keep, retries, timeout)
        call = (function, args, kwargs)
        future, parcel = self._submitting.gang(call, options, size, on_loss)
        await self._offer(parcel)
        return future

    async def post(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        task_id: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # of the task
        on_failure: str = "fail",
        block: str = "",
        **kwargs: Any,
    ) -> TaskRef:
        """As `submit`, but nobody waits for the outcome; as `TaskApp.post`."""
        options = CallOptions(
            task_id, priority, delay, keep, retries, timeout, on_failure, block
        )
        posted, parcel = self._submitting.posted((function, args, kwargs), options)
        await self._offer(parcel)
        return posted

    def map(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        batch: int = BUNDLE,
        priority: int = 0,
        retries: int | None = None,
        timeout: float | None = None,
    ) -> AsyncTaskResults[Any]:
        """Has workers call the function with each item; the results, as they are iterated over. As
        `TaskApp.map`."""
        options = CallOptions(priority=priority, retries=retries, timeout=timeout)
        form, terms = self._submitting.mapped(function, options, len(iterables))
        arrived = asyncio.Event()
        items = Mapping(self._caller, form, zipped(iterables), terms, arrived.set, batch)
        return AsyncTaskResults(items, self._offer, arrived, self._link.large_of)

    def future(self, task: str | bytes | TaskRef) -> AsyncTaskFuture[Any]:
        """A future for the kept outcome of any client's task; as `TaskApp.future`."""
        future = self._submitting.kept(task)
        self._check_open()
        if self._link.crowded() is not None:
            raise limit_error(0.0)  # this does not wait
        self._link.wait_for_kept(future.id, future)
        return future

    async def cancel(self, task: str | bytes | Parent) -> bool:
        """Asks that a task be cancelled; what the answer means stands at `TaskFuture.cancel`."""
        self._check_open()
        chosen = task_id_of(task)
        if self._link.withdraw(chosen):
            return True
        await self._link.cancel(chosen)
        return False

    async def worker(
        self,
        *modules: str,
        concurrency: int | None = None,
        kind: Kind = "process",
        gangs: int = 0,
        drain: float = 30.0,
    ) -> AsyncWorkerHere:
        """Runs tasks in this very program, until it is closed, or the app is. As
        `TaskApp.worker`."""
        self._check_open()
        settings = settings_here(
            self.name, concurrency, kind, modules, *self._secrets, drain, self._limits.directory
        )
        here = await AsyncWorkerHere(self._fabric, settings, gangs).open()
        self._workers.append(here)
        return here

    def _observer(self) -> Observer:
        self._check_open()
        return self._link.observer

    @property
    def schedules(self) -> AsyncSchedules:
        """Tasks that are submitted at certain times, by whichever worker is there."""
        self._check_open()
        return AsyncSchedules(self._caller, self._link.control)

    async def gather(
        self,
        futures: Iterable[AsyncTaskFuture[R]],
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
    ) -> list[R]:
        """The results of all, in order; the first error that is found, in that order."""
        async with asyncio.timeout(timeout):
            return [await future for future in list(futures)]

    async def wait(
        self,
        futures: Iterable[AsyncTaskFuture[Any]],
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
        return_when: str = "ALL_COMPLETED",
    ) -> tuple[set[AsyncTaskFuture[Any]], set[AsyncTaskFuture[Any]]]:
        """Those that are done and those that are not, as `asyncio.wait`."""
        chosen = {asyncio.ensure_future(each.exception()): each for each in futures}
        try:
            await asyncio.wait(chosen, timeout=timeout, return_when=return_when)
        finally:
            for waiting in chosen:
                waiting.cancel()
        done = {each for each in chosen.values() if each.done()}
        return done, set(chosen.values()) - done

    async def as_completed(
        self,
        futures: Iterable[AsyncTaskFuture[R]],
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
    ) -> AsyncIterator[AsyncTaskFuture[R]]:
        """The futures, each when its task has ended. TimeoutError."""
        ended: asyncio.Queue[AsyncTaskFuture[R]] = asyncio.Queue()
        chosen = list(futures)
        ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        for future in chosen:
            future.add_done_callback(ended.put_nowait)
        for _ in chosen:
            async with asyncio.timeout_at(ends):
                future = await ended.get()
            yield future

    def progress(self, description: str = "tasks") -> TaskProgress:
        """A bar of the tasks that are waited for; as `TaskApp.progress`, with a plain `with`."""
        from penstock.tasks.progress import TaskProgress  # takes its time; few draw bars

        return TaskProgress(lambda: self._link.waiting.counts, description)

    async def flush(self) -> None:
        """Waits until all that was submitted is stored. Raises why a posted task could not be."""
        self._check_open()
        await self._link.flush()

    async def close(self) -> None:
        """Sends what was submitted, closes its workers, and ends. Futures without an outcome end
        with ClosedError, and their tasks go on."""
        if not self._closed:
            self._closed = True
            for worker in self._workers:
                await worker.close()
            await self._link.close()

    async def _offer(self, parcel: Parcel) -> None:
        self._check_open()
        link, waited = self._link, parcel.sink is not None
        if link.crowded(waited) is not None:
            await self._wait_for_room(waited)
        if link.offer(parcel):
            asyncio.get_running_loop().call_soon(link.pump)

    async def _wait_for_room(self, waited: bool) -> None:
        patience_s, room = self._link.patience_s, asyncio.Event()
        try:
            async with asyncio.timeout(patience_s):
                while (crowded := self._link.crowded(waited)) is not None:
                    room.clear()
                    crowded.when_room(room.set)
                    await room.wait()
        except TimeoutError:
            raise limit_error(patience_s or 0.0) from None
        finally:
            for each in (self._link.outbox, self._link.waiting):
                each.forget_room(room.set)

    def _check_open(self) -> None:
        refuse_while_loading()
        if self._closed:
            raise ClosedError("the task app is closed", advice="Open another one.")
