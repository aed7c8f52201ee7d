"""Leaving a loop when the leases of messages that it has not handed out have run out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.client.conftest import Line

from penstock import aio
from penstock.node.node import Config, Node


def test_what_was_not_handed_out_may_have_been_lost(line: Line) -> None:
    with line.fabric() as fabric:
        queue = fabric.queue("q")
        queue.push_many([b"1", b"2", b"3"], batch=1)
        with queue.consume(prefetch=3, lease=1.0) as messages:
            first = next(messages)
            line.clock.advance(2)
        assert queue.stats()["ready"] == 3
        first.ack()
        queue.flush()
        assert queue.refused >= 1, "the ack of a lease that ran out is still refused"


def test_what_was_not_handed_out_may_have_been_lost_asyncio(tmp_path: Path) -> None:
    async def consume() -> int:
        config = Config(str(tmp_path / "data"), port=0, shards=16)
        async with Node(config) as node, aio.connect(node.url, timeout=10) as fabric:
            queue = await fabric.queue("q")
            await queue.push_many([b"1", b"2", b"3"], batch=1)
            async with queue.consume(prefetch=3, lease=0.05) as messages:
                await anext(messages)
                while (await queue.stats())["leased"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return int((await queue.stats())["messages"])

    assert asyncio.run(consume()) == 3
