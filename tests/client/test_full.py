"""As many requests as can be are under way: calls wait for a place, and take nothing along when
they are given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.client.fake_cluster import FakeCluster, hurry

from penstock import aio
from penstock.client.aio_places import Places
from penstock.client.protocol import Protocol
from penstock.errors import ClosedError
from penstock.wire.frames import Verb

LIMIT_S = 20.0
CALL_S = 60.0  # a call that waits for nothing ends the test
PLACES = 8
MESSAGES = 40


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    hurry(monkeypatch)
    monkeypatch.setattr("penstock.client.aio_settle._MAX_UNDER_WAY", PLACES)
    made = FakeCluster()
    yield made
    made.close()


def run(cluster: FakeCluster, use: Callable[[aio.AsyncQueue], Awaitable[None]]) -> None:
    """With a queue of `MESSAGES` messages."""

    async def within() -> None:
        async with asyncio.timeout(LIMIT_S), aio.connect(cluster.url, CALL_S) as fabric:
            queue = await fabric.queue("q")
            await queue.push_many([b"x"] * MESSAGES)
            await use(queue)

    asyncio.run(within())


async def popped(queue: aio.AsyncQueue) -> list[aio.AsyncMessage]:
    found: list[aio.AsyncMessage] = []
    while len(found) < MESSAGES:
        found += await queue.pop_many(MESSAGES, timeout=1.0)
    return found


def left(cluster: FakeCluster) -> int:
    kernel = cluster.inline.engine.fabric.kernel
    return sum(stream.totals.messages for stream in kernel.streams.values())


def hold_settlements(cluster: FakeCluster, held: bool) -> None:
    for node in cluster.nodes.values():
        node.ignores = Verb.SETTLE if held else 0
        if not held:
            node.break_connections()  # what was ignored is sent again


async def turns() -> None:
    """Lets whatever can be done be done."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_more_acks_are_waited_for_than_can_be_under_way(cluster):
    async def use(queue: aio.AsyncQueue) -> None:
        await asyncio.gather(*(each.ack(wait=True) for each in await popped(queue)))
        assert left(cluster) == 0

    run(cluster, use)


def test_a_call_that_is_cancelled_in_line_takes_no_acks_of_others_along(cluster):
    async def use(queue: aio.AsyncQueue) -> None:
        first, *others, last = await popped(queue)
        hold_settlements(cluster, True)
        waiting = [asyncio.create_task(_acked(each)) for each in others[:PLACES]]
        await turns()
        first.ack()
        given_up = asyncio.create_task(_acked(last))
        await turns()
        assert not queue._settler.waiting  # it has taken the first along
        given_up.cancel()
        await turns()
        hold_settlements(cluster, False)
        await asyncio.gather(*waiting)
        await queue.flush()
        assert left(cluster) == MESSAGES - PLACES - 1
        assert queue.refused == 0

    run(cluster, use)


async def _acked(message: aio.AsyncMessage) -> None:
    await message.ack(wait=True)


def test_those_in_line_hear_when_the_fabric_is_closed(cluster):
    async def use(queue: aio.AsyncQueue) -> None:
        messages = await popped(queue)
        hold_settlements(cluster, True)
        waiting = [asyncio.create_task(_acked(each)) for each in messages]
        await turns()
        await queue._connection.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [ClosedError] * MESSAGES

    run(cluster, use)


def test_all_in_line_hear_when_one_connection_is_closed(tmp_path: Path):
    async def within() -> None:
        async with asyncio.timeout(LIMIT_S), aio.open(str(tmp_path)) as fabric:
            queue = await fabric.queue("q")
            count = 2 * Protocol().limit + 10
            waiting = [asyncio.create_task(queue.pop(timeout=CALL_S)) for _ in range(count)]
            await turns()
            await fabric._connection.close()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [ClosedError] * count

    asyncio.run(within())


def test_a_place_that_is_not_taken_is_the_next_ones():
    free = 0

    async def use() -> None:
        nonlocal free
        places, taken = Places(lambda: free), []

        async def take(number: int) -> None:
            async with places.turn(LIMIT_S):
                if number == 1:
                    raise ValueError
                taken.append(number)

        waiting = [asyncio.create_task(take(number)) for number in range(3)]
        await turns()
        waiting[0].cancel()
        free = 1
        places.admit()
        assert places.scarce
        await turns()
        assert taken == [2]
        assert len(places) == 0
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(use())
