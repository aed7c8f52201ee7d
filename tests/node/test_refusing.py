"""A disk that refuses while all that may wait for it does: who only reads is served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.engine import engine as engines
from penstock.errors import StorageError
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node, run_loop
from penstock.store.disk import DiskError
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FRAME, PUSH, Flag, Verb, frame
from penstock.wire.messages import Hello, pack

WAIT_S = 20.0
BUSY_BYTES = 400_000
PUSHES = 40
SIZE = 40_000


class Gate:
    """Syncs wait at it. Then all that is written is refused, until there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.closed, self.full = threading.Event(), threading.Event()
        self._open = threading.Event()
        for name in ("sync", "write_synced", "write"):
            self._guard(monkeypatch, name, getattr(FileDisk, name))

    def _guard(
        self, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[..., None]
    ) -> None:
        def guarded(*given: Any) -> None:
            if self.closed.is_set() and name != "write":  # small ones are written on the loop
                assert self._open.wait(WAIT_S)
            if self.full.is_set():
                raise DiskError("no room", full=True)
            act(*given)

        monkeypatch.setattr(FileDisk, name, guarded)

    def refuse(self) -> None:
        """What waits is refused, and all that follows."""
        self.full.set()
        self._open.set()


async def _push(node: Node, stream: int) -> int:
    """Flags of the answer to a push, over a connection of its own."""
    reader, writer = await asyncio.open_connection(*node.address)
    batch = bytes(encode_batch([b"x" * SIZE], timestamp_us=1))
    hello = frame(Verb.HELLO, 1, 0, pack(Hello(1)))
    writer.write(hello + frame(Verb.PUSH, 2, 0, PUSH.pack(stream, 0, 0, 0, 0) + batch))
    for _ in range(2):
        length, _, flags, _, _ = FRAME.unpack(await reader.readexactly(FRAME.size))
        await reader.readexactly(length - FRAME.size)
    writer.close()
    return int(flags)


async def _until(what: Callable[[], Awaitable[bool]]) -> None:
    while not await what():  # noqa: ASYNC110  # nobody tells of it
        await asyncio.sleep(0.001)


async def _full_line(node: Node, stream: int) -> list[asyncio.Task[int]]:
    """Pushes, of which as many wait for the disk as may; the others are not read."""

    async def waiting() -> bool:
        return len(node._server.paused) > PUSHES // 2 and node.engine.busy

    pushes = [asyncio.ensure_future(_push(node, stream)) for _ in range(PUSHES)]
    await _until(waiting)
    assert node.engine.journal.pending_bytes > BUSY_BYTES
    return pushes


async def _only_writes_are_refused(url: str) -> None:
    async with aio.connect(url, timeout=5) as late:
        queue, topic = await late.queue("q"), await late.topic("t")
        assert "full" in (await late.stats())["refusing"]
        found = [row.value async for batch in topic.read(0, 0) for row in batch]
        assert found == [b"before"]
        assert [each.value for each in await queue.peek(1)] == [b"first"]
        with pytest.raises(StorageError, match="full"):
            await queue.push(b"refused")


def test_reads_go_on_while_a_disk_refuses_all_that_may_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BUSY_BYTES", BUSY_BYTES)
    monkeypatch.setattr(engines, "RETRY_US", 50_000)
    gate = Gate(monkeypatch)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node:
            node.engine.journal._max_flush_bytes = 2 * SIZE  # the line is not one flush
            async with aio.connect(node.url) as fabric:
                queue, topic = await fabric.queue("q"), await fabric.topic("t", partitions=1)
                await queue.push(b"first")
                await topic.publish(b"before")
            gate.closed.set()
            pushes = await _full_line(node, queue.info.id)
            gate.refuse()
            # Those in line, and those that were not read before.
            assert await asyncio.gather(*pushes) == [Flag.RESPONSE | Flag.ERROR] * PUSHES
            pending = node.engine.journal.pending_bytes
            assert pending > BUSY_BYTES, "what was accepted stays in line"
            await _only_writes_are_refused(node.url)
            assert node.engine.journal.pending_bytes == pending
            gate.full.clear()
            async with aio.connect(node.url) as fabric:

                async def writable() -> bool:
                    return (await fabric.stats())["refusing"] is None

                await _until(writable)
                await (await fabric.queue("q")).push(b"after")
            assert not node.engine.busy
            stored = node.engine.fabric.kernel.streams[queue.info.id].totals.messages
            assert BUSY_BYTES // SIZE <= stored - 2 < PUSHES
        async with Node(Config(str(tmp_path), port=0)) as node:
            assert node.engine.fabric.kernel.streams[queue.info.id].totals.messages == stored

    run_loop(asyncio.wait_for(main(), WAIT_S))
