"""A node whose own code fails, or whose disk refuses: it ends, and says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.engine import engine as engines
from penstock.errors import PenstockError
from penstock.node import node as nodes
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node
from penstock.store.disk import DiskError
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FRAME, PUSH, Flag, Verb, frame
from penstock.wire.messages import Hello, pack


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


def test_many_connections_cannot_push_more_than_the_journal_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal refused after it was numbered would be missing in the log for ever."""
    go_on = threading.Event()
    monkeypatch.setattr(engines, "BUSY_BYTES", 100_000)
    hello = frame(Verb.HELLO, 1, 0, pack(Hello(1)))
    batch = bytes(encode_batch([b"x" * 40_000], timestamp_us=1))

    def slow_down(name: str) -> None:
        sync = getattr(FileDisk, name)

        def slow(*given: Any) -> None:
            go_on.wait(10)
            sync(*given)

        monkeypatch.setattr(FileDisk, name, slow)

    async def push(node: Node, stream: int) -> int:
        reader, writer = await asyncio.open_connection(*node.address)
        writer.write(hello + frame(Verb.PUSH, 2, 0, PUSH.pack(stream, 0, 0, 0, 0) + batch))
        for _ in range(2):
            length, _, flags, _, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
            await reader.readexactly(length - FRAME.size)
        writer.close()
        return int(flags)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            node.engine.journal._max_pending_bytes = 400_000
            async with aio.connect(node.url) as fabric:
                stream = (await fabric.queue("q")).info.id
            slow_down("sync")
            slow_down("write_synced")
            pushes = [asyncio.ensure_future(push(node, stream)) for _ in range(30)]
            while len(node._server.paused) < 20:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.001)
            go_on.set()
            assert await asyncio.gather(*pushes) == [Flag.RESPONSE] * 30
        async with Node(Config(str(tmp_path), port=0)) as node:  # nothing is missing
            assert node.engine.fabric.kernel.streams[stream].totals.messages == 30

    run(main())


def test_what_the_journal_does_not_take_ends_the_node(tmp_path: Path) -> None:
    """Not the request alone: what came after it would be acknowledged, and not be there."""
    batch = bytes(encode_batch([b"x"], timestamp_us=1))

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            async with aio.connect(node.url) as fabric:
                stream = (await fabric.queue("q")).info.id
            node.engine.journal._max_pending_bytes = 1  # one record, if nothing else waits
            reader, writer = await asyncio.open_connection(*node.address)
            push = frame(Verb.PUSH, 2, 0, PUSH.pack(stream, 0, 0, 0, 0) + batch)
            writer.write(frame(Verb.HELLO, 1, 0, pack(Hello(1))) + push + push)
            with suppress(ConnectionError):
                await reader.read()  # to the end of the connection
            writer.close()
            assert isinstance(node.failed, DiskError)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*node.address)
        async with Node(Config(str(tmp_path), port=0)) as node:  # nothing is missing
            assert node.engine.fabric.kernel.streams[stream].totals.messages <= 1

    run(main())
