"""What a submission gives back: the task's result to be, for threads and for event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import ConflictError, PenstockError
from penstock.tasks.codec import Codec, Parent
from penstock.tasks.envelope import Status, TaskOutcome
from penstock.tasks.errors import TaskCancelledError
from penstock.tasks.names import shown
from penstock.tasks.waiting import error_of
from penstock.wire.buffers import Buffer

_ENDINGS = [status.name.lower() for status in Status]
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TaskRef(Parent):
    """A task by its id: as an argument of another submission, it stands for the result."""

    def __init__(self, task: bytes, kept: bool = True, home: str = "") -> None:
        self.id = task
        self.kept = kept
        self.home = home

    def __repr__(self) -> str:
        return f"<task {shown(self.id)}>"


class TaskHandle(Parent):
    """What futures of both kinds know of their task."""

    reads_later = False

    def __init__(self, task: bytes, codec: Codec, function: str = "", kept: bool = True) -> None:
        self.id = task
        self.kept = kept
        self.home = codec.home
        self.function = function
        self.outcome: TaskOutcome | None = None
        """Attempt, worker and times, once the task has ended."""
        self._codec = codec
        self._ending = "submitted"

    @property
    def state(self) -> str:
        """"submitted", "done", "failed", "skipped" or "cancelled"; "lost" if the task could not be
        sent, or nobody listens for its outcome any more."""
        return self._ending

    def settled(self) -> None:
        """Nothing is left to do when several outcomes came together."""

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        """The task has ended. Who hears of it again has nothing new to say."""
        if self.done():
            return False
        value: Any = None
        error: PenstockError | None
        try:
            self._check_function(outcome.function)
            error = error_of(task, outcome)
            if error is None:
                value = self._codec.unpack(outcome.result, large)
            ending = _ENDINGS[outcome.status]
        except PenstockError as unreadable:
            error, ending = unreadable, "lost"
        self.outcome, self._ending = outcome, ending
        self._resolve(value, error)
        return False

    def done(self) -> bool:
        """Whether the task has ended, in whichever way."""
        raise NotImplementedError

    def _check_function(self, ran: str) -> None:
        if self.function and ran and ran != self.function:
            raise ConflictError(
                f"the task of this name called {ran}, not {self.function}, which was not run",
                advice="Choose another task_id: the same one is the same task.",
            )

    def fail(self, task: bytes, error: PenstockError) -> None:
        """No outcome will come."""
        self._ending = "cancelled" if isinstance(error, TaskCancelledError) else "lost"
        self._resolve(None, error)

    def _resolve(self, value: Any, error: PenstockError | None) -> None:
        raise NotImplementedError

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"{self!r} has not ended within {timeout} s (It goes on. If nothing does: is there a "
            "worker of this task set, with room for it?)"
        )

    def __repr__(self) -> str:
        return f"<{self.function or 'task'} {shown(self.id)}: {self._ending}>"


class App(Protocol):
    """The blocking app."""

    def _attend(self, future: TaskFuture[Any], timeout: float | None) -> float | None:
        """Waits for a future, if it is up to this thread to do that; what is left of `timeout`."""

    def cancel(self, task: Parent) -> bool:
        """Asks that a task be cancelled."""


class TaskFuture(Future[R], TaskHandle):
    """The result to be of a task. A `concurrent.futures.Future`: `wait` and `as_completed` of that
    module take it. As an argument of another submission, it stands for the result."""

    def __init__(
        self, task: bytes, codec: Codec, app: App, function: str = "", kept: bool = True
    ) -> None:
        Future.__init__(self)
        TaskHandle.__init__(self, task, codec, function, kept)
        self._app = app

    def result(self, timeout: float | None = None) -> R:
        """Waits for the result. TaskFailedError and the like if there is none; TimeoutError after
        `timeout` seconds, and the task goes on."""
        try:
            return super().result(self._left(timeout))
        except TimeoutError:
            if self.done():
                raise  # what it ended with
            raise self._late(timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end of the task; what there is instead of a result. TimeoutError."""
        try:
            return super().exception(self._left(timeout))
        except TimeoutError:
            raise self._late(timeout) from None

    def _left(self, timeout: float | None) -> float | None:
        return timeout if self.done() else self._app._attend(self, timeout)

    def cancel(self) -> bool:
        """Asks that the task be cancelled.

        True: it will never run, as it was not sent yet. False: it is over, or somewhere between
        the queue and a worker. Then workers are told: one that has it ready drops it, one that runs
        it stops it. Which of them was quicker, the future says in the end: TaskCancelledError, or
        the result.
        """
        return not self.done() and self._app.cancel(self)

    def cancelled(self) -> bool:
        """Whether it has ended by being cancelled."""
        return self._ending == "cancelled"

    def _resolve(self, value: Any, error: PenstockError | None) -> None:
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    __repr__ = TaskHandle.__repr__


class CancelsAsync(Protocol):
    """The app for event loops."""

    async def cancel(self, task: Parent) -> bool:
        """Asks that a task be cancelled."""


class AsyncTaskFuture(TaskHandle, Generic[R_co]):
    """The result to be of a task, for the tasks of one event loop: await it, or its `result`.

    Whoever awaits it may be cancelled, or stop waiting: the task goes on unless `cancel` is called.
    As an argument of another submission, it stands for the result.
    """

    def __init__(
        self, task: bytes, codec: Codec, app: CancelsAsync, function: str = "", kept: bool = True
    ) -> None:
        super().__init__(task, codec, function, kept)
        self._app = app
        self._value: Any = None
        self._error: PenstockError | None = None
        self._done = False
        self._waiters: list[asyncio.Event] = []
        self._callbacks: list[Callable[[AsyncTaskFuture[R_co]], object]] = []

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109  # as its twin
        """Waits for the result; errors as `TaskFuture.result`."""
        if (error := await self.exception(timeout)) is not None:
            raise error
        value: R_co = self._value
        return value

    async def exception(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as its twin
    ) -> PenstockError | None:
        """Waits for the end of the task; what there is instead of a result. TimeoutError."""
        if not self._done:
            ended = asyncio.Event()
            self._waiters.append(ended)
            try:
                async with asyncio.timeout(timeout):
                    await ended.wait()
            except TimeoutError:
                raise self._late(timeout) from None
            finally:
                self._waiters.remove(ended)
        return self._error

    def done(self) -> bool:
        """Whether the task has ended, in whichever way."""
        return self._done

    async def cancel(self) -> bool:
        """Asks that the task be cancelled; what the answer means stands at `TaskFuture.cancel`."""
        return not self._done and await self._app.cancel(self)

    def cancelled(self) -> bool:
        """Whether it has ended by being cancelled."""
        return self._ending == "cancelled"

    def add_done_callback(self, fn: Callable[[AsyncTaskFuture[R_co]], object]) -> None:
        """Has the loop call `fn` with this future when the task has ended."""
        if self._done:
            asyncio.get_running_loop().call_soon(fn, self)
        else:
            self._callbacks.append(fn)

    def _resolve(self, value: Any, error: PenstockError | None) -> None:
        self._value, self._error, self._done = value, error, True
        for ended in self._waiters:
            ended.set()
        callbacks, self._callbacks = self._callbacks, []
        loop = asyncio.get_running_loop()
        for callback in callbacks:
            loop.call_soon(callback, self)  # what it raises is the loop's to report, not ours
