"""Dask distributed: a scheduler and workers, in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.folders import fresh_folder
from benchmarks.install import Needs
from benchmarks.servers import Server, free_port
from benchmarks.tasks.calls import nap, null
from benchmarks.tasks.system import PATIENCE_SECONDS, TaskClient, TaskSystem


class DaskCluster(TaskSystem):
    """Workers of one thread each; no dashboard."""

    module = "dask_cluster"
    needs = Needs(python=("distributed>=2025.1",))
    library = "distributed"

    @property
    def durable(self) -> str:
        return "in memory of the scheduler"

    @property
    def settings(self) -> str:
        return "scheduler and workers of one thread in processes of their own, no dashboard"

    def start(self, workers: int) -> None:
        folder, port = fresh_folder(self.name), free_port()
        self.endpoint = f"tcp://127.0.0.1:{port}"
        argv = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
        argv += ["--host", "127.0.0.1", "--port", str(port)]
        scheduler = Server(argv, folder / "scheduler.log", env=self.environment())
        self.servers.append(scheduler)
        scheduler.await_port(port)
        argv = [sys.executable, "-m", "distributed.cli.dask_worker", self.endpoint]
        argv += ["--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
        argv += ["--host", "127.0.0.1", "--local-directory", str(folder)]
        self.servers.append(Server(argv, folder / "workers.log", env=self.environment()))

    def version(self) -> str:
        return self.client_version()


class DaskClient(TaskClient):
    """`map` and `gather`; nothing is taken for the same call as another."""

    _client: Any = None

    def open(self) -> None:
        from distributed import Client

        self._client = Client(self.endpoint, timeout=PATIENCE_SECONDS)
        self._client.wait_for_workers(self.workers, timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        return self._all(null, numbers)

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return self._all(nap, seconds)

    def _all(self, function: Any, arguments: Sequence[Any]) -> list[Any]:
        futures = self._client.map(function, arguments, pure=False)
        return list(self._client.gather(futures))

    def one(self, number: int) -> int:
        return int(self._client.submit(null, number, pure=False).result(PATIENCE_SECONDS))


SYSTEM = DaskCluster
CLIENT = DaskClient
