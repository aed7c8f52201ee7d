"""A claim that is over for a moment, and renewed: its partition goes on where it stood still,
whatever it was at just then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.consumers import clicks
from tests.consumers.test_group_run import until

import penstock
from penstock import aio
from penstock.consumers.delivery import Delivery
from penstock.consumers.prefetch import Prefetch
from penstock.consumers.splitting import moved_by
from penstock.consumers.worker import Worker
from penstock.errors import UnavailableError

PARTITION = 0
# Whom it hinders in a split. The others deliver in the transaction, or lose what may be lost.
STANDS_STILL = {("may_deliver", "at-least-once")}


def group_of(fabric: aio.AsyncFabric, guarantee: str) -> aio.ConsumerGroup:
    return aio.ConsumerGroup(
        fabric, group="g", topic="clicks", handler=clicks.sessions, to="queue:sessions",
        guarantee=guarantee, commit_every=0.05,
    )  # fmt: skip


async def soon(holds: Callable[[], Any]) -> None:
    """Waits until something holds that others on this loop bring about."""
    await asyncio.to_thread(until, holds)


def is_read(topic: penstock.Topic) -> bool:
    return all(claim.lag == 0 for claim in topic.claims("g").values())


async def worker_of(group: aio.ConsumerGroup) -> Worker:
    known = group._member._workers
    await soon(lambda: PARTITION in known and known[PARTITION].idle)
    return known[PARTITION]


def halt(worker: Worker, question: str) -> Callable[[], None]:
    """The claim may be over from now on; what to call when it is renewed."""
    shared = worker._shared
    real = getattr(shared, question)
    setattr(shared, question, lambda partition, token: False)

    def renewed() -> None:
        setattr(shared, question, real)
        worker.stop()  # as the claims have it done, when they notice both
        worker.start()

    return renewed


def test_a_claim_is_renewed_before_the_work_under_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The partition would stand still for ever, under a claim that is renewed for ever."""

    async def run(fabric: penstock.Fabric) -> None:
        topic = fabric.topic("clicks", 1)
        feed = clicks.publish(topic)
        next(feed)
        ending, ended, real = asyncio.Event(), asyncio.Event(), Prefetch.close

        async def slowly(prefetch: Prefetch) -> None:
            ending.set()
            await ended.wait()
            await real(prefetch)

        async with fabric._asynchronous() as reached:
            group = group_of(reached, "exactly-once")
            task = asyncio.create_task(group.run())
            worker = await worker_of(group)
            monkeypatch.setattr(Prefetch, "close", slowly)
            renewed = halt(worker, "may_process")
            await asyncio.to_thread(list, feed)
            await asyncio.wait_for(ending.wait(), 20)
            renewed()
            ended.set()
            await soon(lambda: is_read(topic))
            group.stop()
            await asyncio.wait_for(task, 20)

    with penstock.open(str(tmp_path / "data")) as fabric:
        asyncio.run(run(fabric))
        assert clicks.delivered(fabric.queue("sessions")) == clicks.expected()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("question", ["may_process", "may_deliver"])
def test_a_claim_is_over_while_a_partition_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarantee: str, question: str
):
    """What its children begin with is committed with the split, or there is no split yet."""

    async def run(fabric: penstock.Fabric) -> None:
        topic = fabric.topic("clicks", 1)
        feed = clicks.publish(topic, 40)
        for _ in range(8):
            next(feed)
        topic.grow(3)
        halted = list[Callable[[], None]]()

        async def interrupted(shared: Any, partition: int, generation: int, offset: int) -> Any:
            if partition == PARTITION and not halted:
                halted.append(halt(group._member._workers[PARTITION], question))
            return await moved_by(shared, partition, generation, offset)

        monkeypatch.setattr("penstock.consumers.worker.moved_by", interrupted)
        async with fabric._asynchronous() as reached:
            group = group_of(reached, guarantee)
            task = asyncio.create_task(group.run())
            await soon(lambda: halted)
            worker = group._member._workers[PARTITION]
            if (question, guarantee) in STANDS_STILL:
                await soon(lambda: worker._task is None)
            (renewed,) = halted
            renewed()
            await asyncio.to_thread(list, feed)
            await soon(lambda: is_read(topic))
            group.stop()
            await asyncio.wait_for(task, 20)

    with penstock.open(str(tmp_path / "data")) as fabric:
        asyncio.run(run(fabric))
        found = clicks.delivered(fabric.queue("sessions"))
        assert clicks.mistakes(found, guarantee) == []
        if guarantee != "at-most-once":
            assert {each.key for each in found} == {each.key for each in clicks.expected()}


def test_a_claim_is_renewed_in_a_pause_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody else would have a turn any more if the one that pauses did not wait again."""

    async def run(fabric: penstock.Fabric) -> None:
        topic = fabric.topic("clicks", 1)
        feed = clicks.publish(topic)
        next(feed)
        monkeypatch.setattr("penstock.consumers.worker.PAUSE_SECONDS", 0.5)
        async with fabric._asynchronous() as reached:
            group = group_of(reached, "exactly-once")
            task = asyncio.create_task(group.run())
            worker = await worker_of(group)
            commit = Delivery.commit

            async def failing(*given: Any, **named: Any) -> None:
                monkeypatch.setattr(Delivery, "commit", commit)
                raise UnavailableError("for once")

            monkeypatch.setattr(Delivery, "commit", failing)
            await asyncio.to_thread(list, feed)
            await soon(lambda: worker._shared.counts.failures)
            worker.stop()
            worker.start()
            await soon(lambda: is_read(topic))
            group.stop()
            await asyncio.wait_for(task, 20)

    with penstock.open(str(tmp_path / "data")) as fabric:
        asyncio.run(run(fabric))
        assert clicks.delivered(fabric.queue("sessions")) == clicks.expected()


def test_a_split_that_is_heard_of_during_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would not be dealt with before the next message of the partition; there may be none."""

    async def run(fabric: penstock.Fabric) -> None:
        topic = fabric.topic("clicks", 1)
        feed = clicks.publish(topic)
        next(feed)
        commit, give, heard = Worker._commit, Prefetch._give, asyncio.Event()

        def giving(prefetch: Prefetch, batches: Any, splits: Any) -> None:
            give(prefetch, batches, splits)
            if splits:
                heard.set()

        async def growing(worker: Worker, *seeds: Any) -> None:
            monkeypatch.setattr(Worker, "_commit", commit)
            await asyncio.to_thread(topic.grow, 3)
            await asyncio.wait_for(heard.wait(), 20)
            await commit(worker, *seeds)

        monkeypatch.setattr(Prefetch, "_give", giving)
        async with fabric._asynchronous() as reached:
            group = group_of(reached, "exactly-once")
            task = asyncio.create_task(group.run())
            await worker_of(group)
            monkeypatch.setattr(Worker, "_commit", growing)
            next(feed)
            await soon(lambda: sorted(topic.committed("g")) == [0, 1, 2])
            group.stop()
            await asyncio.wait_for(task, 20)

    with penstock.open(str(tmp_path / "data")) as fabric:
        asyncio.run(run(fabric))
