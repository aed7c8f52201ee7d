"""Queues: the same scripts everywhere. What order and priority mean across nodes is left open, as
the guarantees say: they hold on each node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conformance.conftest import Connect, refuses
from tests.node.test_cluster import wait_for

from penstock.errors import (
    ClosedError,
    ExistsError,
    FencedError,
    InvalidError,
    LeaseLostError,
    LimitError,
    NotFoundError,
)

LONG_S = 10.0  # for what will come
EMPTY = {"ready": 0, "leased": 0, "delayed": 0, "held": 0, "dead": 0, "messages": 0, "bytes": 0}


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % each for each in range(start, start + count)]


def figures(queue: Any, *names: str) -> tuple[int, ...]:
    told = queue.stats()
    return tuple(told[name] for name in names)


def counted(queue: Any, **expected: int) -> bool:
    told = queue.stats()
    return {name: told[name] for name in expected} == expected


def pop_all(queue: Any, count: int) -> list[Any]:
    """Exactly so many, from as many nodes as have some."""
    found: list[Any] = []
    while len(found) < count and (more := queue.pop_many(count - len(found), timeout=LONG_S)):
        found += more
    assert queue.pop() is None
    return found


def test_one_message(fabric):
    queue = fabric.queue("q")
    assert queue.pop() is None
    receipt = queue.push(b"v", key="k", headers={"h": b"1"}, timestamp=2.5)
    assert (receipt.count, receipt.duplicate) == (1, False)
    message = queue.pop(lease=20.0)
    assert (message.value, message.key, message.headers) == (b"v", b"k", {"h": b"1"})
    assert message.deliveries == 1
    assert message.timestamp == datetime.fromtimestamp(2.5, UTC)
    assert message.timestamp_us == 2_500_000
    assert (message.shard, message.position >= 0) == (receipt.shard, True)
    assert queue.pop() is None
    message.extend(60.0)
    message.ack(wait=True)
    assert counted(queue, **EMPTY, pushed=1)


def test_many_messages(fabric):
    queue = fabric.queue("q")
    seen: list[int] = []
    keys = [None if each % 2 else b"k%d" % each for each in range(600)]
    receipts = queue.push_many(values(600), keys=keys, batch=7, progress=seen.append)
    assert (receipts.count, seen[-1]) == (600, 600)
    assert figures(queue, "ready", "messages", "pushed") == (600, 600, 600)
    found = pop_all(queue, 600)
    assert {message.value: message.key for message in found} == dict(
        zip(values(600), keys, strict=True)
    )
    queue.ack(found[:300], wait=True)
    assert figures(queue, "leased", "messages") == (300, 300)
    queue.nack(found[300:])
    assert wait_for(lambda: counted(queue, ready=300, leased=0))
    again = pop_all(queue, 300)
    assert {message.deliveries for message in again} == {2}
    for message in again:
        message.ack()
    queue.flush()
    assert (queue.refused, counted(queue, **EMPTY)) == (0, True)


def test_batches(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(100), batch=5)
    assert queue.push_many([]).count == 0
    seen: list[bytes] = []
    while len(seen) < 100:
        delivery = queue.pop_batch(30, timeout=LONG_S)
        assert 0 < len(delivery) <= 30
        assert len(delivery.keys) == len(delivery.headers) == len(delivery.timestamps)
        assert set(delivery.deliveries) == {1}
        seen += delivery.values
        delivery.extend(60.0)
        delivery.ack(wait=True)
    assert sorted(seen) == sorted(values(100))
    assert queue.pop_batch() is None
    queue.push_many(values(4), batch=4)
    delivery = queue.pop_batch(timeout=LONG_S)
    delivery.ack(wait=True, rows=[0, 2])
    delivery.nack(rows=[1, 3])
    assert sorted(message.value for message in pop_all(queue, 2)) == [b"1", b"3"]


def test_consuming(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(300), batch=4)
    seen: list[bytes] = []
    with queue.consume(max_messages=100, prefetch=16) as consumer:
        for message in consumer:
            seen.append(message.value)
            message.ack()
    assert len(seen) == 100
    assert counted(queue, ready=200, leased=0)
    for delivery in queue.consume_batches(idle_timeout=LONG_S, max_messages=200):
        seen += delivery.values
        delivery.ack()
    queue.flush()
    assert sorted(seen) == sorted(values(300))
    assert (queue.refused, counted(queue, **EMPTY)) == (0, True)


def test_a_waiting_consumer_gets_what_comes(fabric):
    queue = fabric.queue("q")
    timer = threading.Timer(0.1, lambda: queue.push_many(values(30), batch=1))
    timer.start()
    with queue.consume(idle_timeout=LONG_S, max_messages=30) as consumer:
        seen = [message.value for message in consumer if message.ack(wait=True) is None]
    timer.join()
    assert sorted(seen) == sorted(values(30))
    timer = threading.Timer(0.1, lambda: queue.push(b"x"))
    timer.start()
    message = queue.pop(timeout=LONG_S)
    timer.join()
    assert message.value == b"x"
    assert queue.pop(timeout=0.02) is None


def test_looking_takes_nothing(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(9), batch=1)
    assert len(queue.peek()) == 1
    assert sorted(message.value for message in queue.peek(20)) == values(9)
    assert len(queue.peek(4)) == 4
    assert counted(queue, ready=9, leased=0)


def test_looking_at_what_no_pop_gets(fabric):
    queue, table = fabric.queue("q", lease=60), fabric.table("t")
    before_us = time.time_ns() // 1000
    queue.push_many(values(6))
    queue.push(b"later", delay=3600)
    queue.hold(b"held", id="h", after=[(table, "k")])
    taken = [message.value for message in queue.pop_many(2)]
    assert sorted(message.value for message in queue.look("leased")) == sorted(taken)
    assert all(each.until_us > before_us + 50_000_000 for each in queue.look("leased"))
    (delayed,) = queue.look("delayed")
    assert delayed.value == b"later"
    assert delayed.until_us > before_us + 3_500_000_000
    assert [message.value for message in queue.look("held")] == [b"held"]
    assert counted(queue, ready=4, leased=2)
    with pytest.raises(InvalidError, match="delayed, leased, held"):
        queue.look("gone")


def test_a_lease_runs_out(fabric):
    queue = fabric.queue("q", lease=0.2)
    queue.push(b"x")
    first = queue.pop()
    second = queue.pop(timeout=LONG_S, lease=30.0)
    assert (first.deliveries, second.deliveries) == (1, 2)
    with pytest.raises(LeaseLostError):
        first.ack(wait=True)
    with pytest.raises(LeaseLostError):
        first.extend(5.0)
    second.ack(wait=True)
    with pytest.raises(InvalidError):
        fabric.queue("other").ack([second])
    told: list[Any] = []
    before, queue.on_refused = queue.refused, told.append
    assert queue.on_refused is not None
    first.ack()
    queue.flush()
    assert (queue.refused - before, len(told)) == (1, 1)


def test_dead_letters(fabric):
    queue = fabric.queue("q", max_deliveries=2)
    queue.push_many(values(6), batch=1)
    for message in pop_all(queue, 6):
        message.nack()
    for message in pop_all(queue, 6):
        message.nack()
    assert wait_for(lambda: counted(queue, dead=6, ready=0, messages=6))
    assert sorted(message.value for message in queue.dead.peek(10)) == values(6)
    assert queue.dead.redrive(4) == 4
    assert counted(queue, dead=2, ready=4)
    for message in pop_all(queue, 4):
        message.dead()
    assert wait_for(lambda: counted(queue, dead=6))
    assert queue.dead.purge() == 6
    assert queue.dead.redrive() == 0
    assert counted(queue, **EMPTY)


def test_purging_leaves_what_is_leased(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(40), batch=2)
    leased = queue.pop_many(6)
    assert queue.purge() == 40 - len(leased)
    queue.ack(leased, wait=True)
    assert counted(queue, **EMPTY)


def test_ids_are_stored_once(fabric):
    queue = fabric.queue("q")
    ids = [f"id-{each}" for each in range(20)]
    assert not queue.push(b"0", id=ids[0]).duplicate
    assert queue.push(b"0", id=ids[0]).duplicate
    receipts = queue.push_many(values(20), ids=ids)
    assert [each.duplicate for each in receipts] == [True, *[False] * 19]
    assert sorted(message.value for message in pop_all(queue, 20)) == sorted(values(20))
    with pytest.raises(InvalidError):
        queue.push_many(values(2), ids=["a"])


def test_held_messages_are_released_by_their_ids(fabric):
    queue = fabric.queue("q")
    ids = [f"id-{each}" for each in range(12)]
    for each in ids:
        queue.push(each.encode(), id=each, hold=True)
    assert queue.pop() is None
    assert counted(queue, held=12, messages=12)
    assert queue.release([*ids[:5], "nobody"]) == ["released"] * 5 + ["unknown"]
    assert queue.release([ids[0], ids[7]]) == ["done", "released"]
    found = sorted(message.value for message in pop_all(queue, 6))
    assert found == sorted(each.encode() for each in [*ids[:5], ids[7]])
    with pytest.raises(InvalidError):
        queue.push(b"x", hold=True)


def test_a_delayed_message_is_released_by_its_id(fabric):
    queue = fabric.queue("q")
    queue.push(b"later", id="a", delay=3600)
    queue.push(b"no id", delay=3600)
    queue.push(b"now", id="b")
    assert queue.release(["a", "b", "nobody"]) == ["released", "done", "unknown"]
    assert counted(queue, ready=2, delayed=1)
    assert sorted(message.value for message in pop_all(queue, 2)) == [b"later", b"now"]
    assert queue.release(["a"]) == ["done"], "it is leased"


def test_all_leases_that_cannot_be_extended_are_told(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(40), ids=[f"id-{each}" for each in range(40)])
    delivery = queue.pop_batch(40, lease=3600)
    shards = list(dict.fromkeys(delivery.shards))
    given_back = set(shards[::2])
    lost = [row for row, shard in enumerate(delivery.shards) if shard in given_back]
    delivery.extend(3600)
    delivery.nack(rows=lost)
    queue.flush()
    asked = [*lost[:-1], *(row for row in range(len(delivery)) if row not in lost)]
    with pytest.raises(LeaseLostError) as caught:
        delivery.extend(3600, asked)
    assert sorted(caught.value.rows) == lost[:-1]


def test_delays_and_lifetimes(fabric):
    queue = fabric.queue("q")
    queue.push(b"soon", delay=0.3)
    queue.push(b"far", at=datetime.now(UTC) + timedelta(hours=1))
    queue.push(b"short", ttl=0.2)
    queue.push_many(values(3), delay=3600, batch=1)
    assert counted(queue, delayed=5, messages=6)
    assert wait_for(lambda: counted(queue, ready=1, delayed=4, messages=5))
    assert [message.value for message in pop_all(queue, 1)] == [b"soon"]
    message = queue.pop()
    assert message is None


def test_priorities_are_kept_apart(fabric):
    queue = fabric.queue("q")
    for priority in (0, 9, 15):
        queue.push_many([b"%d" % priority] * 5, priority=priority, batch=1)
    found = pop_all(queue, 15)
    assert sorted(int(message.value) for message in found) == [0] * 5 + [9] * 5 + [15] * 5


def test_an_ordered_queue(fabric):
    queue = fabric.queue("q", ordered=True)
    queue.push_many(values(30), batch=4)
    queue.push(b"30")
    assert queue.options.ordered == "queue"
    for expected in values(31):
        message = queue.pop(timeout=LONG_S)
        assert message.value == expected
        assert queue.pop() is None
        message.ack(wait=True)
    for wrong in ({"priority": 1}, {"delay": 1.0}, {"id": "x"}):
        with pytest.raises(InvalidError):
            queue.push(b"x", **wrong)


def test_a_queue_ordered_by_key(fabric):
    queue = fabric.queue("q", ordered="key")
    keys = [b"k%d" % (each % 8) for each in range(40)]
    queue.push_many(values(40), keys=keys, batch=10)
    assert figures(queue, "messages", "ready") == (40, 8)
    seen: dict[bytes, list[int]] = {}
    with queue.consume(max_messages=40, idle_timeout=LONG_S) as consumer:
        for message in consumer:
            seen.setdefault(message.key, []).append(int(message.value))
            message.ack(wait=True)
    assert seen == {b"k%d" % key: [*range(key, 40, 8)] for key in range(8)}
    with pytest.raises(InvalidError):
        queue.push(b"x")


def test_named_producers(fabric):
    queue = fabric.queue("q")
    for name in ("p1", "p2", "p3", "p4"):
        producer = queue.producer(name)
        assert (producer.name, producer.stored) == (name, 0)
        producer.push(b"0")
        producer.push_many(values(4, 1), batch=2)
        again = queue.producer(name)
        assert again.stored == 5
        with pytest.raises(FencedError):
            producer.push(b"late")
        again.push(b"5")
        with pytest.raises(InvalidError):
            again.push(b"x", id="x")
    found = sorted(int(message.value) for message in pop_all(queue, 24))
    assert found == sorted([*range(6)] * 4)


def test_a_queue_comes_and_goes(fabric):
    with pytest.raises(NotFoundError):
        fabric.queue("q", create=False)
    queue = fabric.queue("q", lease=5.0)
    assert fabric.queue("q", create=False).info == queue.info
    with pytest.raises(ExistsError):
        fabric.queue("q", lease=6.0)
    queue.configure(lease=6.0)
    assert fabric.queue("q", lease=6.0).info == queue.info
    with pytest.raises(InvalidError):
        queue.configure()
    queue.push(b"x")
    assert queue.delete()
    assert not queue.delete()
    refuses(queue.pop)
    refuses(lambda: queue.push(b"x"))
    assert fabric.queue("q").pop() is None


def test_acks_are_in_before_their_queue_is_deleted(connect: Connect) -> None:
    fabric = connect("delete")
    queue = fabric.queue("q", lease=60)
    queue.push_many([b"x"] * 100)
    for message in queue.pop_many(100, timeout=5.0):
        message.ack()
    assert queue.delete()
    assert queue.refused == 0
    fabric.close()  # nothing waits that is refused


def test_a_queue_that_is_gone_has_acks_that_are_refused(connect: Connect) -> None:
    fabric = connect("gone")
    queue = fabric.queue("q", lease=60)
    queue.push_many([b"x"] * 3)
    messages = queue.pop_many(3, timeout=5.0)
    assert fabric.delete_queue("q")  # by name: nobody has popped through that
    for message in messages:
        message.ack()
    assert not queue.delete()
    assert queue.refused in (0, len(messages))  # a cluster's node that has not heard takes them
    fabric.close()


def test_an_ack_after_the_end_is_refused(connect: Connect) -> None:
    fabric = connect("after")
    queue = fabric.queue("q", lease=60)
    queue.push_many([b"1", b"2", b"3"])
    one, two, three = queue.pop_many(3)
    one.ack()
    fabric.close()
    for late in (two, three):
        with pytest.raises(ClosedError):
            late.ack()


def test_an_ack_that_is_refused_is_told_once(
    fabric: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue = fabric.queue("q", lease=60)
    queue.push_many([b"1", b"2"])
    for message in queue.pop_many(2):
        message.nack()
        message.ack()
    queue.flush()
    assert queue.refused == 2
    told = [each.message for each in caplog.records if "an ack was refused" in each.message]
    assert len(told) == 1
    assert "lease" in told[0]


def test_what_was_stored_is_told_whatever_fails(fabric: Any) -> None:
    queue = fabric.queue("many")
    with pytest.raises(InvalidError) as failed:
        queue.push_many([b"x"] * 5000 + ["y"], batch=1000)
    assert failed.value.__notes__ == ["5,000 messages were stored before, and no others"]
    assert queue.stats()["messages"] == 5000

    def broken() -> Iterator[bytes]:
        yield from [b"x"] * 2500
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError) as raised:
        queue.push_many(broken(), batch=1000)
    assert raised.value.__notes__ == ["2,000 messages were stored before, and no others"]
    assert queue.stats()["messages"] == 7000


def test_a_full_queue_says_how_full(fabric: Any) -> None:
    # On one shard, so that the node that is asked knows of all its messages, also of a cluster's.
    queue = fabric.queue("small", max_messages=10, ordered=True)
    with pytest.raises(LimitError, match="has 0 messages of at most 10: no room for 11, ever"):
        queue.push_many([b"x"] * 11)
    queue.push_many([b"x"] * 8)
    with pytest.raises(LimitError, match="has 8 messages of at most 10: no room for 3 more"):
        queue.push_many([b"x"] * 3)
    assert queue.stats()["messages"] == 8


def test_no_node_takes_more_than_a_queue_may_have(fabric: Any) -> None:
    queue, stored = fabric.queue("small", max_messages=10), []

    def fill() -> None:
        for _ in range(3 * 10 + 1):  # a cluster's node may not have the copies of the others' yet
            queue.push(b"x")
            stored.append(b"x")

    with pytest.raises(LimitError, match="of at most 10: no room for 1 more"):
        fill()
    assert 10 <= len(stored) <= 3 * 10
    assert queue.stats()["messages"] == len(stored)
