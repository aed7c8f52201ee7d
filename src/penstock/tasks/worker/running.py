"""Running one task: from the packed call to the packed outcome. Used by every kind of executor."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from penstock.errors import PenstockError
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Registry, registry
from penstock.tasks.envelope import (
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    read_call,
    read_outcome,
)
from penstock.tasks.errors import SerialisationError, TaskError, UnknownFunctionError
from penstock.tasks.importing import loaded, package_of
from penstock.tasks.names import shown
from penstock.tasks.waiting import error_of
from penstock.tasks.worker.jobs import Ended
from penstock.tasks.worker.protocol import Setup, Work
from penstock.wire.limits import MAX_BATCH_BYTES, MAX_TABLE_VALUE_BYTES

MAX_TRACEBACK = 32_000  # characters that are told of one
_OVERHEAD = 64 << 10  # of an outcome beside the result, with room to spare
MAX_KEPT_BYTES = MAX_TABLE_VALUE_BYTES - _OVERHEAD
MAX_RESULT_BYTES = MAX_BATCH_BYTES // 2

Waits = Callable[[Awaitable[Any]], Any]


def wall_us() -> int:
    """The time that outcomes tell."""
    return time.time_ns() // 1000


class OwnLoop:
    """Awaits what functions return, for a thread that has no event loop; made when first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait(self, result: Awaitable[Any]) -> Any:
        """What comes of it; tasks that it leaves behind go on with the next one."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def awaited() -> Any:
            return await result

        return self._loop.run_until_complete(awaited())

    def close(self) -> None:
        """Ends it."""
        if self._loop is not None:
            self._loop.close()


class Runner:
    """Finds functions, reads arguments, and packs what comes of them."""

    def __init__(
        self, registry: Registry, codec: Codec, worker: str, allowed: Collection[str] = ()
    ) -> None:
        """`allowed`: top-level packages whose functions need not be declared as tasks."""
        self._registry = registry
        self._codec = codec
        self._worker = worker
        self._allowed = frozenset(allowed)

    def run(self, work: Work, wait: Waits) -> Ended:
        """Runs it here and now; `wait` sees to coroutines. Never raises."""
        started_us = wall_us()
        call = None
        try:
            call = read_call(work.packed)
            result = self._called(call, work)
            if inspect.isawaitable(result):
                result = wait(result)
            packed = self._packed(result, call)
        except BaseException as error:
            return self._failed(work, call, started_us, error)
        return self._ended(work, call.function, started_us, Status.DONE, packed)

    async def run_async(self, work: Work) -> Ended:
        """The same on an event loop; what is no coroutine runs in a thread. CancelledError passes
        through: the attempt is given up."""
        started_us = wall_us()
        call = None
        try:
            call = read_call(work.packed)
            if inspect.iscoroutinefunction(self._function(call.function)):
                result = await self._called(call, work)
            else:
                result = await asyncio.to_thread(self._called, call, work)
            packed = self._packed(result, call)
        except Exception as error:
            return self._failed(work, call, started_us, error)
        return self._ended(work, call.function, started_us, Status.DONE, packed)

    def _called(self, call: TaskCall, work: Work) -> Any:
        function = self._function(call.function)
        parents = list(map(self._parent, call.after, work.parents))
        args, kwargs = self._codec.unpack_call(call.arguments, parents)
        return function(*args, **kwargs)

    def _parent(self, task: bytes, packed: bytes) -> Any:
        """The result of a task that this one depends on; if that has none, and this one is run
        nevertheless, the error that says so."""
        if not packed:
            raise TaskError(
                f"task {shown(task)}, on which this one depends, has no outcome any more",
                advice="Keep it for longer than tasks that depend on it may have to wait.",
            )
        outcome = read_outcome(packed)
        return error_of(task, outcome) or self._codec.unpack(outcome.result)

    def _packed(self, result: Any, call: TaskCall) -> bytes:
        packed = self._codec.pack(result)
        limit = MAX_KEPT_BYTES if call.keep_ms else MAX_RESULT_BYTES
        if len(packed) > limit:
            raise SerialisationError(
                f"a result of {len(packed):,} bytes; the limit is {limit:,}",
                advice="Write it to a file or a queue, and return where it is."
                + (f" With keep=0, the limit is {MAX_RESULT_BYTES:,}." if call.keep_ms else ""),
            )
        return packed

    def _function(self, name: str) -> Callable[..., Any]:
        declared = self._registry.find(name)
        if declared is not None:
            return declared.function
        found = loaded(name) if package_of(name) in self._allowed else None
        # What the package has only imported from elsewhere is not its function.
        if not inspect.isfunction(found) or package_of(found.__module__) not in self._allowed:
            raise UnknownFunctionError(f"this worker has no task {name!r}")
        return found

    def _failed(
        self, work: Work, call: TaskCall | None, started_us: int, error: BaseException
    ) -> Ended:
        function = "" if call is None else call.function
        failure = Failure.of(error, _traceback_of(error))
        return self._ended(work, function, started_us, Status.FAILED, encode(failure))

    def _ended(
        self, work: Work, function: str, started_us: int, status: Status, result: bytes
    ) -> Ended:
        ended_us = wall_us()
        outcome = TaskOutcome(
            status, result, work.attempt, self._worker, work.popped_us, started_us, ended_us,
            function,
        )  # fmt: skip
        return Ended(work.number, status, encode(outcome), max(ended_us - started_us, 0))


def runner_of(setup: Setup) -> Runner:
    """A runner for the tasks that this process has declared."""
    codec = Codec(trusted=registry.has_package, pickle_key=setup.pickle_key)
    return Runner(registry, codec, setup.worker, setup.allowed)


def rates_of(registry: Registry) -> dict[str, tuple[float, float]]:
    """Functions with a rate: starts, and in how many seconds."""
    declared = [registry.find(name) for name in registry.names()]
    return {
        each.name: (each.options.rate.starts, each.options.rate.seconds)
        for each in declared
        if each is not None and each.options.rate is not None
    }


def _traceback_of(error: BaseException) -> str:
    """Where the function raised, without our own part of the way there."""
    if isinstance(error, PenstockError):
        return ""
    inner = frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            inner = frame.tb_next
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, inner))
    return text if len(text) <= MAX_TRACEBACK else f"…{text[-MAX_TRACEBACK:]}"
