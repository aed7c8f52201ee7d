"""What a task system has to fill in: workers that can be started, and a client of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.folders import ROOT
from benchmarks.install import Needs, python_folder
from benchmarks.system import Peer
from benchmarks.systems.redis_streams import RedisStreams

BUNDLE = 100  # tasks, where the user of a system has to say how many go together
PATIENCE_SECONDS = 300.0  # for results; longer, and something is broken
REDIS_VARIABLE = "PENSTOCK_TASKS_REDIS"  # where workers find the URL of the broker


class TaskClient(ABC):
    """The program of a user: it submits tasks and collects all results, in the order of its calls.

    It is in a process of its own, which has the library of its system, and blocks. Results that do
    not come within PATIENCE_SECONDS raise whatever the library raises.
    """

    def __init__(self, endpoint: str, workers: int, variant: str) -> None:
        self.endpoint = endpoint
        self.workers = workers
        self.variant = variant

    @abstractmethod
    def open(self) -> None:
        """Connects, and starts workers where it is the client that does."""

    @abstractmethod
    def close(self) -> None:
        """Ends all that `open` began; also after an `open` that failed."""

    @abstractmethod
    def nulls(self, numbers: Sequence[int]) -> list[int]:
        """`calls.null` of each, each a task of its own."""

    def bundled(self, numbers: Sequence[int]) -> list[int]:
        """The same in the fastest way that the system has to run many calls."""
        raise NotImplementedError

    @abstractmethod
    def naps(self, seconds: Sequence[float]) -> list[float]:
        """`calls.nap` of each, each a task of its own, submitted at once and in this order."""

    @abstractmethod
    def one(self, number: int) -> int:
        """A single `calls.null`: there and back."""


class TaskSystem(Peer):
    """A task system with its settings."""

    bundles: ClassVar[bool] = False  # its clients know `bundled`

    @abstractmethod
    def start(self, workers: int) -> None:
        """Starts so many workers, and what they need; nothing where the client starts them."""

    def environment(self) -> dict[str, str]:
        """For processes that have its library, and no other system's."""
        return {"PYTHONPATH": f"{ROOT}:{python_folder(self.module)}"}


class ByRedis(TaskSystem):
    """One whose broker and result store is Redis."""

    @property
    def durable(self) -> str:
        return "handed to the kernel, synced once a second"

    def __init__(self, name: str, variant: str) -> None:
        super().__init__(name, variant)
        self._redis = RedisStreams(name, "everysec")

    def installs(self) -> dict[str, Needs]:
        broker = Needs(debian=RedisStreams.needs.debian)
        return {RedisStreams.module: broker, self.module: self.needs}

    def start_redis(self) -> tuple[Path, dict[str, str]]:
        """A folder for logs, and the environment of workers, who find the broker by it."""
        self._redis.start()
        folder, _ = self._redis.place(fresh=False)
        self.endpoint = f"redis://127.0.0.1:{self._redis.endpoint}/0"
        return folder, {**self.environment(), REDIS_VARIABLE: self.endpoint}

    def version(self) -> str:
        return self._redis.version()

    def stop(self) -> None:
        super().stop()
        self._redis.stop()
