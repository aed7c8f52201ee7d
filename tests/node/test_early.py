"""Answers that leave from the journal's thread: once each, and never before they are true."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node

from penstock import aio
from penstock.core.fabric import Fabric
from penstock.core.records import Kind
from penstock.errors import NotFoundError, StorageError
from penstock.node import early
from penstock.node.early import MOST_ANSWERS, Early
from penstock.node.files import FileDisk
from penstock.node.node import Config, Node, run_loop
from penstock.node.runtime import Runtime
from penstock.node.server import Server
from penstock.store.disk import DiskError
from penstock.wire.encode import encode_batch
from penstock.wire.entry import Entry
from penstock.wire.frames import FRAME, PUSH, Flag, Splitter, Verb, frame
from penstock.wire.messages import Hello, Open, pack

WAIT_S = 30.0
ANSWER = frame(Verb.PUSH, 1, Flag.RESPONSE, b"answer")
DELIVERY = frame(Verb.DELIVER, 1, 0, b"delivery")
compiled = pytest.mark.skipif(not early.COMPILED, reason="the compiled sending was not built")


def run(main: Coroutine[Any, Any, None]) -> None:
    run_loop(asyncio.wait_for(main, WAIT_S))


def _nothing() -> None: ...


def entry(connection: int, answer: bytes, **fields: Any) -> Entry:
    return Entry(0, 1, 0, 1, b"", reply=(connection, answer), answer=_nothing, **fields)


def test_answers_of_a_connection_go_together() -> None:
    sent: list[tuple[int, bytes]] = []
    entries = [entry(1, ANSWER), entry(2, b"b" + ANSWER), entry(1, DELIVERY)]

    def send(connection: int, data: bytes) -> bool:
        sent.append((connection, data))
        return connection == 1

    answers = Early(entries, send)
    answers.send()
    answers.end()
    assert sent == [(1, ANSWER + DELIVERY), (2, b"b" + ANSWER)]
    assert answers.sent == [(1, 1)], "a delivery answers no request"
    assert [each.answered for each in entries] == [True, False, True]


def test_after_the_end_nothing_is_sent() -> None:
    answers = Early([entry(1, ANSWER)], lambda *_: pytest.fail("it was sent"))
    answers.end()
    answers.send()
    assert not answers.sent


def test_what_must_not_leave_early() -> None:
    over = entry(1, ANSWER)
    over.answer = None
    others = [over, entry(1, ANSWER, refused=True), Entry(0, 1, 0, 1, b"", answer=_nothing)]
    assert not Early(others, lambda *_: True)
    reader = SimpleNamespace(over=False)
    delivery = entry(1, DELIVERY, reader=reader)
    assert Early([delivery], lambda *_: True)
    reader.over = True
    assert not Early([delivery], lambda *_: True)
    many = [entry(1, ANSWER) for _ in range(MOST_ANSWERS + 1)]
    assert not Early(many, lambda *_: True)
    assert Early(many[1:], lambda *_: True)


@compiled
def test_they_do_leave_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop hears nothing of the sync before the answer is there."""
    left = asyncio.Event()
    send = Early.send

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def seen(self: Early) -> None:
            send(self)
            if self.sent:
                loop.call_soon_threadsafe(left.set)

        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            queue = await fabric.queue("q")
            monkeypatch.setattr(Early, "send", seen)
            await queue.push(b"one")
            await left.wait()
            message = await queue.pop()
            assert message is not None
            left.clear()
            await message.ack(wait=True)
            await left.wait()
            left.clear()
            await (await fabric.table("kv")).put("a", b"1")
            await left.wait()

    run(main())


@compiled
def test_what_the_loop_writes_is_answered_before_it_takes_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bool] = []
    committed = Fabric.committed

    def seen(self: Fabric, entries: list[Entry], *others: Any) -> None:
        answered.extend(each.answered for each in entries if each.reply is not None)
        committed(self, entries, *others)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            queue = await fabric.queue("q", durability="written")
            monkeypatch.setattr(Fabric, "committed", seen)
            for _ in range(20):
                await queue.push(b"one")
                message = await queue.pop()
                assert message is not None
                await message.ack(wait=True)
            assert not (await queue.stats())["messages"]

    run(main())
    assert answered == [True] * 40, "pushes and acks"


@compiled
@pytest.mark.parametrize("durability", ["synced", "written"])
@pytest.mark.parametrize("standing", [True, False], ids=["subscribed", "popping"])
def test_messages_leave_early_for_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standing: bool, durability: str
) -> None:
    delivered: list[int] = []
    sent = [b"%d" % number for number in range(50)]
    send = Early.send

    def seen(self: Early) -> None:
        before = [each for some in self._answers.values() for each in some]
        send(self)
        delivered.extend(each.kind for each in before if each.answered)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            queue, got = await fabric.queue("q", durability=durability), list[bytes]()
            monkeypatch.setattr(Early, "send", seen)

            async def subscribed() -> None:
                async for message in queue.consume():
                    assert message.deliveries == 1
                    got.append(message.value)
                    message.ack()
                    if len(got) == len(sent):
                        return

            async def popped() -> None:
                message = await queue.pop(timeout=WAIT_S)
                assert message is not None
                assert message.deliveries == 1
                got.append(message.value)
                await message.ack(wait=True)

            consuming = asyncio.ensure_future(subscribed() if standing else popped())
            for value in sent:
                await fabric.stats()  # whoever asked before waits at the node by now
                await queue.push(value)
                if not standing:
                    await consuming
                    consuming = asyncio.ensure_future(popped())
            if standing:
                await consuming
            else:
                consuming.cancel()
            await queue.flush()
            assert got == sent
            assert not (await queue.stats())["messages"]

    run(main())
    assert Kind.GRANT in delivered


def test_whoever_has_an_answer_finds_what_it_says(node: NodeProcess) -> None:
    with node.connect() as fabric, node.connect() as other:
        queue, table = fabric.queue("q"), fabric.table("kv")
        seen, read = other.queue("q"), other.table("kv")
        for number in range(400):
            value = b"%d" % number
            queue.push(value)
            message = (queue if number % 2 else seen).pop()
            assert message is not None
            assert message.value == value
            message.ack(wait=True)
            assert not seen.stats()["messages"]
            table.put("a", value)
            assert read.get("a") == value


class Gate:
    """Syncs stop at it, and writes may be refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write = FileDisk.write
        self.syncing, self.go_on, self.refusing = (threading.Event() for _ in range(3))
        self.before_refusal: list[threading.Event] = []

        def slowly(sync: Callable[..., None], *given: Any) -> None:
            self.syncing.set()
            assert self.go_on.wait(WAIT_S)
            sync(*given)

        def refused(disk: FileDisk, *rest: Any) -> None:
            if self.refusing.is_set():
                for event in self.before_refusal:
                    self.go_on.set()
                    assert event.wait(WAIT_S)
                raise DiskError("no room", full=True)
            write(disk, *rest)

        for name in ("sync", "write_synced"):
            sync = getattr(FileDisk, name)
            monkeypatch.setattr(FileDisk, name, lambda *given, s=sync: slowly(s, *given))
        monkeypatch.setattr(FileDisk, "write", refused)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.syncing.wait, WAIT_S)


@asynccontextmanager
async def two_clients(path: Path) -> AsyncIterator[tuple[aio.AsyncFabric, aio.AsyncFabric]]:
    async with (
        Node(Config(str(path), port=0)) as node,
        aio.connect(node.url) as one,
        aio.connect(node.url) as other,
    ):
        yield one, other
        assert (await one.stats())["connections"] == 2
        assert (one._connection._connects, other._connection._connects) == (1, 1), "one was cut"


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


def test_deliveries_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one, which does not leave early, and a small one behind it, after one sync."""
    large = bytes(20 << 10)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue, got = await fabric.queue("q"), list[bytes]()

            async def consume() -> None:
                async for message in queue.consume(prefetch=10):
                    got.append(message.value)
                    message.ack()
                    if len(got) == 4:
                        return

            consuming = asyncio.ensure_future(consume())
            for _ in range(2):  # it has begun, and the node has heard of it
                await fabric.stats()
            gate, pushed = Gate(monkeypatch), await other.queue("q", create=False)
            sent = [b"first", large, b"small", b"last"]
            pushing = [asyncio.ensure_future(pushed.push(sent[0]))]
            await gate.reached()
            pushing += [asyncio.ensure_future(pushed.push(value)) for value in sent[1:]]
            await other.stats()
            gate.go_on.set()
            await asyncio.gather(consuming, *pushing)
            assert got == sent

    run(main())


def test_a_large_answer_comes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a sync, and does not fit into the buffer of a socket."""
    value = bytes(900_000)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            table = await fabric.table("kv")
            for number in range(8):
                await table.put(f"large-{number}", value)
            gate = Gate(monkeypatch)
            putting = asyncio.ensure_future(table.put("a", b"1"))
            await gate.reached()
            read = await other.table("kv", create=False)
            reading = asyncio.ensure_future(anext(aiter(read.items("large"))))
            await other.stats()
            gate.go_on.set()
            await putting
            assert await reading == (b"large-0", value)

    run(main())


def test_a_queue_in_memory_with_a_message_that_is_to_be_safe(tmp_path: Path) -> None:
    """Whoever waits gets it once it is, and not nothing before."""

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q", durability="memory")
            asking = asyncio.ensure_future(queue.pop(timeout=WAIT_S))
            await fabric.stats()
            await (await other.queue("q", create=False)).push(b"one", durability="synced")
            message = await asking
            assert message is not None
            assert message.value == b"one"

    run(main())


def _frames(connection: socket.socket, splitter: Splitter) -> list[bytearray]:
    data = connection.recv(1 << 16)
    assert data, "the node has closed the connection"
    return splitter.feed(memoryview(data))


def test_a_client_that_does_not_read_gets_every_answer_once(node: NodeProcess) -> None:
    host, port = node.url.removeprefix("penstock://").split(":")
    count = 3000
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(frame(Verb.HELLO, 1, 0, pack(Hello(1))))
        connection.sendall(frame(Verb.CALL, 2, 0, pack(Open("queue", "q", "default", {}, True))))
        splitter, seen = Splitter(), list[int]()

        def push() -> None:
            for number in range(count):
                batch = encode_batch([b"x"], timestamp_us=1, producer=7, sequence=number)
                head = PUSH.pack(1, 0, 5, 0, 0)
                connection.sendall(frame(Verb.PUSH, 10 + number, 0, head + bytes(batch)))

        pushing = threading.Thread(target=push)
        pushing.start()
        pushing.join(1.0)  # by now the node cannot send any more, or has nothing left to send
        while len(seen) < count + 2:
            for each in _frames(connection, splitter):
                _, _, flags, _, request = FRAME.unpack_from(each)
                assert flags == Flag.RESPONSE, bytes(each)
                seen.append(request)
        pushing.join(WAIT_S)
    assert sorted(seen) == [1, 2, *range(10, 10 + count)]
