"""Executors inside the puller's own process: threads, and coroutines on a loop of their own.

They start at once and share memory, but a function that must not go on cannot be killed: it is
given up. Its thread ends when the function does; what it returns then counts for nothing.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from penstock.errors import UnavailableError
from penstock.tasks.blobs.carrier import MOST_ASKED, Piece
from penstock.tasks.declare import registry
from penstock.tasks.worker.executors import Gone, Heard, work_of
from penstock.tasks.worker.jobs import Ended, Job, Running
from penstock.tasks.worker.loading import is_loaded, load
from penstock.tasks.worker.protocol import Broken, Ready, Results, Returned, Setup, ToPuller, Work
from penstock.tasks.worker.running import OwnLoop, Runner, keep_running, rates_of, runner_of

_loading = threading.Lock()
_loaded: set[str] = set()


def _load_once(modules: Sequence[str]) -> None:
    with _loading:
        for module in modules:
            if module not in _loaded:
                if not is_loaded(module):
                    load(module)
                _loaded.add(module)


class LocalExecutor:
    """What threads and coroutines have in common. Methods are called on the puller's loop, but for
    `_next`, `_report`, `_say` and `_stopped`, which belong to whoever runs the functions."""

    def __init__(self, number: int, heard: Heard, gone: Gone) -> None:
        self.number = number
        self._heard = heard
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Work] = deque()
        self._ended: list[Ended] = []
        self._telling = threading.Lock()
        self._at: Running | None = None
        self._pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()  # of large values
        self._over = False

    async def start(self, setup: Setup) -> None:
        """Begins; what follows is said to `heard` and `gone`."""
        raise NotImplementedError

    def send(self, jobs: Sequence[Job]) -> None:
        """Gives it jobs."""
        self._pending.extend(map(work_of, jobs))
        self._wake()

    def take_back(self, jobs: int) -> None:
        """Asks for so many that are not begun."""
        back: list[int] = []
        while len(back) < jobs:
            try:
                back.append(self._pending.pop().number)
            except IndexError:
                break
        self._loop.call_soon(self._hear, Returned(back))

    def answer(self, piece: Piece) -> None:
        """Gives it what it has asked for."""
        self._pieces.put(piece)

    def running(self) -> Running | None:
        """What it is at, or was last."""
        return self._at

    def kill(self) -> None:
        """Gives it up: nothing that it says counts any more."""
        if not self._over:
            self._end()
            self._loop.call_soon(self._gone, self)

    async def close(self) -> None:
        """Ends it; what it is at, if anything, is given up."""
        self._end()

    def _end(self) -> None:
        self._over = True
        self._wake()
        for _ in range(MOST_ASKED):  # whoever waits for pieces waits in vain
            self._pieces.put(Piece(b"", None, UnavailableError.code, "the attempt is given up"))

    def _wake(self) -> None:
        raise NotImplementedError

    def _prepare(self, setup: Setup) -> Runner | None:
        """Imports what it is told to, and says so; None if that cannot be done."""
        try:
            _load_once(setup.modules)
        except BaseException as error:
            self._say(Broken(f"{type(error).__name__}: {error}"))
            return None
        self._say(Ready(rates_of(registry), registry.names()))
        return runner_of(setup, self._say, self._pieces.get)

    def _next(self) -> Work | None:
        """The next job, which counts as begun; None if there is none."""
        try:
            work = self._pending.popleft()
        except IndexError:
            return None
        self._at = Running(work.number, time.monotonic_ns() // 1000)
        return work

    def _report(self, ended: Ended) -> None:
        with self._telling:
            self._ended.append(ended)
            first = len(self._ended) == 1
        if first:
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._telling:
            ended, self._ended = self._ended, []
        self._hear(Results(ended))

    def _say(self, message: ToPuller) -> None:
        self._loop.call_soon_threadsafe(self._hear, message)

    def _stopped(self) -> None:
        """Nothing is run any more. If nobody has asked for that, it is as good as killed, as long
        as there is anybody who could miss it."""
        if not self._over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.kill)

    def _hear(self, message: ToPuller) -> None:
        if not self._over:
            self._heard(self, message)


class ThreadExecutor(LocalExecutor):
    """A thread. Functions should spend their time waiting, or in code that releases the GIL."""

    def __init__(self, number: int, heard: Heard, gone: Gone) -> None:
        super().__init__(number, heard, gone)
        self._arrived = threading.Event()

    async def start(self, setup: Setup) -> None:
        """Starts the thread; nobody waits for it at the end of the process."""
        name = f"executor-{self.number}"
        threading.Thread(target=self._run, args=[setup], name=name, daemon=True).start()

    def _wake(self) -> None:
        self._arrived.set()

    def _run(self, setup: Setup) -> None:
        own_loop = OwnLoop()
        try:
            runner = self._prepare(setup)
            while runner is not None and not self._over:
                if (work := self._next()) is not None:
                    self._report(runner.run(work, own_loop.wait))
                else:
                    self._arrived.wait()
                    self._arrived.clear()
        finally:
            self._stopped()
            own_loop.close()


class AsyncExecutor(LocalExecutor):
    """A task on an event loop that all of them share, in a thread of its own: a coroutine that
    blocks it holds up the others, but not the puller."""

    _home: asyncio.AbstractEventLoop | None = None

    def __init__(self, number: int, heard: Heard, gone: Gone) -> None:
        super().__init__(number, heard, gone)
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def _shared_loop(cls) -> asyncio.AbstractEventLoop:
        if cls._home is None:
            cls._home = asyncio.new_event_loop()
            run = partial(keep_running, cls._home, lambda: False)
            threading.Thread(target=run, name="coroutines", daemon=True).start()
        return cls._home

    async def start(self, setup: Setup) -> None:
        """Begins on the shared loop."""
        asyncio.run_coroutine_threadsafe(self._run(setup), self._shared_loop())

    def _wake(self) -> None:
        self._shared_loop().call_soon_threadsafe(self._arrived.set)

    def _end(self) -> None:
        super()._end()
        if self._task is not None:
            self._shared_loop().call_soon_threadsafe(self._task.cancel)

    async def _run(self, setup: Setup) -> None:
        self._task = asyncio.current_task()
        try:
            runner = self._prepare(setup)
            while runner is not None and not self._over:
                if (work := self._next()) is not None:
                    self._report(await runner.run_async(work))
                else:
                    await self._arrived.wait()
                    self._arrived.clear()
        finally:
            self._stopped()
