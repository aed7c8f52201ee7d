"""Subscriptions to a cluster whose nodes come, go, and do not answer: none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.client.fake_cluster import SHARDS, FakeCluster, hurry

from penstock import aio
from penstock.client.aio_cluster import AsyncCluster
from penstock.errors import DeadlineError
from penstock.wire.frames import Verb

Use = Callable[[aio.AsyncFabric], Awaitable[None]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """All shards are the first node's; messages are only found on the third."""
    hurry(monkeypatch)
    made = FakeCluster()
    made.move(range(SHARDS), to=1)
    made.nodes[1].has_messages = made.nodes[2].has_messages = False
    yield made
    made.close()


def run(cluster: FakeCluster, use: Use, timeout: float = 5.0) -> None:
    async def within() -> None:
        async with asyncio.timeout(8.0), aio.connect(cluster.url, timeout) as fabric:
            await use(fabric)

    asyncio.run(within())


async def until(look: Callable[[], object]) -> None:
    while not look():  # noqa: ASYNC110  # the nodes are threads
        await asyncio.sleep(0.005)


@asynccontextmanager
async def jam(cluster: FakeCluster, fabric: aio.AsyncFabric) -> AsyncIterator[None]:
    """As many pushes as can be are under way to the first node, and more wait."""
    connection, node = fabric._connection, cluster.nodes[1]
    assert isinstance(connection, AsyncCluster)
    other = await fabric.queue("another")
    node.ignores = Verb.PUSH
    pushes = [asyncio.create_task(other.push(b"y")) for _ in range(1200)]
    await until(lambda: (link := connection.links.ready(1)) is not None and not link.room)
    yield
    node.ignores = 0
    node.break_connections()
    await asyncio.gather(*pushes)


async def first_of(queue: aio.AsyncQueue) -> bytes:
    async with queue.consume() as consumer:
        return (await anext(consumer)).value


def test_a_node_that_did_not_answer_before_it_lost_its_shards_is_asked_again(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        waiting = asyncio.create_task(first_of(queue))
        await until(lambda: cluster.count(Verb.SUBSCRIBE)[1])
        cluster.nodes[3].ignores = Verb.SUBSCRIBE
        cluster.move(range(0, SHARDS, 2), to=3)
        await until(lambda: cluster.count(Verb.SUBSCRIBE)[3] == 1)
        cluster.move(range(SHARDS), to=1)
        await until(lambda: cluster.count(Verb.CANCEL)[3] == 1)
        cluster.nodes[3].ignores = 0
        cluster.move(range(0, SHARDS, 2), to=3)
        await queue.push(b"x")
        assert await waiting == b"x"

    run(cluster, use)


def test_a_loop_that_could_not_begin_leaves_nothing_behind(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        tasks = len(asyncio.all_tasks())
        cluster.nodes[1].ignores = Verb.SUBSCRIBE
        with pytest.raises(DeadlineError):
            await first_of(queue)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)

    run(cluster, use, timeout=0.5)


def test_a_connection_on_which_nothing_is_answered_is_given_up(cluster):
    """The node lives, and says so to the others: nobody takes over from it."""

    async def use(fabric: aio.AsyncFabric) -> None:
        cluster.nodes[1].has_messages = True
        queue = await fabric.queue("q")
        await queue.push(b"x")
        message = await queue.pop()
        assert message is not None
        cluster.nodes[1].lose_track()
        with pytest.raises(DeadlineError):
            await message.ack(wait=True)
        await message.ack(wait=True)
        await queue.push(b"y")
        cluster.nodes[1].lose_track()
        with pytest.raises(DeadlineError):
            await first_of(queue)
        assert await first_of(queue) == b"y"

    run(cluster, use, timeout=0.5)


def test_loops_begin_although_more_pushes_wait_than_can_be_under_way(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        cluster.nodes[1].has_messages = True
        queue = await fabric.queue("q")
        async with jam(cluster, fabric):
            waiting = [asyncio.create_task(first_of(queue)) for _ in range(40)]
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[1] == len(waiting))
            assert not any(each.done() for each in waiting)  # there are places for fewer at once
        await queue.push_many([b"x"] * len(waiting), batch=1)
        assert await asyncio.gather(*waiting) == [b"x"] * len(waiting)

    run(cluster, use)


def test_a_loop_goes_on_after_a_connection_was_lost_and_pushes_fill_the_next(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        cluster.nodes[1].has_messages = True
        queue = await fabric.queue("q")
        waiting = asyncio.create_task(first_of(queue))
        await until(lambda: cluster.count(Verb.SUBSCRIBE)[1])
        async with jam(cluster, fabric):
            cluster.nodes[1].break_connections()
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[1] == 2)
            assert not waiting.done()
        await queue.push(b"x")
        assert await waiting == b"x"

    run(cluster, use)
