"""How a client that only waits hears of a newer map: nodes hold its question until there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.client.fake_cluster import SHARDS, FakeCluster, hurry

from penstock import aio
from penstock.client.aio_cluster import AsyncCluster
from penstock.client.aio_links import MapRequest
from penstock.wire.frames import Verb

NEVER_S = 1000.0
Use = Callable[[aio.AsyncFabric], Awaitable[None]]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """All shards are the first node's. Nothing is polled for, unless a test says so."""
    hurry(monkeypatch)
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", NEVER_S)
    made = FakeCluster()
    made.move(range(SHARDS), to=1)
    yield made
    made.close()


def run(cluster: FakeCluster, use: Use) -> None:
    async def within() -> None:
        async with asyncio.timeout(8.0), aio.connect(cluster.url, timeout=5.0) as fabric:
            await use(fabric)

    asyncio.run(within())


async def until(look: Callable[[], object]) -> None:
    while not look():  # noqa: ASYNC110  # the nodes are threads
        await asyncio.sleep(0.005)


@asynccontextmanager
async def parked(queue: aio.AsyncQueue) -> AsyncIterator[asyncio.Task[bytes]]:
    """A consumer that waits for a message; what it gets."""

    async def consume() -> bytes:
        async with queue.consume() as consumer:
            return (await anext(consumer)).value

    task = asyncio.create_task(consume())
    yield task
    task.cancel()
    await asyncio.wait([task])


def connection_of(fabric: aio.AsyncFabric) -> AsyncCluster:
    connection = fabric._connection
    assert isinstance(connection, AsyncCluster)
    return connection


def is_current(fabric: aio.AsyncFabric, cluster: FakeCluster) -> bool:
    return connection_of(fabric).routes.version == cluster.map.version


def questions(fabric: aio.AsyncFabric) -> list[int]:
    """The nodes that hold a question for a newer map."""
    return [
        link.node
        for link in connection_of(fabric).links.all()
        for pending in link.under_way
        if isinstance(pending.request, MapRequest)
    ]


def test_a_waiting_consumer_follows_a_shard_to_its_new_owner(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        async with parked(queue) as waiting:
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[1] and cluster.nodes[1].asked)
            cluster.move(range(SHARDS), to=2)
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[2])
            assert cluster.count(Verb.SUBSCRIBE)[3] == 0
            await queue.push(b"x")
            assert await waiting == b"x"

    run(cluster, use)


def test_a_waiting_pop_looks_at_the_new_owner(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push(b"x")
        for number, node in cluster.nodes.items():
            node.has_messages = number == 3
        waiting = asyncio.ensure_future(queue.pop(timeout=5.0))
        await until(lambda: cluster.nodes[1].asked)
        cluster.move(range(SHARDS), to=3)
        message = await waiting
        assert message is not None

    run(cluster, use)


def test_at_most_two_nodes_are_asked_and_each_once(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        cluster.move(range(0, SHARDS, 2), to=2)
        cluster.move(range(0, SHARDS, 3), to=3)
        queue = await fabric.queue("q")
        async with parked(queue):
            await until(lambda: all(cluster.count(Verb.SUBSCRIBE).values()))
            for turn in range(20):
                cluster.move([turn % SHARDS], turn % 3 + 1)
                await asyncio.sleep(0.005)
                asked = questions(fabric)
                assert len(set(asked)) == len(asked) <= 2
            await until(lambda: is_current(fabric, cluster))
            await until(lambda: len(questions(fabric)) == 2)

    run(cluster, use)


def test_another_node_is_asked_when_one_is_lost(cluster, monkeypatch):
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", 0.05)
    monkeypatch.setattr("penstock.client.aio_watch._POLL_TICKS", 1_000_000)

    async def use(fabric: aio.AsyncFabric) -> None:
        cluster.move(range(0, SHARDS, 2), to=2)
        cluster.move(range(0, SHARDS, 3), to=3)
        queue = await fabric.queue("q")
        async with parked(queue):
            await until(lambda: len(questions(fabric)) == 2)
            lost = questions(fabric)[0]
            cluster.fail_over(lost, lost % 3 + 1)
            await until(lambda: len(questions(fabric)) == 2 and lost not in questions(fabric))
            cluster.move(range(SHARDS), to=lost % 3 + 1)
            await until(lambda: is_current(fabric, cluster))

    run(cluster, use)


def test_where_no_node_tells_maps_are_polled_for(cluster, monkeypatch):
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", 0.05)
    for node in cluster.nodes.values():
        node.tells = False

    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        async with parked(queue):
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[1])
            cluster.move(range(SHARDS), to=2)
            await until(lambda: cluster.count(Verb.SUBSCRIBE)[2])
            assert not any(node.asked for node in cluster.nodes.values())

    run(cluster, use)


def test_who_does_not_wait_asks_nobody_for_long(cluster, monkeypatch):
    monkeypatch.setattr("penstock.client.aio_watch._TICK_S", 0.05)

    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push(b"x")
        await until(lambda: not connection_of(fabric)._watch._awake)
        cluster.move([0], to=2)  # the question that is held gets its answer, and is the last
        await until(lambda: questions(fabric) == [])
        await queue.push(b"y")
        await until(lambda: questions(fabric))

    run(cluster, use)
