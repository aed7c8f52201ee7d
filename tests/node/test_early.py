"""Answers that leave early: once each, and never before they are true."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.node.early_answers import WAIT_S, Gate, compiled, run, two_clients

from penstock import aio
from penstock.core.fabric import Fabric
from penstock.core.records import Kind
from penstock.node.early import MOST_ANSWERS, Early
from penstock.node.node import Config, Node
from penstock.wire.encode import encode_batch
from penstock.wire.entry import Entry
from penstock.wire.frames import FRAME, PUSH, Flag, Splitter, Verb, frame
from penstock.wire.messages import Hello, Open, pack

ANSWER = frame(Verb.PUSH, 1, Flag.RESPONSE, b"answer")
DELIVERY = frame(Verb.DELIVER, 1, 0, b"delivery")


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
    committed = Fabric.committed

    def seen(self: Fabric, entries: list[Entry], *given: Any) -> None:
        delivered.extend(each.kind for each in entries if each.answered)
        committed(self, entries, *given)

    async def main() -> None:
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            queue, got = await fabric.queue("q", durability=durability), list[bytes]()
            monkeypatch.setattr(Fabric, "committed", seen)

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
