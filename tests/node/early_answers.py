"""What tests of early answers share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.node import early
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node, run_loop
from penstock.node.syncing import Syncing
from penstock.node.worker import Report, Then
from penstock.store.disk import DiskError

WAIT_S = 30.0
compiled = pytest.mark.skipif(not early.COMPILED, reason="the compiled sending was not built")


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the loop of a node, and not for ever."""
    run_loop(asyncio.wait_for(main, WAIT_S))


def _by_the_worker(
    self: Syncing, disk: FileDisk, name: str, report: Report, then: Then
) -> None:  # one in C cannot be stopped
    self._worker.submit(lambda: disk.sync(name), report, then)


class Gate:
    """Syncs stop at it, and writes may be refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write = FileDisk.write
        self.syncing, self.go_on, self.refusing = (threading.Event() for _ in range(3))
        self.before_refusal: list[threading.Event] = []

        def slowly(sync: Callable[..., None], *given: Any) -> None:
            self.syncing.set()
            assert self.go_on.wait(WAIT_S)
            sync(*given)

        def refused(disk: FileDisk, *rest: Any) -> None:
            if self.refusing.is_set():
                for event in self.before_refusal:
                    self.go_on.set()
                    assert event.wait(WAIT_S)
                raise DiskError("no room", full=True)
            write(disk, *rest)

        for name in ("sync", "write_synced"):
            sync = getattr(FileDisk, name)
            monkeypatch.setattr(FileDisk, name, lambda *given, s=sync: slowly(s, *given))
        monkeypatch.setattr(FileDisk, "write", refused)
        monkeypatch.setattr(Syncing, "begin", _by_the_worker)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.syncing.wait, WAIT_S)


@asynccontextmanager
async def two_clients(path: Path) -> AsyncIterator[tuple[aio.AsyncFabric, aio.AsyncFabric]]:
    async with (
        Node(Config(str(path), port=0)) as node,
        aio.connect(node.url) as one,
        aio.connect(node.url) as other,
    ):
        yield one, other
        assert (await one.stats())["connections"] == 2
        assert (one._connection._connects, other._connection._connects) == (1, 1), "one was cut"
