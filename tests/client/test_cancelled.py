"""Calls that are given up in the very moment in which their answer comes: nobody sees it, and what
it brought goes back at once."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.client.fake_cluster import FakeCluster, hurry

from penstock import aio
from penstock.client import ops_gang
from penstock.client.consume import _SubscribeRequest
from penstock.client.ops_gang import ParkRequest, read_seat
from penstock.client.pops import PopRequest
from penstock.client.requests import Pending, Request, messages_of
from penstock.client.routing import Routes
from penstock.client.steps import Abandon, Finish, Start
from penstock.wire.frames import Verb

Use = Callable[[aio.AsyncFabric], Awaitable[None]]
LIMIT_S = 30.0
SOON_S = 5.0  # much less than a lease
LEASE_S = 600.0
VALUES = [b"%d" % number for number in range(9)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    hurry(monkeypatch)
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def on_cluster(cluster: FakeCluster) -> Callable[[Use], None]:
    return lambda use: asyncio.run(within(aio.connect(cluster.url, timeout=10.0), use))


@pytest.fixture
def on_node(tmp_path: Path) -> Callable[[Use], None]:
    return lambda use: asyncio.run(within(aio.open(str(tmp_path)), use))


@pytest.fixture(params=["on_node", "on_cluster"])
def run(request: pytest.FixtureRequest) -> Callable[[Use], None]:
    """Runs something on a fabric of either kind."""
    found: Callable[[Use], None] = request.getfixturevalue(request.param)
    return found


async def within(connecting: Any, use: Use) -> None:
    async with asyncio.timeout(LIMIT_S), connecting as fabric:
        await use(fabric)


def anything(answer: bytearray) -> bool:
    return True


async def cut_off(
    work: Coroutine[Any, Any, Any],
    kind: type[Request],
    counts: Callable[[bytearray], object] = anything,
    meanwhile: Awaitable[object] | None = None,
) -> None:
    """Does some work, and cancels it in the turn of the loop in which an answer to a request of
    this kind has come that counts. `meanwhile` is done once the work was begun."""
    heard, task = kind.answered, asyncio.create_task(work)

    def answered(request: Request, answer: bytearray) -> None:
        heard(request, answer)
        if counts(answer):
            asyncio.get_running_loop().call_soon(task.cancel)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "answered", answered)
        if meanwhile is not None:
            await meanwhile
        with pytest.raises(asyncio.CancelledError):
            await task


async def popped(queue: aio.AsyncQueue, count: int) -> list[bytes]:
    """So many messages, all of which can be had now."""
    found: list[bytes] = []
    while len(found) < count:
        messages = await queue.pop_many(count - len(found), SOON_S)
        assert messages, f"there are only {found}, and others are leased"
        found += [bytes(each.value) for each in messages]
    return sorted(found)


def test_what_a_pop_was_given_goes_back(run):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=LEASE_S)
        await queue.push_many(VALUES, batch=1)
        await cut_off(queue.pop_many(100), PopRequest, messages_of)
        assert await popped(queue, len(VALUES)) == VALUES
        assert not queue.refused

    run(use)


def test_what_a_pop_has_waited_for_goes_back(on_node):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=LEASE_S)
        waiting = queue.pop_batch(5, LEASE_S)
        await cut_off(waiting, PopRequest, messages_of, queue.push(b"x"))
        assert await popped(queue, 1) == [b"x"]

    on_node(use)


def test_what_a_pop_that_waits_on_all_nodes_is_given_goes_back(on_cluster, cluster):
    async def push(queue: aio.AsyncQueue) -> None:
        while sum(cluster.count(Verb.POP).values()) < 6:  # noqa: ASYNC110  # it is another thread's
            await asyncio.sleep(0.01)
        await queue.push(b"x")

    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=LEASE_S)
        await cut_off(queue.pop_batch(5, LEASE_S), PopRequest, messages_of, push(queue))
        assert await popped(queue, 1) == [b"x"]

    on_cluster(use)


def test_a_look_takes_nothing_and_gives_nothing_back(run):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push_many(VALUES, batch=1)
        await cut_off(queue.peek(100), PopRequest, messages_of)
        await queue.flush()
        assert not queue.refused
        assert await popped(queue, len(VALUES)) == VALUES

    run(use)


def test_a_gang_that_a_worker_was_given_is_granted_anew(run):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", gangs=True, lease=LEASE_S)
        parked = queue.park("ann", timeout=LEASE_S)
        await cut_off(parked, ParkRequest, read_seat, queue.push_gang(b"gang", 1))
        seat = await queue.park("bob", timeout=SOON_S)
        assert seat is not None
        assert seat.attempt == 2

    run(use)


def test_a_gang_that_is_given_as_the_time_is_up_is_taken(monkeypatch):
    """By another thread than the one that gives up."""
    monkeypatch.setattr(ops_gang, "_GRACE_S", 0.0)
    routes = cast("Routes", SimpleNamespace(owner=lambda shard: 1))
    request = ParkRequest(cast("Any", SimpleNamespace(stream=1)), "ann", "", 0.0, 0)
    pending = Pending(1, request, [])
    steps = ops_gang._park_at_owner(routes, request, 0.0)
    assert next(steps) == Start(request)
    assert steps.send(pending) == Abandon(pending)
    pending.settle(bytearray(b"a seat"), None)
    assert steps.send(None) == Finish(pending)
    steps.close()


@pytest.mark.parametrize("consume", [aio.AsyncQueue.consume, aio.AsyncQueue.consume_batches])
def test_a_loop_that_has_not_begun_leaves_nothing_leased(run, consume):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=LEASE_S)
        await queue.push_many(VALUES, batch=1)
        await cut_off(anext(consume(queue, prefetch=100)), _SubscribeRequest)
        assert await popped(queue, len(VALUES)) == VALUES

    run(use)


def test_a_loop_that_all_nodes_have_just_answered_leaves_nothing_leased(on_cluster):
    async def use(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=LEASE_S)
        await queue.push_many(VALUES, batch=1)
        has_begun = operator.not_  # that of the whole is no node's, and empty
        await cut_off(anext(queue.consume(prefetch=100)), Request, has_begun)
        assert await popped(queue, len(VALUES)) == VALUES

    on_cluster(use)


@pytest.mark.parametrize("answers", [1, 2])
def test_a_watch_that_has_not_begun_leaves_nothing_behind(on_node, answers):
    """The first answer is that it is there, the second what stands in the table."""

    async def use(fabric: aio.AsyncFabric) -> None:
        table, numbers = await fabric.table("t"), count(1)
        await cut_off(table.watch(b"a"), Request, lambda _: next(numbers) == answers)
        assert not fabric._connection._protocol.waiting

    on_node(use)
