"""A node whose own code fails, or whose disk refuses: it ends, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.errors import PenstockError
from penstock.node import node as nodes
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node
from penstock.store.disk import DiskError


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


def test_a_defect_in_a_worker_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(disk: FileDisk, name: str) -> None:
        raise AssertionError("a defect")

    async def push(url: str) -> None:
        async with aio.connect(url, timeout=1) as fabric:
            await fabric.queue("q")

    async def main() -> None:
        pushing: list[asyncio.Task[None]] = []

        def started(node: Node) -> None:
            monkeypatch.setattr(FileDisk, "sync", broken)
            pushing.append(asyncio.ensure_future(push(node.url)))

        with pytest.raises(PenstockError, match="a defect"):
            await nodes.serve(Config(str(tmp_path), port=0), started)
        with pytest.raises(PenstockError):
            await pushing[0]

    run(main())


def test_a_full_disk_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileDisk.write

    def full(disk: FileDisk, name: str, *rest: Any) -> None:
        if name.startswith("t-"):
            raise DiskError("no room", full=True)
        write(disk, name, *rest)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            async with aio.connect(node.url) as fabric:
                await (await fabric.queue("q")).push(b"safe")
            monkeypatch.setattr(FileDisk, "write", full)

    run(main())


def test_a_stopped_node_does_nothing_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            runtime = node._runtime
        runtime.pump()  # a read that ended late
        assert runtime._timer is None or runtime._timer.cancelled()

    run(main())
