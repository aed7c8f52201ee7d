"""Queues over three node processes: whoever waits gets a message, whichever node has it, and sends
nothing while there is none."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock import aio
from penstock.client.aio_wire import Wire
from penstock.wire import messages as m
from penstock.wire.frames import FRAME, FRAME_BYTES, Verb

_producers = count(7)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    started = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        started.start(1, 2, 3)
        wait_for(lambda: started.whole(1, 2, 3) and started.status(1)["level"] >= 2)
        wait_for(at_rest(started), 60.0)  # clients ask anew while shards move
        yield started
    finally:
        started.end()


def at_rest(nodes: Nodes) -> Callable[[], bool]:
    """Whether the map has not changed for a second."""
    versions: dict[int, float] = {}  # and when each was seen first

    def same() -> bool:
        version: int = nodes.status(1)["version"]
        return time.monotonic() - versions.setdefault(version, time.monotonic()) >= 1.0

    return same


class Pushes:
    """Pushes that go to a node of choice."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.shards = {number: nodes.owned_by(number) for number in (1, 2, 3)}
        self._producer = next(_producers)
        self._sequences = {number: count() for number in (1, 2, 3)}

    def push(self, stream: int, node: int, value: bytes) -> None:
        with self.nodes.client(node) as client:
            sequence = next(self._sequences[node])
            assert client.push(stream, self.shards[node], value, self._producer, sequence)


def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what clients of this process send from now on; questions for a map aside."""
    counts: Counter[str] = Counter()
    send = Wire.send

    def counted(self: Wire, parts: list[Any]) -> None:
        whole = b"".join(parts)
        verb = FRAME.unpack_from(whole)[1]
        call = m.read_request(whole[FRAME_BYTES:]) if verb == Verb.CALL else None
        if not isinstance(call, m.ClusterMap):
            counts[Verb(verb).name if call is None else type(call).__name__] += 1
        send(self, parts)

    monkeypatch.setattr(Wire, "send", counted)
    return counts


def quiet(counts: Counter[str], seconds: float) -> bool:
    """Whether so long nothing is sent. Not at once: it begins, and owners may change."""
    for _ in range(8):
        counts.clear()
        time.sleep(seconds)
        if not counts:
            return True
    return False


def few_nodes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in ("pops", "aio_fanout"):
        monkeypatch.setattr(f"penstock.client.{module}.FEW_NODES", most)


def pop(queue: penstock.Queue) -> bytes:
    message = queue.pop(timeout=20.0)
    assert message is not None
    message.ack(wait=True)
    return bytes(message.value)


def consume(queue: penstock.Queue) -> bytes:
    with queue.consume(idle_timeout=20.0, max_messages=1) as consumer:
        for message in consumer:
            message.ack(wait=True)
            return bytes(message.value)
    raise AssertionError("nothing came")


@pytest.mark.parametrize("most", [8, 0], ids=["few nodes", "many nodes"])
@pytest.mark.parametrize("take", [pop, consume])
def test_a_message_on_any_node_reaches_who_waits(nodes, monkeypatch, take, most):
    few_nodes(monkeypatch, most)
    url = f"penstock://{nodes.processes[1].listen}"
    with penstock.connect(url, timeout=20.0) as fabric, ThreadPoolExecutor() as pool:
        queue = fabric.queue(f"{take.__name__}-{most}")
        pushes = Pushes(nodes)
        for node in (2, 1, 3, 2):
            waiting: Future[bytes] = pool.submit(take, queue)
            time.sleep(0.3)  # it has found nothing, and waits
            assert not waiting.done()
            began = time.monotonic()
            pushes.push(queue.info.id, node, b"%d" % node)
            assert waiting.result(10.0) == b"%d" % node
            assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("most", [8, 0], ids=["few nodes", "many nodes"])
def test_a_message_on_any_node_reaches_tasks_that_wait(nodes, monkeypatch, most):
    few_nodes(monkeypatch, most)

    async def use() -> None:
        url = "penstock://" + ",".join(each.listen for each in nodes.processes.values())
        async with aio.connect(url, timeout=20.0) as fabric:
            queue = await fabric.queue(f"aio-{most}")
            pushes = Pushes(nodes)
            waiting = [asyncio.create_task(queue.pop(timeout=20.0)) for _ in range(6)]
            await asyncio.sleep(0.3)
            for node in (1, 2, 3):
                for turn in range(2):
                    value = b"%d-%d" % (node, turn)
                    await asyncio.to_thread(pushes.push, queue.info.id, node, value)
            found = await asyncio.gather(*waiting)
            assert len({each.value for each in found if each is not None}) == 6
            async with queue.consume(idle_timeout=20.0) as consumer:
                await asyncio.to_thread(pushes.push, queue.info.id, 2, b"last")
                async for message in consumer:
                    assert message.value == b"last"
                    break

    asyncio.run(use())


@pytest.mark.parametrize("take", [pop, consume])
@pytest.mark.parametrize("most", [8, 0], ids=["few nodes", "many nodes"])
def test_who_waits_sends_nothing(nodes, monkeypatch, take, most):
    few_nodes(monkeypatch, most)
    url = f"penstock://{nodes.processes[2].listen}"
    counts = sent(monkeypatch)
    with penstock.connect(url, timeout=20.0) as fabric, ThreadPoolExecutor() as pool:
        queue = fabric.queue(f"idle-{take.__name__}-{most}")
        waiting = [pool.submit(take, queue) for _ in range(3)]
        assert quiet(counts, 1.2)
        queue.push_many([b"a", b"b", b"c"], batch=1)
        assert sorted(each.result(10.0) for each in waiting) == [b"a", b"b", b"c"]


def test_pops_of_all_that_was_pushed_take_few_trips(nodes, monkeypatch):
    """As the list says where messages are, almost every trip brings some."""
    few_nodes(monkeypatch, 0)
    with penstock.connect(f"penstock://{nodes.processes[1].listen}", timeout=20.0) as fabric:
        queue = fabric.queue("trips")
        values = [b"%d" % number for number in range(300)]
        queue.push_many(values, batch=1)
        counts = sent(monkeypatch)
        seen = []
        while (message := queue.pop(timeout=0.5)) is not None:
            seen.append(message.value)
            message.ack()
        assert sorted(seen) == sorted(values)
        assert counts["POP"] <= 300 + 2 * 3
        assert counts["WhereIs"] <= 10


def test_a_subscription_by_the_list_gets_everything(nodes, monkeypatch):
    few_nodes(monkeypatch, 0)
    with penstock.connect(f"penstock://{nodes.processes[1].listen}", timeout=20.0) as fabric:
        queue = fabric.queue("by-the-list")
        values = [b"%d" % number for number in range(400)]
        queue.push_many(values[:200], batch=3)
        seen = []
        with queue.consume(idle_timeout=3.0, prefetch=7) as consumer:
            for message in consumer:
                seen.append(bytes(message.value))
                message.ack()
                if len(seen) == 150:
                    queue.push_many(values[200:], batch=1)
        assert sorted(seen) == sorted(values)
        assert queue.refused == 0


def test_an_ordered_queue_is_waited_for_where_it_is(nodes, monkeypatch):
    with penstock.connect(f"penstock://{nodes.processes[3].listen}", timeout=20.0) as fabric:
        queue = fabric.queue("in-order", ordered=True)
        counts = sent(monkeypatch)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(pop, queue)
            time.sleep(0.3)
            assert counts["POP"] >= 2  # a look, and one that is parked
            assert "WhereIs" not in counts
            queue.push(b"x")
            assert waiting.result(10.0) == b"x"


def test_without_lists_all_nodes_are_waited_on(nodes, monkeypatch):
    monkeypatch.setattr("penstock.client.aio_link.LISTS", "not known")
    few_nodes(monkeypatch, 0)
    with penstock.connect(f"penstock://{nodes.processes[1].listen}", timeout=20.0) as fabric:
        queue = fabric.queue("unlisted")
        counts = sent(monkeypatch)
        pushes = Pushes(nodes)
        for take in (pop, consume):
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(take, queue)
                time.sleep(0.3)
                pushes.push(queue.info.id, 3, b"x")
                assert waiting.result(10.0) == b"x"
        assert "WhereIs" not in counts


def consume_on(nodes: Nodes, number: int, stream: int, acked: list[bytes]) -> None:
    """Everything that comes to one node, until nothing has come for a while."""
    with nodes.client(number) as client:
        while found := client.pop(stream, messages=5, wait_ms=3000):
            for value, token in found:
                assert client.ack(token)
                acked.append(bytes(value))


def knows(nodes: Nodes, number: int, stream: int) -> bool:
    return stream in [each["id"] for each in nodes.call(number, m.Streams("queue"))]


def test_messages_move_to_nodes_where_consumers_wait(nodes):
    with nodes.client(2) as client:
        stream = client.open("uneven")["id"]
    for number in (1, 3):
        wait_for(partial(knows, nodes, number, stream))
    acked: dict[int, list[bytes]] = {1: [], 3: []}
    pushes, values = Pushes(nodes), [b"%d" % number for number in range(120)]
    with ThreadPoolExecutor() as pool:
        consumers = [pool.submit(consume_on, nodes, n, stream, acked[n]) for n in acked]
        for value in values:
            pushes.push(stream, 2, value)
        for each in consumers:
            each.result(60.0)
    assert sorted(acked[1] + acked[3]) == sorted(values)
    assert acked[1]
    assert acked[3]
    with nodes.client(2) as client:
        assert client.pop(stream) == []
