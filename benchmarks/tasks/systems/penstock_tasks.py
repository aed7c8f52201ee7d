"""Tasks of Penstock: one node, one worker with its executor processes, the blocking client."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.servers import Server
from benchmarks.systems.penstock_node import PenstockNode
from benchmarks.tasks.system import PATIENCE_SECONDS, TaskClient, TaskSystem
from penstock import Fabric, connect
from penstock.tasks.app import TaskApp

TASK_SET = "bench"
_APP = "benchmarks.tasks.systems.penstock_app"


class PenstockTasks(TaskSystem):
    """Node and worker as they come; durability is a setting of the task set."""

    module = "penstock_tasks"
    bundles = True

    def __init__(self, name: str, variant: str) -> None:
        super().__init__(name, variant)
        self._node = PenstockNode(name, variant)

    @property
    def durable(self) -> str:
        return self._node.durable

    @property
    def settings(self) -> str:
        return f"one node, one worker, durability {self.variant}; bundled: map as it comes"

    def start(self, workers: int) -> None:
        self._node.start()
        self.endpoint = self._node.endpoint
        with connect(self.endpoint) as fabric:  # whoever comes first says how durable tasks are
            fabric.tasks(TASK_SET, durability=self.variant).close()
        folder, _ = self._node.place(fresh=False)
        program = Path(sys.executable).with_name("penstock")
        argv = [str(program), "worker", _APP, "--tasks", TASK_SET]
        argv += ["--concurrency", str(workers), "--url", self.endpoint]
        self.servers.append(Server(argv, folder / "worker.log", env=self.environment()))

    def version(self) -> str:
        return self._node.version()

    def client_version(self) -> str:
        return self.version()

    def stop(self) -> None:
        super().stop()
        self._node.stop()


class PenstockClient(TaskClient):
    """`submit` for single calls, whose results are kept for an hour; `map` for many."""

    _fabric: Fabric | None = None
    _app: TaskApp

    def open(self) -> None:
        from benchmarks.tasks.systems import penstock_app

        self._tasks = penstock_app
        self._fabric = connect(self.endpoint)
        self._app = self._fabric.tasks(TASK_SET, durability=self.variant)

    def close(self) -> None:
        if self._fabric is not None:
            self._app.close()
            self._fabric.close()

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        futures = [self._app.submit(self._tasks.null, number) for number in numbers]
        return self._app.gather(futures, PATIENCE_SECONDS)

    def bundled(self, numbers: Sequence[int]) -> list[int]:
        return list(self._app.map(self._tasks.null, numbers).results(PATIENCE_SECONDS))

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return list(self._app.map(self._tasks.nap, seconds).results(PATIENCE_SECONDS))

    def one(self, number: int) -> int:
        result: int = self._app.submit(self._tasks.null, number).result(PATIENCE_SECONDS)
        return result


SYSTEM = PenstockTasks
CLIENT = PenstockClient
