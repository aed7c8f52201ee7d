"""The client against a cluster of three node processes, one of which dies."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock import aio


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    started.end()


def values(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def test_nothing_is_lost_or_doubled_when_a_node_dies(nodes: Nodes) -> None:
    nodes.start(1, 2, 3)
    wait_for(lambda: nodes.whole(1, 2, 3))
    url = "penstock://" + ",".join(process.listen for process in nodes.processes.values())
    with penstock.connect(url, timeout=20.0) as fabric:
        queue, topic, table = fabric.queue("q"), fabric.topic("t", 6), fabric.table("s")
        queue.push_many(values(300), batch=1)
        popped = queue.pop_many(50)
        threading.Timer(0.2, lambda: nodes.processes[2].end(signal.SIGKILL)).start()
        receipts = queue.push_many(values(3000), batch=3)
        assert receipts.count == 3000
        topic.publish_many(values(600), keys=values(600), batch=20)
        for key in values(40):
            table.put(key, key)
        queue.ack(popped, wait=True)
        seen = [message.value for message in popped]
        for message in queue.consume(idle_timeout=2.0):
            seen.append(message.value)
            message.ack()
        queue.flush()
        assert queue.refused == 0
        assert sorted(seen) == sorted(values(300) + values(3000))
        assert [key for key, _ in table.items()] == sorted(values(40))
        assert sum(end for _, end in topic.offsets()) == 600
        assert len(list(topic.subscribe(idle_timeout=1.0))) == 600
    assert asyncio.run(use(url)) == 100


async def use(url: str) -> int:
    async with aio.connect(url, timeout=20.0) as fabric:
        queue = await fabric.queue("q")
        await queue.push_many(values(100), batch=1)
        async with queue.consume(idle_timeout=1.0) as consumer:
            return len([message.ack() async for message in consumer])
