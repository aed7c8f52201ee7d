"""The fabric inside the caller's process: the same engine, without a server.

Calls run the engine in the caller's own thread and write to the disk there, so that a push costs no
wake-up of another thread. A thread in the background only keeps time (leases, delays) and cleans.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from penstock.client.aio import Connecting, Reached
from penstock.client.aio_wire import Wire
from penstock.client.blocking import Fabric, fabric_over
from penstock.engine.engine import Engine
from penstock.errors import ClosedError, StorageError, UnavailableError
from penstock.node.clock import Clock
from penstock.node.files import FileDisk
from penstock.node.node import LocalNode, open_directory
from penstock.store.disk import Disk, DiskError
from penstock.wire.buffers import Buffer

KEEPER_SECONDS = 0.05  # how often the background looks for work at least


class Inline:
    """Runs an engine in whatever thread calls, one at a time.

    An exception in the middle of it (Ctrl-C in the caller's thread, or a defect) leaves the engine
    half-way: it is not used any more, and every call ends with ClosedError. What was acknowledged
    is on the disk. The same for a process that was forked: two would write to one journal.
    """

    def __init__(self, engine: Engine, disk: Disk, clock: Clock) -> None:
        self.engine = engine
        self.disk = disk
        self.clock = clock
        self.changed = threading.Condition()
        self.inboxes: dict[int, deque[bytearray]] = {}
        self._listeners: dict[int, Callable[[], None]] = {}
        self._last = 0
        self._closed = False
        self._broken: BaseException | None = None
        self._process = os.getpid()
        self._keeper = threading.Thread(target=self._keep, name="penstock-keeper", daemon=True)
        self._keeper.start()

    @property
    def closed(self) -> bool:
        """Whether the engine may not be used any more."""
        return self._closed or self._broken is not None

    def check(self) -> None:
        """ClosedError if the engine may not be used (any more), here or at all."""
        if self._broken is not None:
            raise ClosedError(
                f"this fabric was interrupted in the middle of its work ({self._broken!r})",
                advice="Close it and open the directory again; what was acknowledged is there.",
            )
        if self._closed:
            raise ClosedError("this fabric is closed")

    def check_process(self) -> None:
        """ClosedError in a process that was forked. Call it before the lock is taken: it may have
        been held when the process was forked, and then it is for ever."""
        if os.getpid() != self._process:
            raise ClosedError(
                "this fabric was opened before the process was forked",
                advice="Open it after the fork, or start a node and connect to it.",
            )

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is done in it is done to the end, or the engine is never used again."""
        try:
            yield
        except BaseException as error:
            self._broken = error
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        """Ends all connections; the caller holds the lock."""
        self.inboxes.clear()
        for listener in self._listeners.values():
            listener()
        self._listeners.clear()
        self.changed.notify_all()

    def connect(self, listener: Callable[[], None] | None = None) -> int:
        """A number for a new connection. `listener` is called, in any thread and under the lock,
        when there is something in its inbox, and when the engine may not be used any more."""
        self.check_process()
        with self.changed:
            self.check()
            self._last += 1
            self.inboxes[self._last] = deque()
            if listener is not None:
                self._listeners[self._last] = listener
            return self._last

    def disconnect(self, connection: int) -> None:
        """A connection is over."""
        if os.getpid() != self._process:
            return
        with self.changed:
            self._listeners.pop(connection, None)
            if self.inboxes.pop(connection, None) is not None:
                self.engine.disconnect(connection)
                self.changed.notify_all()

    def receive(self, connection: int, frames: list[bytearray]) -> None:
        """Frames of a connection; their answers are in its inbox when they can be."""
        self.check_process()
        with self.changed:
            self.check()
            with self._whole():
                for frame in frames:
                    self.engine.receive(connection, frame, self.clock.now_us())
                self.run()

    def run(self) -> None:
        """Does what there is to do; the caller holds the lock."""
        engine = self.engine
        self._write()
        while engine.jobs:
            job = engine.jobs.popleft()
            job.run()
            engine.end_job(job)
            if not engine.jobs:  # what was read may have been written anew
                self._write()
        self._deliver()

    def _write(self) -> None:
        engine = self.engine
        while True:
            engine.tick(self.clock.now_us())
            flush = engine.next_flush(self.clock.now_us())
            if flush is None:
                break
            try:
                flush.run()
            except DiskError as error:
                engine.end_flush(flush, error, self.clock.now_us())
            else:
                engine.end_flush(flush, None, self.clock.now_us())

    def _deliver(self) -> None:
        outputs = self.engine.take_outputs()
        for output in outputs:
            inbox = self.inboxes.get(output.connection)
            if inbox is not None and output.parts:
                inbox.append(bytearray().join(output.parts))
                if (listener := self._listeners.get(output.connection)) is not None:
                    listener()
        if outputs:
            self.changed.notify_all()

    def _keep(self) -> None:
        while True:
            with self.changed:
                if self.closed:
                    return
                due_us = self.engine.next_due()
                wait = KEEPER_SECONDS
                if due_us is not None:
                    wait = min(max((due_us - self.clock.now_us()) / 1e6, 0.001), wait)
                self.changed.wait(wait)
                if self.closed:
                    return
                with self._whole():
                    self.run()
                    self.maintain()

    def maintain(self) -> None:
        """Does a piece of maintenance, if there is any; the caller holds the lock."""
        step = self.engine.maintenance.next_step(self.clock.now_us())
        if step is None:
            return
        try:
            step.run()
        except DiskError as error:
            self.engine.maintenance.end_step(error, self.clock.now_us())
        else:
            self.engine.maintenance.end_step(None, self.clock.now_us())

    def close(self) -> None:
        """Writes everything, takes a checkpoint, and lets the data directory go."""
        if os.getpid() != self._process:
            return
        with self.changed:
            if self._closed:
                return
            try:
                if self._broken is None:
                    self._checkpoint()
            finally:
                self._closed = True
                self._hang_up()
        self._keeper.join()
        if isinstance(self.disk, FileDisk):
            self.disk.close()

    def _checkpoint(self) -> None:
        maintenance = self.engine.maintenance
        before = maintenance.progress
        maintenance.want_checkpoint()
        while not maintenance.is_over(before):
            if self.engine.journal.stopped is not None:
                break
            self.run()
            self.maintain()
        self.run()


def _frames(parts: Sequence[Buffer]) -> list[bytearray]:
    frames: list[bytearray] = []
    data = memoryview(bytearray().join(parts))
    while data:
        length = int.from_bytes(data[:4], "little")
        frames.append(bytearray(data[:length]))
        data = data[length:]
    return frames


class InlineTransport:
    """A client's connection to an engine in the same process."""

    def __init__(self, inline: Inline) -> None:
        self._inline = inline
        self._number = inline.connect()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Hands frames to the engine; what they wrote is on the disk when this returns."""
        self._inline.receive(self._number, _frames(parts))

    def receive(self, timeout: float | None, owed: bool = True) -> list[bytearray]:
        """Answers that are there, or the first that comes in time."""
        inline = self._inline
        inline.check_process()
        with inline.changed:
            inbox = inline.inboxes.get(self._number)
            if inbox is None:
                inline.check()
                raise UnavailableError("this connection is closed")
            if not inbox and (timeout is None or timeout > 0):
                inline.changed.wait(timeout)
            frames = list(inbox)
            inbox.clear()
            return frames

    def close(self) -> None:
        """Ends the connection."""
        self._inline.disconnect(self._number)


class InlineLoopTransport(asyncio.Transport):
    """The same for a wire of the asyncio shell. The engine runs in the thread of the event loop
    when something is sent; answers may come from any thread."""

    def __init__(self, inline: Inline, wire: Wire) -> None:
        super().__init__()
        self._inline = inline
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._number = inline.connect(self._wake)
        self._ended = False
        wire.attach(self)

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._receive)

    def _receive(self) -> None:
        inline = self._inline
        with inline.changed:
            inbox = inline.inboxes.get(self._number)
            frames = [] if inbox is None else list(inbox)
            if inbox is not None:
                inbox.clear()
        if frames and not self._ended:
            self._wire.deliver(frames)
        if inbox is None:
            self._end(ConnectionResetError("the fabric is closed"))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Hands frames to the engine; what they wrote is on the disk when this returns."""
        if self._ended:
            return
        try:
            self._inline.receive(self._number, _frames(list(list_of_data)))
        except ClosedError as error:
            self._end(ConnectionResetError(error.message))

    def close(self) -> None:
        """Ends the connection."""
        self._inline.disconnect(self._number)
        self._end(None)

    def abort(self) -> None:
        """The same."""
        self.close()

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self._loop.call_soon(self._wire.connection_lost, error)


def embed(inline: Inline, timeout: float, namespace: str) -> Fabric:
    """A blocking fabric over an engine in this process; closing it closes the engine."""

    async def dial(wire: Wire) -> None:
        InlineLoopTransport(inline, wire)

    async def leave() -> None:
        """The engine is the blocking fabric's."""

    async def reach() -> Reached:
        return Reached(dial, leave)

    def asynchronous() -> Connecting:
        return Connecting(reach, timeout, namespace, "embedded")

    return fabric_over(
        lambda _: InlineTransport(inline), timeout, namespace, "embedded", inline.close,
        asynchronous,
    )  # fmt: skip


def open_async(path: str, timeout: float = 30.0, namespace: str = "default") -> Connecting:
    """As `open_fabric`, for asyncio: await it, or use it with `async with`.

    The engine runs on the running event loop; only the disk is waited for in threads.
    """

    async def reach() -> Reached:
        # Recovery reads the journal, which may take seconds: other tasks go on meanwhile.
        clock = Clock()
        loop = asyncio.get_running_loop()
        disk, engine = await loop.run_in_executor(None, _opened, path, clock)
        local = LocalNode(disk, engine, clock)

        async def dial(wire: Wire) -> None:
            await local.connect(lambda: wire)

        return Reached(dial, local.close)

    return Connecting(reach, timeout, namespace, "embedded")


def open_fabric(path: str, timeout: float = 30.0, namespace: str = "default") -> Fabric:
    """Opens a data directory inside this process; it is made if missing.

    The directory belongs to this process until the fabric is closed. InUseError if another has it,
    StorageError if the disk refuses it.
    """
    clock = Clock()
    disk, engine = _opened(path, clock)
    return embed(Inline(engine, disk, clock), timeout, namespace)


def _opened(path: str, clock: Clock) -> tuple[FileDisk, Engine]:
    try:
        return open_directory(path, clock)
    except DiskError as error:
        advice = "Give a folder that this program may write to; it is made if it is missing."
        raise StorageError(str(error), advice=advice) from error
