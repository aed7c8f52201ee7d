"""Both shells against a node process that is killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import aio


class NodeProcess:
    def __init__(self, data: Path) -> None:
        self._data = data
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.node", "--data", str(self._data)]
        command += ["--listen", self.address]
        source = Path(penstock.__file__).parent.parent
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip().removeprefix("penstock://")
        assert self.address

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    started = NodeProcess(tmp_path / "data")
    yield started
    started.kill()


def test_a_bulk_push_survives_a_killed_node(node):
    values = [b"%06d" % each for each in range(60_000)]
    half_way = threading.Event()

    def restart() -> None:
        half_way.wait()
        node.kill()
        node.start()

    restarting = threading.Thread(target=restart)
    restarting.start()

    def progress(stored: int) -> None:
        if stored >= 20_000:
            half_way.set()

    with penstock.connect(node.address, timeout=20) as fabric:
        queue = fabric.queue("q")
        receipts = queue.push_many(values, batch=500, progress=progress)
        restarting.join()
        assert receipts.count == len(values)
        seen = []
        for delivery in queue.consume_batches(max_messages=len(values)):
            seen += delivery.values
            delivery.ack()
        assert sorted(seen) == values
        assert queue.refused == 0
        assert queue.stats()["messages"] == 0


def test_a_consumer_survives_a_killed_node(node):
    with penstock.connect(node.address, timeout=20) as fabric:
        queue = fabric.queue("q", lease=4.0)
        queue.push_many([b"%d" % each for each in range(5000)], batch=50)
        acked: set[bytes] = set()
        for message in queue.consume(idle_timeout=6.0, prefetch=500):
            message.ack(wait=len(acked) % 100 == 0)
            acked.add(message.value)
            if len(acked) == 2000:
                node.kill()
                node.start()
        assert len(acked) == 5000
        assert queue.stats()["messages"] == 0


def test_asyncio_pushes_survive_a_killed_node(node):
    async def test() -> None:
        async with aio.connect(node.address, timeout=20) as fabric:
            queue = await fabric.queue("q")
            pushes = [asyncio.create_task(queue.push(b"%d" % each)) for each in range(500)]
            await pushes[20]
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            await asyncio.gather(*pushes)
            seen = [message.value for message in await queue.pop_many(1000)]
            assert sorted(seen) == sorted(b"%d" % each for each in range(500))

    asyncio.run(test())
