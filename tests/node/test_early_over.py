"""Early answers, where the disk refuses meanwhile, or nobody waits for them any more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.node.early_answers import WAIT_S, Gate, compiled, run, two_clients

from penstock import aio
from penstock.errors import NotFoundError, StorageError
from penstock.node.early import Early
from penstock.node.node import Config, Node
from penstock.node.runtime import Runtime
from penstock.node.server import Server
from penstock.wire.frames import Verb


def test_a_write_that_fails_while_a_sync_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the sync was to confirm is refused once, and not confirmed as well."""

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, _):
            queue = await fabric.queue("q")
            await queue.push(b"before")
            gate = Gate(monkeypatch)
            first = asyncio.ensure_future(queue.push(b"first"))
            await gate.reached()
            gate.refusing.set()
            with pytest.raises(StorageError):
                await queue.push(b"second")
            with pytest.raises(StorageError):
                await first
            gate.go_on.set()
            gate.refusing.clear()

    run(main())


@compiled
def test_a_write_that_fails_after_answers_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count, although the loop has not heard of the sync by then."""
    left, send = threading.Event(), Early.send

    def seen(self: Early) -> None:
        send(self)
        left.set()

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue, beside = await fabric.queue("q"), await other.queue("q")
            gate = Gate(monkeypatch)
            monkeypatch.setattr(Early, "send", seen)
            first = asyncio.ensure_future(queue.push(b"first"))
            await gate.reached()
            gate.before_refusal.append(left)
            gate.refusing.set()
            with pytest.raises(StorageError):
                await beside.push(b"second")
            assert (await first).durability == "synced"
            gate.refusing.clear()
            assert [each.value for each in await queue.peek(9)][:1] == [b"first"]
            message = None
            while message is None:  # the disk is tried again once a second
                try:
                    message = await queue.pop(timeout=WAIT_S)
                except StorageError:
                    await asyncio.sleep(0.05)
            assert (message.value, message.deliveries) == (b"first", 1)

    run(main())


def test_a_queue_is_deleted_while_a_delivery_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited is told that, and gets nothing after it."""

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q")

            async def consume() -> None:
                async for _ in queue.consume():
                    pytest.fail("it was deleted")

            consuming = asyncio.ensure_future(consume())
            for _ in range(2):  # it has begun, and the node has heard of it
                await fabric.stats()
            gate = Gate(monkeypatch)
            pushing = asyncio.ensure_future((await other.queue("q", create=False)).push(b"late"))
            await gate.reached()
            deleting = asyncio.ensure_future(other.delete_queue("q"))
            with pytest.raises(NotFoundError):
                await consuming
            gate.go_on.set()
            await asyncio.gather(pushing, deleting)

    run(main())


@compiled
@pytest.mark.parametrize("durability", ["synced", "written"])
@pytest.mark.parametrize("way", ["deleted", "cancelled"])
def test_nobody_waits_any_more_when_a_delivery_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, durability: str
) -> None:
    """The same, where it waits for what runs, and the next sync or write is for it: what was pushed
    before the queue was deleted, or the consumer left, is delivered to nobody."""
    left: list[int] = []
    send_alone = Server.send_alone

    def seen(self: Server, number: int, data: bytes) -> bool:
        left.append(data[4])
        return send_alone(self, number, data)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q", durability=durability)
            same, large = await other.queue("q", create=False), await other.queue("large")

            async def consume() -> None:
                async for _ in queue.consume():
                    pytest.fail("it is not for this one")

            consuming = asyncio.ensure_future(consume())
            for _ in range(2):
                await fabric.stats()
            gate = Gate(monkeypatch)
            before = asyncio.ensure_future(large.push(bytes(200_000)))
            await gate.reached()  # nothing is written by the loop meanwhile
            monkeypatch.setattr(Server, "send_alone", seen)
            pushing = asyncio.ensure_future(same.push(b"late"))
            await asyncio.sleep(0)
            if way == "deleted":
                deleting = asyncio.ensure_future(other.delete_queue("q"))
                with pytest.raises(NotFoundError):
                    await consuming
                gate.go_on.set()
                await deleting
            else:
                await other.stats()  # the node has the push by now
                consuming.cancel()
                for _ in range(2):
                    await fabric.stats()  # and the cancellation
                gate.go_on.set()
                await asyncio.gather(consuming, return_exceptions=True)
            await asyncio.gather(before, pushing)
            if way == "cancelled":
                message = await same.pop(timeout=WAIT_S)
                assert message is not None
                assert message.deliveries == 1

    run(main())
    assert Verb.DELIVER not in left


@compiled
@pytest.mark.parametrize("way", ["leaves", "is cut off"])
def test_a_delivery_leaves_just_before_its_consumer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It counts as delivered, although the loop has not heard of it: it is given back, or leased
    until that runs out, and nobody gets it meanwhile without a cause."""
    left, send, end_early = threading.Event(), Early.send, Runtime.end_early

    def seen(self: Early) -> None:
        send(self)
        left.set()

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as other:
            fabric = await aio.connect(node.url)
            queue, pushed = await fabric.queue("q"), await other.queue("q")
            consumer = queue.consume(prefetch=1)
            waiting = asyncio.ensure_future(anext(consumer))
            for _ in range(2):  # it has begun, and the node has heard of it
                await fabric.stats()
            gate = Gate(monkeypatch)
            monkeypatch.setattr(Early, "send", seen)
            pushing = asyncio.ensure_future(pushed.push(b"x"))
            await gate.reached()

            def at_last(self: Runtime) -> None:
                gate.go_on.set()
                assert left.wait(WAIT_S)
                end_early(self)

            monkeypatch.setattr(Runtime, "end_early", at_last)
            if way == "leaves":
                waiting.cancel()
                await asyncio.wait([waiting])
                await queue.flush()
                assert queue.refused == 0
                message = await pushed.pop(timeout=WAIT_S)
                assert message is not None
                assert message.deliveries == 2
            else:
                wire = fabric._connection._wire
                assert wire is not None
                assert wire._transport is not None
                wire._transport.abort()
                await pushing
                stats = await pushed.stats()
                assert (stats["leased"], stats["ready"]) == (1, 0)
            monkeypatch.setattr(Runtime, "end_early", end_early)
            waiting.cancel()
            await pushing
            await fabric.close()

    run(main())


@compiled
def test_an_answer_that_cannot_be_sent_for_a_defect_ends_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the flush would never end, and nobody be answered any more."""

    def broken(connection: int, data: bytes) -> bool:
        raise RuntimeError("a defect")

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            queue = await fabric.queue("q", durability="written")
            await queue.push(b"one")
            failed = asyncio.Event()
            node._runtime.on_failure.append(failed.set)
            node._runtime.send_alone = broken
            pushing = asyncio.ensure_future(queue.push(b"two"))
            await failed.wait()
            assert isinstance(node._runtime.failed, RuntimeError)
            pushing.cancel()

    run(main())
    assert "nothing acknowledged is lost" in caplog.text
