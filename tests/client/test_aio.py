"""The asyncio shell against a real node in the same event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Refusal, aio
from penstock.client.aio_connection import AsyncConnection
from penstock.client.aio_wire import Wire
from penstock.client.settle import SettleRequest
from penstock.client.welcome import new_hello
from penstock.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    InvalidError,
    LeaseLostError,
    LimitError,
    UnavailableError,
)
from penstock.node.node import Config, Node

Test = Callable[[aio.AsyncFabric], Awaitable[None]]
IDLE_S = 0.05


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[aio.AsyncFabric]:
    async with Node(Config(str(path / "data"), port=0, shards=16)) as node:
        host, port = node.address
        async with aio.connect(f"{host}:{port}", timeout=10) as fabric:
            yield fabric


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    async def with_fabric(test: Test) -> None:
        async with asyncio.timeout(20), served(tmp_path) as fabric:
            await test(fabric)

    return lambda test: asyncio.run(with_fabric(test))


async def until_zero(queue: aio.AsyncQueue, figure: str) -> None:
    """Lets the event loop do what nobody waits for."""
    while (await queue.stats())[figure]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_push_pop_and_settle(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", lease=30)
        receipt = await queue.push(b"v", key="k", headers={"h": b"1"})
        assert receipt.durability == "synced"
        message = await queue.pop()
        assert message is not None
        assert (message.value, message.key, message.headers) == (b"v", b"k", {"h": b"1"})
        await message.extend(60)
        await message.nack()
        again = await queue.pop(timeout=5)
        assert again is not None
        assert again.deliveries == 2
        with pytest.raises(LeaseLostError):
            await message.ack(wait=True)
        await again.dead()
        await queue.flush()
        assert [dead.value for dead in await queue.dead.peek(3)] == [b"v"]
        assert await queue.dead.redrive() == 1
        assert [each.value for each in await queue.peek()] == [b"v"]
        assert await queue.purge() == 1
        assert await queue.dead.purge() == 0
        assert await queue.pop() is None

    run(test)


def test_buffered_acks_need_not_be_awaited(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push_many([b"x"] * 2500)
        for message in await queue.pop_many(1500):
            message.ack()
        delivery = await queue.pop_batch()
        assert delivery is not None
        assert len(delivery.values) == len(list(delivery)) == 1000
        delivery.ack()
        await until_zero(queue, "messages")
        assert queue.refused == 0

    run(test)


async def popped(queue: aio.AsyncQueue) -> aio.AsyncMessage:
    message = await queue.pop(timeout=5)
    assert message is not None
    return message


def test_acks_go_on_although_whoever_is_told_of_refusals_fails(run, caplog):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue, told = await fabric.queue("q"), asyncio.Event()

        def fail(refusal: Refusal) -> None:
            told.set()
            raise RuntimeError("not my day")

        queue.on_refused = fail
        await queue.push(b"x")
        message = await popped(queue)
        await message.nack()
        again = await popped(queue)
        message.ack()
        await told.wait()
        again.ack()
        await until_zero(queue, "messages")
        assert queue.refused == 1

    run(test)
    assert "not my day" in caplog.text


def test_acks_go_on_although_one_could_not_be_sent(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue, told = await fabric.queue("q"), asyncio.Event()
        queue.on_refused = lambda refusal: told.set()
        settler, send = queue._settler, queue._settler.send

        def fail(request: SettleRequest) -> None:
            settler.send = send
            raise LimitError("too many")

        await queue.push(b"x")
        message = await popped(queue)
        settler.send = fail
        message.ack()
        await told.wait()
        message.ack()
        await until_zero(queue, "messages")

    run(test)


def test_consume(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push_many([b"%d" % each for each in range(3000)], batch=100)
        seen = []
        async with queue.consume(max_messages=1000, prefetch=300) as messages:
            async for message in messages:
                seen.append(message.value)
                message.ack()
        assert (await queue.stats())["ready"] == 2000
        async with queue.consume(prefetch=300) as messages:
            for _ in range(500):
                message = await anext(messages)
                seen.append(message.value)
                await message.ack()
        figures = await queue.stats()
        assert (figures["ready"], figures["leased"]) == (1500, 0)
        async for delivery in queue.consume_batches(idle_timeout=IDLE_S):
            seen += delivery.values
            await delivery.ack(wait=True)
        assert len(set(seen)) == len(seen) == 3000

    run(test)


def test_a_loop_left_without_a_block_is_ended_by_the_event_loop(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        await queue.push_many([b"a", b"b", b"c"])
        async for message in queue.consume():
            message.ack()
            break
        await until_zero(queue, "leased")
        assert (await queue.stats())["ready"] == 2

    run(test)


def test_a_cancelled_pop_takes_no_message(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        waiting = [asyncio.create_task(queue.pop(timeout=30)) for _ in range(20)]
        await queue.stats()
        for task in waiting:
            task.cancel()
        await queue.push(b"x")
        await asyncio.wait(waiting)
        message = await queue.pop(timeout=5)
        assert message is not None

    run(test)


def test_more_pushes_at_once_than_may_be_in_flight(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q", durability="memory")
        await asyncio.gather(*(queue.push(b"%d" % each) for each in range(3000)))
        values = {message.value for message in await queue.pop_many(5000)}
        assert len(values) == 3000

    run(test)


def test_a_refused_push_does_not_take_others_along(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        small, large = await fabric.queue("small", max_messages=1), await fabric.queue("large")
        pushes = [(small if each % 8 == 0 else large).push(b"x") for each in range(256)]
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
        assert sum(isinstance(outcome, LimitError) for outcome in outcomes) == 31
        assert (await large.stats())["messages"] == 224

    run(test)


def test_a_refused_table_write_does_not_take_others_along(run):
    """Many at once, to one entry: the node recognises each of them, and one conflict is one."""

    async def test(fabric: aio.AsyncFabric) -> None:
        table = await fabric.table("t")
        creating = [table.put("k", b"%d" % each, if_version=0) for each in range(60)]
        outcomes = await asyncio.gather(*creating, return_exceptions=True)
        assert sum(type(outcome) is ConflictError for outcome in outcomes) == 59
        versions = await asyncio.gather(*(table.append("l", b"x") for _ in range(60)))
        assert len(set(versions)) == 60
        assert await table.get("l") == b"x" * 60

    run(test)


def test_topics(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        topic = await fabric.topic("t", partitions=3)
        await topic.publish(b"first", key="k")
        keys = [b"%d" % (each % 9) for each in range(300)]
        await topic.publish_many([b"%d" % each for each in range(300)], keys=keys, batch=50)
        count = 0
        async with topic.subscribe("g", idle_timeout=IDLE_S) as messages:
            async for message in messages:
                count += len(message.value) > 0
                if count == 100:
                    await messages.commit()
                    break
            assert messages.positions == {}
        batches = topic.subscribe("g", idle_timeout=IDLE_S, batches=True)
        count += sum([batch.count async for _, batch in batches])
        await batches.commit()
        assert count == 301
        assert await topic.committed("g") == dict(
            enumerate(end for _, end in await topic.offsets())
        )
        bounds = await topic.offsets()
        found = [[b.count async for b in topic.read(each)] for each in range(3)]
        assert [sum(counts) for counts in found] == [end for _, end in bounds]
        follow = topic.read(0, "end", follow=True, idle_timeout=IDLE_S)
        assert [batch async for batch in follow] == []
        producer = await topic.producer("p", 1)
        await producer.push(b"x")
        assert producer.stored == 1

    run(test)


def test_tables_watches_and_sessions(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        table = await fabric.table("t")
        async with await table.watch("a") as changes:
            version = await table.put("a", b"1")
            entry = await anext(changes)
            assert (entry.key, entry.value, entry.version) == (b"a", b"1", version)
        with pytest.raises(ConflictError):
            await table.put("a", b"2", if_version=0)
        async with await fabric.session(ttl=5) as session:
            await table.put("b", b"2", session=session)
            assert [item async for item in table.items()] == [(b"a", b"1"), (b"b", b"2")]
        keys = table.keys()
        assert [key async for key in keys] == [b"a"]

    run(test)


def test_transactions(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue, table = await fabric.queue("q"), await fabric.table("t")
        await queue.push(b"in")
        message = await queue.pop()
        assert message is not None
        async with fabric.transaction() as transaction:
            transaction.ack(message)
            transaction.push(queue, b"out")
            transaction.put(table, "k", b"v")
        following = await queue.pop()
        assert following is not None
        assert following.value == b"out"
        assert await table.get("k") == b"v"

    run(test)


def test_wrong_input_is_refused(run):
    async def test(fabric: aio.AsyncFabric) -> None:
        queue = await fabric.queue("q")
        for call in (
            lambda: queue.push("text"),  # type: ignore[arg-type]
            lambda: queue.push_many(b"text"),  # type: ignore[arg-type]
            lambda: queue.pop(timeout=-1),
            lambda: fabric.queue("q", leese=1),
        ):
            with pytest.raises(InvalidError):
                await call()

    run(test)


def in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 20))


def test_a_node_that_comes_back_is_found_again(tmp_path):
    async def test() -> None:
        async with Node(Config(str(tmp_path / "data"), port=0)) as node:
            host, port = node.address
            fabric = await aio.connect(f"{host}:{port}", timeout=10)
            queue = await fabric.queue("q")
            consumer = queue.consume()
            await queue.push(b"before")
            await (await anext(consumer)).ack(wait=True)
        pushes = asyncio.gather(*(queue.push(b"%d" % each) for each in range(50)))
        await asyncio.sleep(0)
        async with Node(Config(str(tmp_path / "data"), host, port)):
            await pushes
            seen = {(await anext(consumer)).value for _ in range(50)}
            assert seen == {b"%d" % each for each in range(50)}
            await consumer.close()
            await fabric.close()

    in_loop(test())


def test_a_loop_left_while_there_is_no_node_takes_no_message(tmp_path):
    async def test() -> None:
        async with Node(Config(str(tmp_path / "data"), port=0)) as node:
            host, port = node.address
            fabric = await aio.connect(f"{host}:{port}", timeout=10)
            queue = await fabric.queue("q")
            consumer = queue.consume()
            await queue.push(b"before")
            await (await anext(consumer)).ack(wait=True)
        while fabric._connection._wire is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        leaving = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        async with Node(Config(str(tmp_path / "data"), host, port)):
            await leaving
            await queue.push(b"after")
            message = await queue.pop(timeout=5)
            assert message is not None
            assert (message.value, message.deliveries) == (b"after", 1)
            await message.ack(wait=True)
            assert (await queue.stats())["dead"] == 0
            await fabric.close()

    in_loop(test())


def test_without_a_node_calls_end_at_their_deadline(tmp_path):
    async def test() -> None:
        async with Node(Config(str(tmp_path / "data"), port=0)) as node:
            host, port = node.address
            fabric = await aio.connect(f"{host}:{port}", timeout=0.3)
            queue = await fabric.queue("q")
        with pytest.raises(DeadlineError, match="no connection"):
            await queue.push(b"x")
        with pytest.raises(DeadlineError, match="no connection"):
            await anext(queue.consume(idle_timeout=0.01))
        with pytest.raises(DeadlineError, match="cannot connect"):
            await aio.connect(f"{host}:{port}", timeout=0.1)
        await fabric.close()

    in_loop(test())


def test_a_deadline_says_why_there_is_no_connection():
    """The attempt that it cuts off knows less than the one before."""
    answers: list[Exception | None] = [None, ConnectionRefusedError("refused"), None]

    async def dial(wire: Wire) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer
        await asyncio.Event().wait()

    async def test() -> None:
        for said in ("cannot connect: it took too long", "cannot connect: refused"):
            with pytest.raises(DeadlineError, match=said):
                await AsyncConnection(dial, new_hello("a test"), 0.3).open()
        assert not answers

    in_loop(test())


def test_after_close_nothing_works(tmp_path):
    async def test() -> None:
        async with served(tmp_path) as fabric:
            queue = await fabric.queue("q")
            waiting = asyncio.create_task(queue.pop(timeout=10))
            await queue.stats()
            await fabric.close()
            with pytest.raises(ClosedError):
                await waiting
            with pytest.raises(ClosedError):
                await queue.push(b"x")

    in_loop(test())


@pytest.mark.parametrize(
    "reply", [b"\x10\x00\x00\x00\x09\x01" + bytes(10), b"HTTP/1.1 400 Bad\r\n"]
)
def test_a_peer_that_is_no_node_is_an_error(reply):
    async def test() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(reply)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            with pytest.raises((InvalidError, UnavailableError)):
                await aio.connect(f"{host}:{port}", timeout=1)

    in_loop(test())
