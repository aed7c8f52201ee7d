"""Gangs: the same scripts everywhere; all members are granted at once, or nobody is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.node.test_cluster import wait_for

from penstock.errors import InvalidError, LeaseLostError, NotFoundError

Park = Callable[..., "Future[Any]"]


@pytest.fixture
def park() -> Iterator[Park]:
    """Parks a worker in a thread of its own."""
    with ThreadPoolExecutor(16) as threads:

        def start(queue: Any, worker: str, timeout: float = 20.0) -> Future[Any]:
            return threads.submit(queue.park, worker, f"{worker}:1", timeout)

        yield start


def parked(queue: Any, count: int) -> None:
    assert wait_for(lambda: queue.stats()["parked"] == count)


def test_all_members_are_given_the_same(fabric, park):
    queue = fabric.queue("g", gangs=True)
    queue.push_gang(b"simulate", 3, headers={"kind": b"test"})
    waiting = []
    for count, worker in enumerate(["ann", "bob", "cid"], 1):
        waiting.append(park(queue, worker))
        parked(queue, count % 3)
    seats = [each.result() for each in waiting]
    assert [seat.rank for seat in seats] == [0, 1, 2]
    assert [seat.manager for seat in seats] == [True, False, False]
    for seat in seats:
        assert (seat.size, seat.attempt) == (3, 1)
        assert seat.addresses == ["ann:1", "bob:1", "cid:1"]
        assert seat.message.value == b"simulate"
        assert seat.message.headers == {"kind": b"test"}
    seats[0].message.extend(30)
    seats[0].message.ack(wait=True)
    assert queue.stats()["messages"] == 0
    with pytest.raises(LeaseLostError):
        seats[1].message.extend(30)


def test_what_is_given_back_is_granted_again(fabric, park):
    queue = fabric.queue("g", gangs=True)
    queue.push_gang(b"pair", 2, id="nightly")
    queue.push_gang(b"pair", 2, id="nightly")
    for attempt in (1, 2):
        seats = [each.result() for each in [park(queue, "ann"), park(queue, "bob")]]
        assert [seat.attempt for seat in seats] == [attempt, attempt]
        seats[1].message.nack()
    assert queue.park("ann", timeout=0.3) is None
    assert queue.stats()["ready"] == 1


def test_the_oldest_that_fits_is_first(fabric, park):
    queue = fabric.queue("g", gangs=True)
    queue.push_gang(b"three", 3)
    queue.push_gang(b"two", 2)
    queue.push_gang(b"one", 1)
    assert queue.park("ann").message.value == b"one"
    waiting = [park(queue, worker) for worker in ("ann", "bob")]
    assert {each.result().message.value for each in waiting} == {b"two"}
    waiting = [park(queue, worker) for worker in ("ann", "bob", "cid")]
    assert {each.result().message.value for each in waiting} == {b"three"}


def test_many_gangs_run_on_few_workers(fabric, park):
    """Twenty gangs of one to four on six workers, each worker a loop."""
    queue = fabric.queue("g", gangs=True)
    for number in range(20):
        queue.push_gang(b"%d" % number, 1 + number % 4)
    members: list[bytes] = []

    def work(worker: str) -> None:
        while (seat := queue.park(worker, "", 3.0)) is not None:
            members.append(seat.message.value)
            if seat.manager:
                seat.message.ack(wait=True)

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(work, f"w{number}") for number in range(6)]:
            done.result()
    assert sorted(members) == sorted(b"%d" % n for n in range(20) for _ in range(1 + n % 4))
    assert queue.stats()["messages"] == 0


def test_a_worker_that_is_deleted_the_queue_of_is_told(fabric, park):
    queue = fabric.queue("g", gangs=True)
    waiting = park(queue, "ann")
    parked(queue, 1)
    assert fabric.delete_queue("g")
    with pytest.raises(NotFoundError):
        waiting.result()


def test_what_is_refused(fabric):
    queue = fabric.queue("g", gangs=True)
    plain = fabric.queue("plain")
    refused: list[Callable[[], Any]] = [
        lambda: queue.push(b"x"),
        lambda: queue.push_many([b"x", b"y"]),
        lambda: queue.push_gang(b"x", 0),
        lambda: queue.push_gang(b"x", 1001),
        lambda: queue.push_gang(b"x", True),
        lambda: queue.pop(),
        lambda: queue.park(""),
        lambda: queue.park("w", "a" * 300),
        lambda: plain.push_gang(b"x", 2),
        lambda: plain.park("ann"),
        lambda: queue.configure(gangs=False),
    ]
    for act in refused:
        with pytest.raises(InvalidError):
            act()
    assert queue.stats()["messages"] == 0
