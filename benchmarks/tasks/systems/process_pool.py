"""concurrent.futures.ProcessPoolExecutor: no broker, no other machine, nothing kept."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from benchmarks.tasks.calls import nap, null
from benchmarks.tasks.system import BUNDLE, PATIENCE_SECONDS, TaskClient, TaskSystem


class ProcessPool(TaskSystem):
    """Processes of the client itself."""

    module = "process_pool"
    bundles = True

    @property
    def durable(self) -> str:
        return "in memory of the client"

    @property
    def settings(self) -> str:
        return f"as it comes; bundled: map with chunksize {BUNDLE}"

    def start(self, workers: int) -> None:
        return None

    def version(self) -> str:
        return f"Python {platform.python_version()}"


class ProcessPoolClient(TaskClient):
    """`submit` for single calls, `map` for bundles."""

    _pool: ProcessPoolExecutor | None = None

    def open(self) -> None:
        self._pool = ProcessPoolExecutor(self.workers)

    @property
    def _opened(self) -> ProcessPoolExecutor:
        assert self._pool is not None
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        futures = [self._opened.submit(null, number) for number in numbers]
        return [future.result(PATIENCE_SECONDS) for future in futures]

    def bundled(self, numbers: Sequence[int]) -> list[int]:
        return list(self._opened.map(null, numbers, timeout=PATIENCE_SECONDS, chunksize=BUNDLE))

    def naps(self, seconds: Sequence[float]) -> list[float]:
        futures = [self._opened.submit(nap, length) for length in seconds]
        return [future.result(PATIENCE_SECONDS) for future in futures]

    def one(self, number: int) -> int:
        return self._opened.submit(null, number).result(PATIENCE_SECONDS)


SYSTEM = ProcessPool
CLIENT = ProcessPoolClient
