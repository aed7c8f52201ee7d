"""A node that takes longer to read messages than a consumer waits: they are on their way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import aio, connect
from penstock.core.queues import Queues
from penstock.engine.reader import BatchReader
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node

VALUES = [bytes([each]) for each in range(10)]
IDLE_S = 0.01
SOON_S = 5.0  # until a read goes on although nobody asked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is read before the consumer has given up waiting, and asks what is to come."""
    asked = threading.Event()
    read, settle = FileDisk.read, Queues.settle

    def slowly(disk: FileDisk, name: str, offset: int, length: int) -> Any:
        asked.wait(SOON_S)
        return read(disk, name, offset, length)

    def settled(queues: Queues, *request: Any) -> None:
        settle(queues, *request)
        if request[-1]:
            asked.set()

    def on_disk_only(reader: BatchReader, places: Any) -> dict[int, Any]:
        return {}

    monkeypatch.setattr(FileDisk, "read_now", lambda *_: None)
    monkeypatch.setattr(FileDisk, "read", slowly)
    monkeypatch.setattr(Queues, "settle", settled)
    monkeypatch.setattr(BatchReader, "known", on_disk_only)
    return asked


def run(tmp_path: Path, asked: threading.Event, work: Any) -> Any:
    async def main() -> Any:
        asked.set()  # what a node reads when it starts is not what this is about
        async with Node(Config(str(tmp_path / "data"), port=0, shards=16)) as node:
            asked.clear()
            return await work(node.url)

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_a_consumer_gets_what_is_leased_to_it(tmp_path: Path, asked: threading.Event) -> None:
    def consume(url: str) -> list[list[bytes]]:
        with connect(url) as fabric:
            queue = fabric.queue("q")
            queue.push_many(VALUES)
            rounds = [[bytes(m.value) for m in queue.consume(IDLE_S, 100)]]
            queue.push(b"last")
            rounds += [[bytes(v) for d in queue.consume_batches(IDLE_S) for v in d.values]]
            assert queue.stats()["dead"] == 0
        return rounds

    rounds = run(tmp_path, asked, lambda url: asyncio.to_thread(consume, url))
    assert [sorted(each) for each in rounds] == [VALUES, [b"last"]]


def test_a_consumer_gets_what_is_leased_to_it_asyncio(
    tmp_path: Path, asked: threading.Event
) -> None:
    async def consume(url: str) -> list[list[bytes]]:
        async with aio.connect(url) as fabric:
            queue = await fabric.queue("q")
            await queue.push_many(VALUES)
            rounds = [[bytes(m.value) async for m in queue.consume(IDLE_S, 100)]]
            await queue.push(b"last")
            rounds += [[bytes(v) async for d in queue.consume_batches(IDLE_S) for v in d.values]]
        return rounds

    rounds = run(tmp_path, asked, consume)
    assert [sorted(each) for each in rounds] == [VALUES, [b"last"]]


def test_whoever_leaves_gives_back_what_is_still_being_read(
    tmp_path: Path, asked: threading.Event
) -> None:
    async def consume(url: str) -> dict[str, Any]:
        async with aio.connect(url) as fabric:
            queue = await fabric.queue("q")
            await queue.push_many(VALUES)
            async with queue.consume(prefetch=100) as consumer:
                waiting = asyncio.ensure_future(anext(consumer))
                while (await queue.stats())["leased"] < len(VALUES):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
            return dict(await queue.stats())

    stats = run(tmp_path, asked, consume)
    assert (stats["ready"], stats["leased"]) == (len(VALUES), 0)
