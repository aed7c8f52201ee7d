"""Dramatiq with Redis as broker and result backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.install import Needs
from benchmarks.servers import Server
from benchmarks.tasks.system import PATIENCE_SECONDS, REDIS_VARIABLE, ByRedis, TaskClient

_APP = "benchmarks.tasks.systems.dramatiq_app"


class DramatiqRedis(ByRedis):
    """Processes of one thread each."""

    module = "dramatiq_redis"
    needs = Needs(python=("dramatiq>=2,<3", "redis>=5,<9", "hiredis>=3,<4"))
    library = "dramatiq"

    @property
    def settings(self) -> str:
        return "processes of one thread, results middleware; Redis appendfsync everysec"

    def start(self, workers: int) -> None:
        folder, environment = self.start_redis()
        argv = [sys.executable, "-m", "dramatiq", _APP, "-p", str(workers), "-t", "1"]
        self.servers.append(Server(argv, folder / "worker.log", env=environment))


class DramatiqClient(TaskClient):
    """`send` and `get_result`."""

    _app: Any = None

    def open(self) -> None:
        os.environ[REDIS_VARIABLE] = self.endpoint
        from benchmarks.tasks.systems import dramatiq_app

        self._app = dramatiq_app

    def close(self) -> None:
        return None

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        return _all([self._app.null.send(number) for number in numbers])

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return _all([self._app.nap.send(length) for length in seconds])

    def one(self, number: int) -> int:
        [result] = _all([self._app.null.send(number)])
        return int(result)


def _all(sent: list[Any]) -> list[Any]:
    patience_ms = int(1000 * PATIENCE_SECONDS)
    return [each.get_result(block=True, timeout=patience_ms) for each in sent]


SYSTEM = DramatiqRedis
CLIENT = DramatiqClient
