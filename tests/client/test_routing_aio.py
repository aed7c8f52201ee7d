"""The asyncio client against nodes that move, die and fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.client.fake_cluster import SHARDS, FakeCluster, hurry

from penstock import aio
from penstock.client.aio_cluster import AsyncCluster
from penstock.client.producer import shard_of
from penstock.errors import ClosedError, DeadlineError, UnavailableError
from penstock.wire.frames import Verb

Use = Callable[[aio.AsyncFabric], Awaitable[None]]
SOON_S = 5.0  # half of what a call may take


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    hurry(monkeypatch)
    made = FakeCluster()
    yield made
    made.close()


def values(count: int) -> list[bytes]:
    return [b"%d" % each for each in range(count)]


def stored(cluster: FakeCluster) -> int:
    kernel = cluster.inline.engine.fabric.kernel
    return sum(stream.totals.messages for stream in kernel.streams.values())


def run(cluster: FakeCluster, use: Use, timeout: float = 10.0) -> None:
    async def within() -> None:
        async with aio.connect(cluster.url, timeout=timeout) as fabric:
            await use(fabric)

    asyncio.run(within())


async def meanwhile(act: Callable[[int], None], pause_s: float) -> None:
    turn = 0
    while True:
        await asyncio.sleep(pause_s)
        act(turn)
        turn += 1


def test_many_tasks_push_while_shards_move_and_connections_break(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")

        def disturb(turn: int) -> None:
            cluster.move(range(turn % 4, SHARDS, 4), turn % 3 + 1)
            cluster.nodes[turn % 3 + 1].break_connections()

        disturbing = asyncio.create_task(meanwhile(disturb, 0.03))
        receipts = await asyncio.gather(*(queue.push(value) for value in values(1500)))
        disturbing.cancel()
        assert len(receipts) == 1500
        assert stored(cluster) == 1500

    run(cluster, use)


def test_order_is_kept_for_each_partition(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        topic = await fabric.topic("t", 3)

        def disturb(turn: int) -> None:
            cluster.move(range(SHARDS), turn % 3 + 1)
            cluster.nodes[turn % 3 + 1].lose_answers = turn % 2

        disturbing = asyncio.create_task(meanwhile(disturb, 0.02))
        sent = (topic.publish_many(values(300), partition=each, batch=2) for each in range(3))
        await asyncio.gather(*sent)
        disturbing.cancel()
        for node in cluster.nodes.values():
            node.lose_answers = 0
        for partition in range(3):
            found = [value async for batch in topic.read(partition) for value in batch.values]
            assert found == values(300)

    run(cluster, use)


def test_pops_wait_on_all_nodes_and_can_be_cancelled(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        waiting = asyncio.create_task(queue.pop(timeout=30.0))
        while sum(cluster.count(Verb.POP).values()) < 6:  # noqa: ASYNC110  # it is another thread's
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiting = asyncio.create_task(queue.pop(timeout=30.0))
        await asyncio.sleep(0.05)
        await queue.push(b"x")
        message = await waiting
        assert message is not None
        await message.ack(wait=True)
        assert stored(cluster) == 0

    run(cluster, use)


def test_a_consumer_gets_everything_although_a_node_dies(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push_many(values(100), batch=1)
        seen: list[bytes] = []
        async with queue.consume(idle_timeout=1.5, prefetch=6) as consumer:
            async for message in consumer:
                seen.append(message.value)
                message.ack()
                if len(seen) == 100:
                    cluster.fail_over(2, to=3)
                    await queue.push_many(values(200)[100:], batch=1)
                    cluster.clock.advance(31)  # what went down with the node is free again
        await queue.flush()
        assert set(seen) == set(values(200))
        assert stored(cluster) == 0

    run(cluster, use)


def test_a_stale_node_is_asked_again_until_it_knows(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", ordered=True)
        shard = shard_of(b"q", SHARDS)
        owner = cluster.map.owner_of(shard)
        await queue.push(b"one")
        heir = cluster.nodes[owner % 3 + 1]
        heir.stale = True
        cluster.move([shard], heir.number)
        asyncio.get_running_loop().call_later(0.3, setattr, heir, "stale", False)
        await queue.push(b"two")
        assert stored(cluster) == 2

    run(cluster, use)


def test_a_link_that_is_lost_as_soon_as_it_is_made_is_made_again(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        connection = fabric._connection
        assert isinstance(connection, AsyncCluster)
        links = connection.links
        for link in links.all():
            link.close(UnavailableError("a test"))
        made = 0

        def linked() -> None:  # whoever waits for the link is not awake yet
            nonlocal made
            made += 1
            if made == 1:
                links.all()[-1].close(UnavailableError("lost behind the greeting"))

        links.linked = linked
        async with asyncio.timeout(SOON_S):
            await queue.push(b"x")
        assert made > 1

    run(cluster, use)


def test_all_nodes_are_away_for_too_long(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push(b"x")
        for node in cluster.nodes.values():
            node.kill()
        with pytest.raises(DeadlineError):
            await queue.push(b"y")
        with pytest.raises(DeadlineError):
            async for _ in queue.consume(idle_timeout=0.1):
                pass

    run(cluster, use, timeout=0.5)


def test_nothing_is_left_behind_when_a_fabric_is_closed(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue, empty = await fabric.queue("q", ordered=True), await fabric.queue("empty")
        await queue.push(b"x")
        cluster.nodes[cluster.map.owner_of(shard_of(b"q", SHARDS))].silent = True
        waiting = [asyncio.create_task(queue.push(b"y")) for _ in range(3)]
        popping = asyncio.create_task(empty.pop(timeout=20.0))
        await asyncio.sleep(0.05)
        await fabric.close()
        outcomes = await asyncio.gather(*waiting, popping, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ClosedError] * 4
        assert len(asyncio.all_tasks()) == 1

    run(cluster, use)


def test_links_are_few_and_idle_ones_make_room(cluster):
    async def use() -> None:
        made = AsyncCluster([("127.0.0.1", cluster.nodes[1].port)], "", 5.0)
        made.links._pool._limit = 2
        await made.open()
        for node in (1, 2, 3, 1, 2, 3):
            assert (await made.links.link(node)).ready
            assert len(made.links.all()) <= 2
        assert made.links.ready(1) is None
        await made.close()

    asyncio.run(use())


def test_sessions(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        table = await fabric.table("t")
        async with await fabric.session() as session:
            await table.put("k", b"v", session=session)
            assert await table.get("k") == b"v"
        assert await table.get("k") is None

    run(cluster, use)


def test_claims_of_nodes_that_do_not_answer_are_left_out(cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        topic = await fabric.topic("t", 6)
        tokens = {each: (await topic.claim(each, "g", "me", 30)).token for each in range(6)}
        away = {each for each in range(6) if topic.info.placement[each] in cluster.owned(2)}
        assert 0 < len(away) < 6
        there = {each: True for each in range(6) if each not in away}
        cluster.nodes[2].silent = True
        assert await topic.renew("g", "me", tokens, within=0.3) == there
        assert set(await topic.claims("g", within=0.3)) == set(there)
        cluster.nodes[2].kill()
        assert await topic.renew("g", "me", tokens, within=0.3) == there
        cluster.move(cluster.owned(2), to=3)
        assert await topic.renew("g", "me", tokens) == dict.fromkeys(range(6), True)

    run(cluster, use)
