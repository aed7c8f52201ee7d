"""Celery with Redis as broker and result backend."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.install import Needs
from benchmarks.servers import Server
from benchmarks.tasks.system import (
    BUNDLE,
    PATIENCE_SECONDS,
    REDIS_VARIABLE,
    ByRedis,
    TaskClient,
)  # fmt: skip

_APP = "benchmarks.tasks.systems.celery_app"


class CeleryRedis(ByRedis):
    """One worker with its pool of processes; what it says to other workers is turned off."""

    module = "celery_redis"
    needs = Needs(python=("celery>=5.5,<6", "redis>=5,<9", "hiredis>=3,<4"))
    library = "celery"
    bundles = True

    @property
    def settings(self) -> str:
        words = "prefork, default prefetch and acks, no gossip, no mingle, no heartbeat;"
        return f"{words} Redis appendfsync everysec; bundled: chunks of {BUNDLE}"

    def start(self, workers: int) -> None:
        folder, environment = self.start_redis()
        argv = [sys.executable, "-m", "celery", "-A", _APP, "worker", "-P", "prefork"]
        argv += ["-c", str(workers), "-l", "WARNING"]
        argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self.servers.append(Server(argv, folder / "worker.log", env=environment))


class CeleryClient(TaskClient):
    """`delay` and `get`; `chunks`, which are one task each, for bundles."""

    _app: Any = None

    def open(self) -> None:
        os.environ[REDIS_VARIABLE] = self.endpoint
        from benchmarks.tasks.systems import celery_app

        self._app = celery_app

    def close(self) -> None:
        return None

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        return _all([self._app.null.delay(number) for number in numbers])

    def bundled(self, numbers: Sequence[int]) -> list[int]:
        sent = self._app.null.chunks(((number,) for number in numbers), BUNDLE).apply_async()
        return [result for chunk in sent.get(timeout=PATIENCE_SECONDS) for result in chunk]

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return _all([self._app.nap.delay(length) for length in seconds])

    def one(self, number: int) -> int:
        result: int = self._app.null.delay(number).get(timeout=PATIENCE_SECONDS)
        return result


def _all(sent: list[Any]) -> list[Any]:
    return [each.get(timeout=PATIENCE_SECONDS) for each in sent]


SYSTEM = CeleryRedis
CLIENT = CeleryClient
