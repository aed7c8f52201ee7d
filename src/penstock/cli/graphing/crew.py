"""Workers that are killed and replaced, all the time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from penstock.cli.benchmarks.processes import Child
from penstock.cli.graphing import ledger
from penstock.cli.graphing.check import Kill
from penstock.errors import UnavailableError

KINDS = ("process", "thread")  # by turns
MISSING = 1  # workers that may be on their way when another is killed
START_SECONDS = 300.0  # on a machine that has much else to do
END_SECONDS = 60.0
EXECUTOR_SHARE = 0.25  # of the kills of a worker whose executors are processes: of one of them
LOOK_SECONDS = 0.05


class Worker(Child):
    """`penstock worker`, which is ready when this is made. It is known by its number."""

    def __init__(self, number: int, kind: str, folder: Path, arguments: tuple[str, ...]) -> None:
        self.number, self.kind = number, kind
        own = (f"{ledger.FOLDER}={folder / 'runs'}", f"{ledger.WORKER}={number}")
        super().__init__(
            "penstock.cli.app", "worker", "penstock.cli.graphing.functions", "--kind", kind,
            *arguments, log=folder / "workers.log", patience=START_SECONDS,
            inside=("env", *own), aside=True,
        )  # fmt: skip

    def executors(self) -> list[int]:
        """The ids of its processes, if that is what executors are."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(each) for each in children.split()]


class Crew:
    """So many workers. One that was killed is replaced by another, with the next number."""

    def __init__(
        self, folder: Path, count: int, arguments: tuple[str, ...], chance: random.Random
    ) -> None:
        self._folder, self._count, self._arguments = folder, count, arguments
        self._chance = chance
        self._lock = threading.Lock()
        self._starter = ThreadPoolExecutor(count)
        self._started = 0
        self._closed = False
        self.ready: list[Worker] = []
        self.kills: list[Kill] = []
        self.trouble: list[str] = []
        for _ in range(count):
            self._starter.submit(self._start)

    def _start(self) -> None:
        with self._lock:
            self._started += 1
            number = self._started
        try:
            kind = KINDS[number % len(KINDS)]
            worker = Worker(number, kind, self._folder, self._arguments)
        except Exception as error:
            self.trouble.append(f"worker {number} did not start: {error}")
            return
        with self._lock:
            self.ready.append(worker)
            if self._closed:
                worker.kill()

    @property
    def started(self) -> int:
        """How many there were so far."""
        return self._started

    def wait_until_ready(self) -> None:
        """Returns when all are there; UnavailableError if one cannot be started."""
        while len(self.ready) < self._count:
            if self.trouble:
                raise UnavailableError(self.trouble[0])
            time.sleep(LOOK_SECONDS)

    def kill_one(self) -> bool:
        """Kills a worker that is ready, or one of its executors; whether it did."""
        with self._lock:
            if len(self.ready) < self._count - MISSING:
                return False
            worker = self._chance.choice(self.ready)
            executors = worker.executors() if worker.kind == KINDS[0] else []
            if executors and self._chance.random() < EXECUTOR_SHARE:
                chosen = self._chance.choice(executors)
                self.kills.append(Kill(worker.number, chosen, time.monotonic_ns()))
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(chosen, signal.SIGKILL)
                return True
            self.ready.remove(worker)
        if not worker.running:
            self.trouble.append(f"worker {worker.number} ended by itself; see workers.log")
        self.kills.append(Kill(worker.number, 0, time.monotonic_ns()))
        worker.kill()
        self._starter.submit(self._start)
        return True

    def kill_until(self, over: Callable[[], bool], seconds: float, most: int = 0) -> None:
        """Kills one after the other, about so many seconds apart, until something holds. `most`: so
        many, if it is not 0, and then it only waits."""
        next_s = time.monotonic()
        while not over():
            enough = most and len(self.kills) >= most
            if not enough and time.monotonic() >= next_s and self.kill_one():
                next_s = time.monotonic() + seconds * self._chance.uniform(0.5, 1.5)
            time.sleep(LOOK_SECONDS)

    def leave(self) -> None:
        """Asks all to end, and waits until they have: nothing of theirs is under way then."""
        self._starter.shutdown()
        for worker in self.ready:
            worker.send(signal.SIGTERM)
        for worker in self.ready:
            if worker.wait(END_SECONDS) != 0:
                self.trouble.append(f"worker {worker.number} did not end in order")

    def close(self) -> None:
        """Ends whoever is left."""
        self._closed = True
        self._starter.shutdown(cancel_futures=True)
        for worker in self.ready:
            worker.kill()
