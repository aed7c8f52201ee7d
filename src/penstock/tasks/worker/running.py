"""Running one task: from the packed call to the packed outcome. Used by every kind of executor."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.tasks.blobs.blob import INLINE_BYTES, MARGIN_S, Blob
from penstock.tasks.blobs.carrier import Carrier, Piece, PieceRequest
from penstock.tasks.blobs.files import Directory
from penstock.tasks.codec import Codec, pack_blob
from penstock.tasks.declare import Registry, registry
from penstock.tasks.envelope import (
    MAX_PARENTS_TOLD,
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    read_call,
    read_outcome,
    settled_of,
)
from penstock.tasks.errors import TaskError, UnknownFunctionError
from penstock.tasks.importing import is_typed, loaded, package_of
from penstock.tasks.names import NOBODY, REPLY_RETENTION_S, shown
from penstock.tasks.waiting import error_of
from penstock.tasks.worker.jobs import Ended
from penstock.tasks.worker.protocol import Setup, Work

TYPED_ADVICE = (
    "It was typed at the prompt of another process: submit it to a task set that only the workers "
    "of that process serve."
)
MAX_TRACEBACK = 32_000  # characters that are told of one

_UNREAD = TaskCall("", b"", b"")  # instead of a call that cannot be read

Waits = Callable[[Awaitable[Any]], Any]
Arguments = tuple[list[Any], dict[str, Any]]
Packed = tuple[bytes, list[Blob]]


def wall_us() -> int:
    """The time that outcomes tell."""
    return time.time_ns() // 1000


class Upshot(NamedTuple):
    """What came of the code of strangers. Futures and event loops pass on any value, but not any
    error: a loop that gets SystemExit stops, a future that gets StopIteration never ends."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], *args: Any) -> Upshot:
        """Of a call."""
        try:
            return cls(function(*args))
        except BaseException as error:
            return cls(error=error)

    @classmethod
    async def awaited(cls, result: Awaitable[Any]) -> Upshot:
        """Of a coroutine. This should be a task of its own: whoever cancels that, also the
        coroutine itself, cancels nothing else."""
        try:
            return cls(await result)
        except BaseException as error:
            return cls(error=error)

    def told(self) -> Any:
        """The value; an error is raised."""
        if self.error is not None:
            raise self.error
        return self.value


def keep_running(loop: asyncio.AbstractEventLoop, over: Callable[[], bool]) -> None:
    """Runs an event loop until then. Tasks that functions have made there may let SystemExit out,
    which whoever awaits them hears of, or stop the loop: others are not to suffer for that."""
    while not over():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


class OwnLoop:
    """Awaits what functions return, for a thread that has no event loop; made when first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait(self, result: Awaitable[Any]) -> Any:
        """What comes of it; tasks that it leaves behind go on with the next one."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        task = loop.create_task(Upshot.awaited(result))
        task.add_done_callback(lambda _: loop.stop())
        keep_running(loop, task.done)
        return task.result().told()

    def close(self) -> None:
        """Ends it."""
        if self._loop is not None:
            self._loop.close()


class Runner:
    """Finds functions, reads arguments, and packs what comes of them."""

    def __init__(
        self,
        registry: Registry,
        codec: Codec,
        worker: str,
        allowed: Collection[str],
        carrier: Carrier,
    ) -> None:
        """`allowed`: top-level packages whose functions need not be declared as tasks. `carrier`:
        for values that are too large for a message."""
        self._registry = registry
        self._codec = codec
        self._worker = worker
        self._allowed = frozenset(allowed)
        self._carrier = carrier

    def run(self, work: Work, wait: Waits) -> Ended:
        """Runs it here and now; `wait` sees to coroutines. Never raises."""
        started_us = wall_us()
        call = None
        try:
            call = read_call(work.packed)
            self._function(call.function)  # first: its arguments may be known elsewhere only, too
            result = self._called(call, self._arguments(call, work))
            if inspect.isawaitable(result):
                result = wait(result)
            raw = self._codec.pack(result)
            packed = (raw, []) if len(raw) <= self._inline_bytes() else self._stored(raw, call)
        except BaseException as error:
            return self._failed(work, call, started_us, error)
        return self._ended(work, call, started_us, Status.DONE, packed)

    async def run_async(self, work: Work) -> Ended:
        """The same on an event loop; what is no coroutine runs in a thread, and so does what may
        have to wait for large values. Raises CancelledError only if whoever awaits this is
        cancelled: the attempt is given up."""
        started_us = wall_us()
        call = None
        try:
            call = read_call(work.packed)
            function = self._function(call.function)  # as above
            if call.large is None and not work.parents:
                arguments = self._arguments(call, work)
            else:
                upshot = await asyncio.to_thread(Upshot.of, self._arguments, call, work)
                arguments = upshot.told()
            if inspect.iscoroutinefunction(function):
                running = Upshot.awaited(self._called(call, arguments))
                upshot = await asyncio.get_running_loop().create_task(running)
            else:
                upshot = await asyncio.to_thread(Upshot.of, self._called, call, arguments)
            raw = self._codec.pack(upshot.told())
            packed: Packed = raw, []
            if len(raw) > self._inline_bytes():
                packed = await asyncio.to_thread(self._stored, raw, call)
        except BaseException as error:
            if _is_given_up(error):
                raise
            return self._failed(work, call, started_us, error)
        return self._ended(work, call, started_us, Status.DONE, packed)

    def _arguments(self, call: TaskCall, work: Work) -> Arguments:
        parents = list(map(self._parent, call.after, work.parents)) if call.after else []
        packed = call.arguments if call.large is None else self._carrier.read(call.large)
        return self._codec.unpack_call(packed, parents)

    def _called(self, call: TaskCall, arguments: Arguments) -> Any:
        args, kwargs = arguments
        return self._function(call.function)(*args, **kwargs)

    def _parent(self, task: bytes, packed: bytes) -> Any:
        """The result of a task that this one depends on; if that has none, and this one is run
        nevertheless, the error that says so."""
        if not packed:
            raise TaskError(
                f"task {shown(task)}, on which this one depends, has no outcome any more",
                advice="Keep it for longer than tasks that depend on it may have to wait.",
            )
        outcome = read_outcome(packed)
        if (error := error_of(task, outcome)) is not None:
            return error
        return self._codec.unpack(outcome.result, list(map(self._carrier.read, outcome.blobs)))

    def _stored(self, packed: bytes, call: TaskCall) -> Packed:
        """Stores a large result; what stands for it in the outcome."""
        if call.reply == NOBODY and not call.keep_ms:
            return self._codec.pack(None), []  # there is nobody who could read it
        told_s = 0.0 if call.reply == NOBODY else REPLY_RETENTION_S
        keep_s = max(call.keep_ms / 1000, told_s) + MARGIN_S
        blob = self._carrier.write(call.task, packed, keep_s, once=not call.keep_ms)
        return pack_blob(0), [blob]

    def _inline_bytes(self) -> int:
        """What a result may have to stand in the outcome itself."""
        return INLINE_BYTES

    def _function(self, name: str) -> Callable[..., Any]:
        declared = self._registry.find(name)
        if declared is not None:
            return declared.function
        found = loaded(name) if package_of(name) in self._allowed else None
        # What the package has only imported from elsewhere is not its function.
        if not inspect.isfunction(found) or package_of(found.__module__) not in self._allowed:
            typed = TYPED_ADVICE if is_typed(name) else None
            raise UnknownFunctionError(f"this worker has no task {name!r}", advice=typed)
        return found

    def _failed(
        self, work: Work, call: TaskCall | None, started_us: int, error: BaseException
    ) -> Ended:
        failure = Failure.of(error, _traceback_of(error))
        return self._ended(work, call or _UNREAD, started_us, Status.FAILED, (encode(failure), []))

    def _ended(
        self, work: Work, call: TaskCall, started_us: int, status: Status, packed: Packed
    ) -> Ended:
        ended_us, ready_us = wall_us(), 0
        if call.after:
            ready_us = max(map(settled_of, work.parents), default=0)
        elif call.delay_ms:
            ready_us = call.submitted_us + call.delay_ms * 1000
        outcome = TaskOutcome(
            status, packed[0], work.attempt, self._worker, work.popped_us, started_us, ended_us,
            call.function, packed[1], call.submitted_us, ready_us, call.after[:MAX_PARENTS_TOLD],
            ended_us,
        )  # fmt: skip
        waited_us = max(started_us - (ready_us or call.submitted_us), 0)
        took_us = max(ended_us - started_us, 0)
        return Ended(work.number, status, encode(outcome), took_us, waited_us)


def runner_of(
    setup: Setup, ask: Callable[[PieceRequest], None], answer: Callable[[], Piece]
) -> Runner:
    """A runner for the tasks that this process has declared; see `Carrier` for `ask`, `answer`."""
    codec = Codec(trusted=registry.has_package, pickle_key=setup.pickle_key)
    carrier = Carrier(ask, answer, Directory(setup.directory) if setup.directory else None)
    return Runner(registry, codec, setup.worker, setup.allowed, carrier)


def rates_of(registry: Registry) -> dict[str, tuple[float, float]]:
    """Functions with a rate: starts, and in how many seconds."""
    declared = [registry.find(name) for name in registry.names()]
    return {
        each.name: (each.options.rate.starts, each.options.rate.seconds)
        for each in declared
        if each is not None and each.options.rate is not None
    }


def _is_given_up(error: BaseException) -> bool:
    """Whether the current task has been told to end. It does not run the function itself, which
    may let out the same error for reasons of its own."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)  # nobody runs its loop any more


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
