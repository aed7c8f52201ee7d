"""A push that somebody waits for is written, and leaves, before the node works on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.node.early_answers import compiled, run, two_clients

from penstock import aio
from penstock.engine import foresight
from penstock.engine.engine import Engine
from penstock.engine.foresight import Foreseen
from penstock.engine.haste import UnforeseenError
from penstock.node import runtime, syncing
from penstock.node.node import Config, Node
from penstock.node.server import Server
from penstock.node.syncing import Syncing
from penstock.wire.frames import VERB_AT, Verb

pytestmark = [
    compiled,
    pytest.mark.skipif(
        not (foresight.COMPILED and syncing.COMPILED), reason="nothing is foreseen, or not synced"
    ),
]
COUNT = 20


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a node sends alone, and what its core is given, in order."""
    seen: list[tuple[str, int]] = []
    send_alone, receive = Server.send_alone, Engine.receive

    def sent(self: Server, number: int, data: bytes) -> bool:
        seen.append(("sent", data[VERB_AT]))
        return send_alone(self, number, data)

    def received(self: Engine, number: int, frame: Any, now_us: int) -> None:
        seen.append(("received", frame[VERB_AT]))
        receive(self, number, frame, now_us)

    monkeypatch.setattr(Server, "send_alone", sent)
    monkeypatch.setattr(Engine, "receive", received)
    return seen


def test_all_have_what_they_get_before_the_core_has_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q", durability="written")
            same, got = await other.queue("q", create=False), []

            async def consume() -> None:
                async for message in same.consume():
                    got.append(message.value)
                    await message.ack(wait=True)
                    if len(got) == COUNT:
                        return

            consuming = asyncio.ensure_future(consume())
            for number in range(COUNT):
                receipt = await queue.push(b"%d" % number)
                assert (receipt.durability, receipt.duplicate) == ("written", False)
            await consuming
            assert got == [b"%d" % number for number in range(COUNT)]
            assert (await queue.stats())["messages"] == 0

    run(main())
    hasty = [("sent", Verb.PUSH), ("sent", Verb.DELIVER), ("received", Verb.PUSH)]
    found = sum(seen[at : at + 3] == hasty for at in range(len(seen)))
    assert found >= COUNT // 2, "the first one, and those that find the last not acknowledged"


@pytest.mark.parametrize("why", ["a sync is under way", "no thread"])
def test_a_push_whose_sync_cannot_begin_goes_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    begun: list[str] = []

    class Busy:
        """One that the journal has given up."""

        busy = True

        def __init__(self, *_: object) -> None:
            if why == "no thread":
                raise RuntimeError("can't start new thread")

        def begin(self, *_: object) -> None:
            begun.append("begun")

        def stop(self) -> None:
            pass

    monkeypatch.setattr(runtime, "Syncing", Busy)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, _):
            queue = await fabric.queue("q")
            for number in range(COUNT):
                assert (await queue.push(b"%d" % number)).durability == "synced"
            assert (await queue.stats())["messages"] == COUNT

    run(main())
    assert begun == []


def test_a_synced_push_begins_its_sync_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    begin = Syncing.begin

    def counted(self: Syncing, disk: Any, name: str, *given: Any) -> None:
        begun.append(name)
        begin(self, disk, name, *given)

    monkeypatch.setattr(Syncing, "begin", counted)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q")
            same = await other.queue("q", create=False)
            for number in range(COUNT):
                assert (await queue.push(b"%d" % number)).durability == "synced"
                message = await same.pop()
                assert message is not None
                assert message.value == b"%d" % number
                await message.ack(wait=True)
            assert (await queue.stats())["messages"] == 0

    run(main())
    assert len(begun) >= COUNT // 2


def test_a_pop_that_waits_gets_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)

    async def main() -> None:
        async with two_clients(tmp_path) as (fabric, other):
            queue = await fabric.queue("q", durability="written")
            same = await other.queue("q", create=False)
            for number in range(COUNT):
                popping = asyncio.ensure_future(same.pop(timeout=30.0))
                for _ in range(2):  # it has begun, and the node has heard of it
                    await other.stats()
                await queue.push(b"%d" % number)
                message = await popping
                assert message is not None
                assert (message.value, message.deliveries) == (b"%d" % number, 1)
                await message.ack(wait=True)

    run(main())
    hasty = [("sent", Verb.PUSH), ("sent", Verb.POP), ("received", Verb.PUSH)]
    assert sum(seen[at : at + 3] == hasty for at in range(len(seen))) >= COUNT // 2


def test_a_node_that_makes_something_else_of_a_push_ends_and_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log says what was sent: the message, and that somebody has it."""

    async def main() -> None:
        async with (
            Node(Config(str(tmp_path), port=0)) as node,
            aio.connect(node.url) as fabric,
            aio.connect(node.url) as other,
        ):
            queue = await fabric.queue("q", durability="written")
            await queue.push(b"one")
            same = await other.queue("q", create=False)
            first = await same.pop(timeout=30.0)
            assert first is not None
            await first.ack(wait=True)
            failed = asyncio.Event()
            node._runtime.on_failure.append(failed.set)
            waiting = asyncio.ensure_future(same.pop(timeout=30.0))
            for _ in range(2):
                await other.stats()
            monkeypatch.setattr(Foreseen, "is_what", lambda *_: False)
            pushing = asyncio.ensure_future(queue.push(b"two"))
            await failed.wait()
            assert isinstance(node._runtime.failed, UnforeseenError)
            receipt, message = await pushing, await waiting
            assert message is not None
            assert (receipt.durability, message.value) == ("written", b"two")
        monkeypatch.undo()
        async with Node(Config(str(tmp_path), port=0)) as node, aio.connect(node.url) as fabric:
            figures = await (await fabric.queue("q", create=False)).stats()
            assert (figures["messages"], figures["leased"]) == (1, 1)

    run(main())
    assert "nothing acknowledged is lost" in caplog.text
