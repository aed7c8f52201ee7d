"""Deliveries with nothing in them: what was granted is damaged, or not the node's any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.client.conftest import Line

from penstock import aio
from penstock.client.blocking import Fabric
from penstock.core.effects import Deliver
from penstock.engine.cache import RecentPayloads
from penstock.engine.engine import Engine
from penstock.node.node import Config, Node
from penstock.wire.frames import Verb


def deliver_nothing(engine: Engine) -> None:
    """To everybody who is subscribed, as nodes of older releases do."""
    for connection, parked in engine.fabric.connections.items():
        for request in parked:
            empty = Deliver(connection, Verb.DELIVER, request, 0, [])
            engine.fabric.kernel.effects.append(empty)


def test_a_consumer_of_batches_passes_over_it(line: Line, fabric: Fabric) -> None:
    queue = fabric.queue("q")
    queue.push(b"one")
    found = []
    for delivery in queue.consume_batches(idle_timeout=0.2):
        found += delivery.values
        delivery.ack()
        if len(found) == 1:
            deliver_nothing(line.inline.engine)
            queue.push(b"two")
    assert found == [b"one", b"two"]


def test_so_does_one_in_an_event_loop(tmp_path: Path) -> None:
    async def consumed(node: Node, fabric: aio.AsyncFabric) -> list[bytes]:
        found: list[bytes] = []
        queue = await fabric.queue("q")
        await queue.push(b"one")
        async for delivery in queue.consume_batches(idle_timeout=0.2):
            found += delivery.values
            await delivery.ack()
            if len(found) == 1:
                deliver_nothing(node.engine)
                await queue.push(b"two")
        return found

    async def use() -> list[bytes]:
        async with (
            Node(Config(str(tmp_path / "data"), port=0, shards=4)) as node,
            aio.connect("{}:{}".format(*node.address), timeout=10) as fabric,
        ):
            return await consumed(node, fabric)

    assert asyncio.run(use()) == [b"one", b"two"]


@pytest.mark.parametrize("prefetch", [1, 100])
def test_what_is_damaged_costs_no_credit(line: Line, fabric: Fabric, prefetch: int) -> None:
    queue = fabric.queue("q", lease=30)
    for number in range(4):
        queue.push(b"damaged-%d" % number)
    queue.push(b"sound")
    line.inline.engine.reader.recent = RecentPayloads(0)
    for data in line.disk.files.values():
        for number in range(4):
            if (at := data.find(b"damaged-%d" % number)) >= 0:
                data[at] ^= 0xFF
    found = [message.value for message in queue.consume(idle_timeout=0.5, prefetch=prefetch)]
    assert found == [b"sound"]
    assert len(fabric.stats()["read_damage"]) == 4
