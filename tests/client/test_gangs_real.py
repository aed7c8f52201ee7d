"""Gangs over three node processes: who waits for one finds the new owner of its shard."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock import aio
from penstock.wire import messages as m

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WORKERS = ("ann", "bob", "cid")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    started = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        started.start(1, 2, 3)
        wait_for(lambda: started.whole(1, 2, 3) and started.status(1)["level"] >= 5, 60.0)
        yield started
    finally:
        started.end()


@pytest.fixture(scope="module")
def url(nodes: Nodes) -> str:
    return "penstock://" + ",".join(process.listen for process in nodes.processes.values())


def owner_of(queue: Any) -> int:
    shard = queue._only_shard
    assert shard is not None
    return int(queue._routes.owner(shard))


def park_all(
    queue: penstock.Queue, threads: ThreadPoolExecutor
) -> list[Future[penstock.GangSeat[penstock.Message] | None]]:
    parked = [threads.submit(queue.park, worker, worker, 60.0) for worker in WORKERS]
    wait_for(lambda: queue.stats()["parked"] == len(WORKERS), 30.0)
    return parked


def check(parked: list[Future[penstock.GangSeat[penstock.Message] | None]]) -> None:
    """All of them are members of one gang, which is finished."""
    seats = [seat for each in parked if (seat := each.result(60)) is not None]
    assert sorted(seat.rank for seat in seats) == [0, 1, 2]
    assert {seat.message.value for seat in seats} == {b"gang"}
    assert {seat.attempt for seat in seats} == {1}
    assert len({tuple(seat.addresses) for seat in seats}) == 1
    seats[0].message.ack(wait=True)


def test_workers_follow_a_shard_that_is_given_away(nodes, url):
    with penstock.connect(url, timeout=30.0) as fabric, ThreadPoolExecutor(3) as threads:
        queue = fabric.queue("given-away", gangs=True)
        parked, owner = park_all(queue, threads), owner_of(queue)
        nodes.call(1, m.ClusterChange("drain", owner))
        wait_for(lambda: owner_of(queue) != owner, 60.0)
        wait_for(lambda: queue.stats()["parked"] == len(WORKERS), 30.0)
        queue.push_gang(b"gang", 3)
        check(parked)
        nodes.call(1, m.ClusterChange("undrain", owner))
        wait_for(lambda: nodes.whole(1, 2, 3), 60.0)


def test_workers_and_gangs_survive_the_owner(nodes, url):
    """One gang is granted before the owner is killed: its token holds at the heir. Another one
    waits there for workers, who find it by themselves."""
    with penstock.connect(url, timeout=30.0) as fabric, ThreadPoolExecutor(3) as threads:
        queue = fabric.queue("killed", gangs=True, lease=30.0)
        queue.push_gang(b"solo", 1)
        solo = queue.park("dan", timeout=10.0)
        assert solo is not None
        parked, owner = park_all(queue, threads), owner_of(queue)
        nodes.processes[owner].end(signal.SIGKILL)
        queue.push_gang(b"gang", 3)
        check(parked)
        solo.message.ack(wait=True)
        assert wait_for(lambda: not queue.stats()["messages"])
        nodes.start(owner)
        wait_for(lambda: nodes.whole(1, 2, 3), 60.0)


async def until_parked(queue: aio.AsyncQueue, count: int) -> None:
    for _ in range(600):
        if (await queue.stats())["parked"] == count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"there are not {count} workers")


def test_a_worker_of_an_event_loop_that_is_cancelled_leaves(url):
    async def run() -> None:
        async with await aio.connect(url, timeout=30.0) as fabric:
            queue = await fabric.queue("cancelled", gangs=True)
            leaving = asyncio.create_task(queue.park("ann", timeout=60.0))
            await until_parked(queue, 1)
            leaving.cancel()
            await asyncio.wait([leaving])
            await until_parked(queue, 0)
            await queue.push_gang(b"gang", 1)
            seat = await queue.park("bob", timeout=10.0)
            assert seat is not None
            assert seat.attempt == 1

    asyncio.run(asyncio.wait_for(run(), 60))
