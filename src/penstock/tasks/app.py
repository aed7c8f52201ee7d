"""Tasks for programs that block: what `Fabric.tasks` gives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import as_completed, wait
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.client.aio import AsyncFabric
from penstock.client.closing import Closing
from penstock.errors import ClosedError
from penstock.tasks.calls import DEFAULT, Caller, CallOptions
from penstock.tasks.codec import Codec, Parent
from penstock.tasks.declare import package_names
from penstock.tasks.direct import Direct
from penstock.tasks.envelope import TaskOutcome
from penstock.tasks.futures import TaskFuture, TaskRef
from penstock.tasks.here import AsyncWorkerHere, WorkerHere, settings_here
from penstock.tasks.link import TaskLink, checked_limits
from penstock.tasks.mapping import BUNDLE, Mapping
from penstock.tasks.outbox import Parcel
from penstock.tasks.portal import Portal
from penstock.tasks.results import TaskResults
from penstock.tasks.schedules.book import AsyncSchedules, Schedules
from penstock.tasks.submitting import Call, Submitting, task_id_of, zipped
from penstock.tasks.waiting import MOST_WAITING, limit_error
from penstock.tasks.watching.observer import Observer
from penstock.tasks.watching.shells import Watched
from penstock.tasks.worker.loading import refuse_while_loading
from penstock.tasks.worker.settings import Kind
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric
    from penstock.tasks.progress import TaskProgress

R = TypeVar("R")
T = TypeVar("T")


class TaskApp(Watched, Closing):
    """Submits tasks of one task set, and waits for their outcomes. Threads may share it.

    It has a connection and a thread of its own, from its making to `close`.
    """

    def __init__(
        self,
        fabric: Fabric,
        name: str = "default",
        *,
        durability: str | None = None,
        pickle_key: bytes | None = None,
        allow: Iterable[str] = (),
        outstanding: int = MOST_WAITING,
        patience: float | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        """See `Fabric.tasks`."""
        self.name = name
        self._secrets = (pickle_key, package_names(allow))
        self._workers: list[WorkerHere] = []
        self._limits = checked_limits(outstanding, patience, directory)
        files, home = self._limits.directory is not None, f"{fabric.namespace}/{name}"
        self._caller = Caller.new(*self._secrets, files, home)
        self._submitting: Submitting[TaskFuture[Any]] = Submitting(self._caller, self._new_future)
        self._caller.runs_here = lambda: any(each.in_threads for each in self._workers)
        self._closed = False
        self._closed_by = ClosedError("the task app is closed", advice="Open another one.")
        self._portal = Portal(f"penstock-tasks-{name}")
        try:
            self._fabric, self._link = self._portal.call(self._open(fabric, name, durability))
        except BaseException:
            self._portal.close()
            raise
        self._direct = Direct(fabric, self._link, self._portal)

    async def _open(
        self, fabric: Fabric, name: str, durability: str | None
    ) -> tuple[AsyncFabric, TaskLink]:
        twin = await fabric._asynchronous()
        link = TaskLink(twin, self._caller.client, self._limits)
        try:
            await link.open(name, durability)
        except BaseException:
            await twin.close()
            raise
        return twin, link

    def _new_future(
        self, task: bytes, codec: Codec, function: str, kept: bool
    ) -> TaskFuture[Any]:
        return TaskFuture(task, codec, self, function, kept)

    def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        task_id: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        on_failure: str = "fail",
        block: str = "",
        **kwargs: Any,
    ) -> TaskFuture[Any]:
        """Has a worker call the function; returns at once with a future of its result.

        What is submitted meanwhile is sent together; only if very much waits to be sent does this
        block. Futures among the arguments, however deep, stand for the results of their tasks; the
        queue holds this one until they are there. `on_failure`: if one of those does not succeed,
        this one "fail"s, is "skip"ped, or is "run" all the same. `task_id`: the same name again is
        the same task. `priority`: 0 to 15, higher first. `delay`: seconds before it may run.
        `keep`: seconds that its outcome is kept for others, an hour unless said otherwise; 0: not
        at all. `retries` and `timeout` instead of the declared ones. `block`: the data that it
        works on; it runs on a host that has it, unless that has too much to do.
        SerialisationError if an argument cannot be sent; if sending fails, the future has the
        reason.
        """
        options = CallOptions(
            task_id, priority, delay, keep, retries, timeout, on_failure, block
        )
        return self.submit_call((function, args, kwargs), options)

    def submit_call(self, call: Call, options: CallOptions = DEFAULT) -> TaskFuture[Any]:
        """As `submit`, for arguments whose names `submit` takes for itself."""
        future, parcel = self._submitting.waited(call, options)
        self._offer(parcel)
        return future

    def gang(
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
        timeout: float | None = None,
        on_loss: str = "restart",
        **kwargs: Any,
    ) -> TaskFuture[list[Any]]:
        """Has `size` workers call the function together, once so many are free: the first argument
        is a `Gang`, which tells each its rank and lets them meet. The result is the list of what
        they returned, by rank. `on_loss`: if one of them dies, the gang is run again ("restart"),
        or has failed ("end"). The rest as for `submit`; a gang cannot depend on other tasks.
        `timeout` is for the whole gang.
        """
        options = CallOptions(task_id, priority, delay, keep, retries, timeout)
        call = (function, args, kwargs)
        future, parcel = self._submitting.gang(call, options, size, on_loss)
        self._offer(parcel)
        return future

    def post(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        task_id: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        keep: float | None = None,
        retries: int | None = None,
        timeout: float | None = None,
        on_failure: str = "fail",
        block: str = "",
        **kwargs: Any,
    ) -> TaskRef:
        """As `submit`, but nobody waits for the outcome: costs no memory here. What it returns may
        be an argument of other submissions. Errors of sending are raised by `flush`."""
        options = CallOptions(
            task_id, priority, delay, keep, retries, timeout, on_failure, block
        )
        posted, parcel = self._submitting.posted((function, args, kwargs), options)
        self._offer(parcel)
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
    ) -> TaskResults[Any]:
        """Has workers call the function with each item; the results, as they are iterated over.

        Items are taken as results are: at most 10,000 are in flight, so that memory stays flat
        whatever the length. They are sent in bundles of `batch`. Outcomes are not kept.
        """
        options = CallOptions(priority=priority, retries=retries, timeout=timeout)
        form, terms = self._submitting.mapped(function, options, len(iterables))
        arrived = threading.Event()
        items = Mapping(self._caller, form, zipped(iterables), terms, arrived.set, batch)
        return TaskResults(items, self._offer, arrived, self._read)

    def future(self, task: str | bytes | TaskRef) -> TaskFuture[Any]:
        """A future for the kept outcome of any client's task, by its name, its id or a reference.
        It waits for as long as there is none: also if there will never be one."""
        future = self._submitting.kept(task)
        self._check_open()
        self._wait_for_room(waited=True)
        self._portal.soon(lambda: self._link.wait_for_kept(future.id, future))
        return future

    def _attend(self, future: TaskFuture[Any], timeout: float | None) -> float | None:
        """For its futures: waits for one, if it is up to this thread to do that; what is left of
        `timeout`."""
        return self._direct.wait(future, timeout)

    def cancel(self, task: str | bytes | Parent) -> bool:
        """Asks that a task be cancelled; what the answer means stands at `TaskFuture.cancel`."""
        self._check_open()
        chosen = task_id_of(task)
        if self._link.withdraw(chosen):
            return True
        asking = self._portal.start(self._link.cancel(chosen))
        if not self._portal.inside:
            self._portal.result(asking)
        return False

    def worker(
        self,
        *modules: str,
        concurrency: int | None = None,
        kind: Kind = "process",
        gangs: int = 0,
        drain: float = 30.0,
    ) -> WorkerHere:
        """Runs tasks in this very program, until it is closed, or the app is: nothing else has to
        be started, and other workers may be there as well.

        `modules`: names or files that declare the tasks; those that this program has loaded if
        none is named. `concurrency`: tasks at a time, as many as there are processors unless said
        otherwise. `kind`: they run in a "process" each, in a "thread", or as "async" coroutines.
        `gangs`: places for members of gangs, besides. `drain`: seconds that tasks have to end when
        it is closed. A script needs `if __name__ == "__main__":` around what it does, as with
        `multiprocessing`. UnavailableError, with the reason, if no executor can start.
        """
        self._check_open()
        settings = settings_here(
            self.name, concurrency, kind, modules, *self._secrets, drain, self._limits.directory
        )
        here = WorkerHere(AsyncWorkerHere(self._fabric, settings, gangs), self._portal)
        self._workers.append(here)
        return here

    def _observer(self) -> Observer:
        self._check_open()
        return self._link.observer

    def _look(self, work: Coroutine[Any, Any, T]) -> T:
        return self._portal.call(work)

    @property
    def schedules(self) -> Schedules:
        """Tasks that are submitted at certain times, by whichever worker is there."""
        self._check_open()
        return Schedules(AsyncSchedules(self._caller, self._link.control), self._portal)

    def gather(self, futures: Iterable[TaskFuture[R]], timeout: float | None = None) -> list[R]:
        """The results of all, in order; the first error that is found, in that order."""
        self._direct.leave()
        chosen = list(futures)
        if wait(chosen, timeout).not_done:
            raise TimeoutError(f"not all of {len(chosen):,} tasks have ended")
        return [future.result() for future in chosen]

    def wait(
        self,
        futures: Iterable[TaskFuture[Any]],
        timeout: float | None = None,
        return_when: str = "ALL_COMPLETED",
    ) -> tuple[set[TaskFuture[Any]], set[TaskFuture[Any]]]:
        """Those that are done and those that are not, as `concurrent.futures.wait`."""
        self._direct.leave()
        done, others = wait(list(futures), timeout, return_when)
        return done, others  # type: ignore[return-value]  # the very futures that were given

    def as_completed(
        self, futures: Iterable[TaskFuture[R]], timeout: float | None = None
    ) -> Iterator[TaskFuture[R]]:
        """The futures, each when its task has ended. TimeoutError."""
        self._direct.leave()
        return as_completed(list(futures), timeout)  # type: ignore[return-value]

    def progress(self, description: str = "tasks") -> TaskProgress:
        """A bar of the tasks that are waited for, for as long as its `with` block lasts."""
        from penstock.tasks.progress import TaskProgress  # takes its time; few draw bars

        return TaskProgress(lambda: self._link.waiting.counts, description)

    def flush(self) -> None:
        """Waits until all that was submitted is stored. Raises why a posted task could not be."""
        self._check_open()
        self._direct.leave()
        self._portal.call(self._link.flush())

    def close(self) -> None:
        """Sends what was submitted, closes its workers, and ends. Futures without an outcome end
        with ClosedError, and their tasks go on."""
        if self._closed:
            return
        self._closed = True
        try:
            for worker in self._workers:
                worker.close()
            self._direct.close()
            self._portal.call(self._end())
        finally:
            self._portal.close()

    def _hurry(self, seconds: float) -> None:
        """Waits no longer than this for an answer from now on."""
        self._fabric._hurry(seconds)

    def _forked(self, reason: ClosedError) -> None:
        """This is another process: the thread that sends, and hears of outcomes, is not here."""
        self._closed, self._closed_by = True, reason

    async def _end(self) -> None:
        try:
            await self._link.close()
        finally:
            await self._fabric.close()

    def _read(self, outcome: TaskOutcome) -> list[Buffer]:
        self._check_open()
        return self._portal.call(self._link.large_of(outcome))

    def _offer(self, parcel: Parcel) -> None:
        self._check_open()
        if self._direct.take(parcel):
            return
        link, waited = self._link, parcel.sink is not None
        if link.crowded(waited) is not None:
            self._wait_for_room(waited)
        if link.offer(parcel):
            self._portal.soon(link.pump)

    def _wait_for_room(self, waited: bool) -> None:
        if self._portal.inside:
            return  # a callback of a future: it must not wait for the thread that it runs on
        patience_s, room = self._link.patience_s, threading.Event()
        ends_s = None if patience_s is None else time.monotonic() + patience_s
        while (crowded := self._link.crowded(waited)) is not None:
            room.clear()
            crowded.when_room(room.set)
            left_s = None if ends_s is None else max(ends_s - time.monotonic(), 0.0)
            if not room.wait(left_s):
                crowded.forget_room(room.set)
                raise limit_error(patience_s or 0.0)

    def _check_open(self) -> None:
        refuse_while_loading()
        if self._closed:
            raise self._closed_by
