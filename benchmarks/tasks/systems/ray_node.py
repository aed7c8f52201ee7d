"""Ray on one node: remote functions, results in its object store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.install import Needs
from benchmarks.tasks import calls
from benchmarks.tasks.system import PATIENCE_SECONDS, TaskClient, TaskSystem

_OBJECT_STORE_BYTES = 1 << 30


class RayNode(TaskSystem):
    """The client starts and ends it."""

    module = "ray_node"
    needs = Needs(python=("ray>=2.40,<3",))
    library = "ray"

    @property
    def durable(self) -> str:
        return "in memory of the client"

    @property
    def settings(self) -> str:
        return "one node, num_cpus = workers, no dashboard"

    def start(self, workers: int) -> None:
        return None

    def version(self) -> str:
        return self.client_version()


class RayClient(TaskClient):
    """`remote` and `get`."""

    _ray: Any = None

    def open(self) -> None:
        import ray

        ray.init(
            num_cpus=self.workers, include_dashboard=False, logging_level=logging.ERROR,
            log_to_driver=False, _node_ip_address="127.0.0.1",
            object_store_memory=_OBJECT_STORE_BYTES,
        )  # fmt: skip
        self._null = ray.remote(num_cpus=1)(calls.null)
        self._nap = ray.remote(num_cpus=1)(calls.nap)
        self._ray = ray

    def close(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        return self._all([self._null.remote(number) for number in numbers])

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return self._all([self._nap.remote(length) for length in seconds])

    def _all(self, sent: list[Any]) -> list[Any]:
        return list(self._ray.get(sent, timeout=PATIENCE_SECONDS))

    def one(self, number: int) -> int:
        [result] = self._all([self._null.remote(number)])
        return int(result)


SYSTEM = RayNode
CLIENT = RayClient
