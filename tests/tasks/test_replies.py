"""Listening for outcomes: through outages, past gaps, and not for ever."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.client.aio_streams import AsyncTopic
from penstock.errors import NotFoundError, PenstockError
from penstock.tasks.envelope import Status, TaskCall, TaskOutcome, encode
from penstock.tasks.names import (
    REPLY_RETENTION_S,
    client_of,
    reply_partition,
    streams_of,
    task_id_of,
)
from penstock.tasks.replies import Replies
from penstock.tasks.streams import open_streams
from penstock.tasks.waiting import Waiting
from penstock.testing import FakeClock, memory_fabric
from penstock.wire.batch import Batch, checksum_of
from penstock.wire.buffers import Buffer
from penstock.wire.encode import encode_batch

WAIT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data")
    process.start()
    yield process
    if process.process is not None:
        process.end()


def test_futures_outlive_the_node(node: NodeProcess) -> None:
    """It is killed while tasks wait, and again while they are worked on."""
    with node.connect(timeout=WAIT_S) as fabric:
        app = fabric.tasks("default", durability="written")
        first = [app.submit(functions.square, each) for each in range(100)]
        app.flush()
        node.end(signal.SIGKILL)
        node.start()
        half_done = threading.Semaphore(0)

        def count(call: TaskCall) -> None:
            half_done.release()

        with TinyWorker(fabric, before=count, most=5):
            for _ in range(50):
                assert half_done.acquire(timeout=WAIT_S)
            node.end(signal.SIGKILL)
            node.start()
            later = [app.submit(functions.square, each) for each in range(100, 200)]
            assert app.gather([*first, *later], WAIT_S) == [each * each for each in range(200)]


def test_outcomes_that_were_dropped_unread_are_looked_for_among_the_kept(
    fabric: penstock.Fabric, app: penstock.TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    kept, fleeting = app.submit(functions.square, 3), app.submit(functions.square, 4, keep=0)
    app.flush()
    results = fabric.table(streams_of("default").results, create=False)
    results.put(kept.id, encode(TaskOutcome(Status.DONE, b"\x09")))
    with caplog.at_level(logging.WARNING):
        app._portal.soon(app._link._missed)
        assert kept.result(WAIT_S) == 9
    assert "dropped" in caplog.text
    assert not fleeting.done(), "its outcome may still come"


def test_a_reader_that_was_overtaken_by_retention_says_so() -> None:
    clock, missed = FakeClock(), threading.Event()
    client, task = bytes(8), bytes(16)
    outcome = encode(TaskOutcome(Status.DONE, b"\x09"))

    async def main(fabric: penstock.Fabric) -> None:
        async with fabric._asynchronous() as twin:
            replies = (await open_streams(twin, "default")).replies
            listening = Replies(replies, Waiting(client), client, missed.set)
            await listening.locate()
            await replies.publish(outcome, key=task, partition=0)
            while (await replies.offsets())[0][0] == 0:
                clock.advance(REPLY_RETENTION_S)
                await replies.publish(outcome, key=task, partition=0)
            run = asyncio.create_task(listening.run())
            await asyncio.to_thread(missed.wait, WAIT_S)
            run.cancel()

    with memory_fabric(clock, timeout=WAIT_S) as fabric:
        asyncio.run(main(fabric))
    assert missed.is_set()


def test_who_waits_is_told_when_no_outcome_can_come_any_more(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    future = app.submit(functions.square, 3)
    app.flush()
    fabric.delete_topic(streams_of("default").replies)
    with pytest.raises(NotFoundError):
        future.result(WAIT_S)


def test_a_batch_of_a_stranger_that_cannot_be_read_is_passed_over(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    """A node does not open what is packed: whoever may publish can put anything there."""
    future = app.submit(functions.square, 3)
    app.flush()
    hostile = encode_batch([b"value" * 99], keys=[bytes(16)], timestamp_us=1, compression="zstd")
    hostile[-9:] = bytes(9)
    hostile[32:40] = checksum_of(hostile).to_bytes(8, "little")
    topic = fabric.topic(streams_of("default").replies, create=False)
    partition = reply_partition(client_of(future.id))
    transaction = fabric.transaction()
    transaction.publish(topic, b"", partition=partition)
    transaction._transact.pushes[0].batch = bytes(hostile)
    transaction.commit()
    outcome = encode(TaskOutcome(Status.DONE, b"\x09"))
    topic.publish(outcome, key=future.id, partition=partition)
    assert future.result(WAIT_S) == 9


class Told(Replies):
    """Batches come when the test says so; counts the questions."""

    def __init__(self, topic: AsyncTopic, waiting: Waiting, client: bytes) -> None:
        super().__init__(topic, waiting, client)
        self.questions = 0
        self.coming: asyncio.Queue[list[Batch]] = asyncio.Queue()

    async def _batches(self) -> list[Batch]:
        self.questions += 1
        return await self.coming.get()


def test_nothing_is_asked_while_nobody_waits() -> None:
    """Whoever got the last outcome goes on at once; the next question comes with the next task."""
    client = bytes(8)
    first, second = (task_id_of(client, number) for number in (1, 2))
    outcome = encode(TaskOutcome(Status.DONE, b"\x09"))

    async def main(fabric: penstock.Fabric) -> None:
        async with fabric._asynchronous() as twin:
            waiting = Waiting(client)
            streams = await open_streams(twin, "default")
            replies = Told(streams.replies, waiting, client)
            run = asyncio.create_task(replies.run())

            async def comes(*tasks: bytes) -> None:
                batch = encode_batch([outcome] * len(tasks), keys=tasks, timestamp_us=1)
                replies.coming.put_nowait([Batch.parse(batch)])
                for _ in range(5):
                    await asyncio.sleep(0)

            sinks = {task: Ending() for task in (first, second)}
            for task, sink in sinks.items():
                waiting.add([task], sink)
            await comes(first)
            assert sinks[first].ended
            assert (replies.questions, replies.resting) == (2, False), "another one waits"
            await comes(second)
            assert sinks[second].ended
            assert (replies.questions, replies.resting) == (2, True)
            replies.wanted()
            replies.wanted()
            await asyncio.sleep(0)
            assert (replies.questions, replies.resting) == (3, False)
            run.cancel()

    with memory_fabric(timeout=WAIT_S) as fabric:
        asyncio.run(main(fabric))


class Ending:
    """Somebody who waits for a task."""

    reads_later = False

    def __init__(self) -> None:
        self.ended = False

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        self.ended = True
        return False

    def settled(self) -> None: ...

    def fail(self, task: bytes, error: PenstockError) -> None:
        raise AssertionError("the outcome comes")
