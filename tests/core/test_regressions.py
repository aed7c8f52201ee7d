"""Defects that were found once, each as the shortest life that shows it."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.canonical import state_of
from tests.core.harness import Node, push_body

from penstock.core import queue_snapshot
from penstock.core.queues import MAX_WAITERS
from penstock.core.table import ENTRY_OVERHEAD
from penstock.errors import LimitError, ProtocolError
from penstock.wire import messages as m
from penstock.wire.batch import checksum_of
from penstock.wire.encode import encode_batch
from penstock.wire.frames import Flag, Settle, SettleItem, Verb


def test_ordered_queue_does_not_lease_around_a_gap() -> None:
    node = Node()
    queue = node.open("queue", "q", ordered="queue")
    node.push(queue, [b"0", b"1", b"2"], node.fabric.kernel.shard_of(b"q").id)
    first, second, _ = node.popped(queue, 3)
    for position, count in ((second.position, 1), (first.position, 3)):
        node.settle(queue, [SettleItem(Settle.NACK, first.shard, count, first.grant, position, 0)])
    order = []
    while got := node.popped(queue, 3):
        order += [one.value for one in got]
        for one in got:
            node.ack(queue, one)
    assert order == [b"0", b"1", b"2"]


def test_a_better_message_in_a_known_shard_goes_first() -> None:
    node = Node()
    queue = node.open("queue", "q")
    node.push(queue, [b"low"], 0)
    node.push(queue, [b"middle"], 1, priority=5)
    node.push(queue, [b"high"], 0, priority=9)
    order = [node.popped(queue)[0].value for _ in range(3)]
    assert order == [b"high", b"middle", b"low"]


def test_a_lease_that_is_extended_twice_at_once_runs_out_once() -> None:
    node = Node()
    queue = node.open("queue", "q", max_deliveries=0)
    node.push(queue, [b"a", b"b"])
    got = node.popped(queue, 2)
    items = [SettleItem(Settle.EXTEND, o.shard, 1, o.grant, o.position, 5000) for o in got]
    node.settle(queue, items)
    node.tick(5_000_000)
    assert [one.deliveries for one in node.popped(queue, 5)] == [2, 2]


def test_a_lease_that_is_shortened_does_not_wait_for_longer_ones() -> None:
    node = Node()
    queue = node.open("queue", "q")
    node.push(queue, [b"long"])
    node.push(queue, [b"short"])
    node.popped(queue, lease_ms=9000)
    node.tick(1_000_000)
    short = node.popped(queue, lease_ms=9000)[0]
    node.ack(queue, short, Settle.EXTEND, 5000)
    node.tick(5_000_000)
    assert [one.value for one in node.popped(queue, 5)] == [b"short"]


def test_what_is_in_memory_only_does_not_vouch_for_the_log() -> None:
    """A committed entry of level memory says nothing about those before it."""
    node = Node(1, lazy=True)
    table = node.open("table", "t")
    queue = node.open("queue", "q", durability="memory")
    node.send(Verb.CALL, msgspec.msgpack.encode(m.Put(table, b"k", b"v")))
    node.push(queue, [b"x"])
    get = node.send(Verb.CALL, msgspec.msgpack.encode(m.Get(table, b"k")))
    assert not node.has_answer(get)
    node.commit()
    assert node.answer(get).value()["value"] == b"v"


def test_a_full_table_takes_an_entry_that_does_not_grow() -> None:
    node = Node()
    table = node.open("table", "t", max_bytes=ENTRY_OVERHEAD + 10)
    node.call(m.Put(table, b"k", b"123456789"))
    node.call(m.Put(table, b"k", b"987654321"))
    for key, value in ((b"k", b"1234567890"), (b"l", b"")):
        with pytest.raises(LimitError):
            node.call(m.Put(table, key, value))


def test_delays_survive_a_snapshot_to_the_microsecond() -> None:
    node = Node(1)
    queue = node.open("queue", "q")
    node.push(queue, [b"x"], due_us=-7_000_000)
    part = node.fabric.kernel.shards[0].queues[queue]
    restored = queue_snapshot.restore(
        0, queue, part.options, part.totals, queue_snapshot.snapshot(part)
    )
    assert restored.delayed.times() == part.delayed.times()


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_those_who_gave_up_waiting_do_not_fill_the_line(kind: str) -> None:
    node = Node()
    stream = node.open(kind, "s")
    for _ in range(MAX_WAITERS + 1):
        asked = (
            node.pop(stream, wait_ms=1) if kind == "queue" else node.fetch(stream, 0, 0, wait_ms=1)
        )
        node.tick(2000)
        assert not node.answer(asked).flags & Flag.ERROR


def test_a_damaged_batch_between_others_is_passed() -> None:
    node = Node()
    queue = node.open("queue", "q")
    for value in (b"a", b"b", b"c"):
        node.push(queue, [value])
    node.journal[2] = node.journal[2]._replace(payload=None)
    again = node.crash()
    assert [one.value for one in again.popped(queue, 5)] == [b"a", b"c"]


def test_a_sequence_is_used_up_even_if_its_queue_is_gone() -> None:
    """The shard's snapshot is older than the push, the definitions are newer than the deletion."""
    node = Node(1)
    node.open("queue", "stays")
    taken = node.snapshot()
    node.push(node.open("queue", "goes"), [b"x"], producer=7, sequence=0)
    node.call(m.Delete("queue", "goes"))
    taken["control"] = node.snapshot([])["control"]
    again = node.crash(taken)
    assert state_of(again.fabric) == state_of(node.fabric)
    assert not again.receipt(again.push(1, [b"y"], producer=7, sequence=1)).duplicate


def test_a_batch_that_cannot_be_opened_does_not_get_into_a_keyed_queue() -> None:
    node = Node()
    queue = node.open("queue", "q", ordered="key")
    batch = encode_batch([b"a" * 500] * 5, keys=[b"k" * 99] * 5, timestamp_us=0, compression="zstd")
    batch[110] ^= 0xFF
    batch[32:40] = checksum_of(batch).to_bytes(8, "little")
    with pytest.raises(ProtocolError):
        node.receipt(node.send(Verb.PUSH, push_body(queue, 0, batch)))


def test_a_watcher_that_was_too_slow_hears_of_it() -> None:
    node = Node()
    table = node.open("table", "t")
    node.connect(2)
    node.call(m.Watch(table), 2)
    node.fabric.pause(2, True, node.now_us)
    node.call(m.Put(table, b"k", b"v"))
    node.fabric.pause(2, False, node.now_us)
    node.tick()
    assert [answer.value()["lost"] for answer in node.inbox] == [True]


def test_a_timer_of_a_state_that_was_replaced_does_nothing() -> None:
    """A node loses a shard, gets a copy of it, and serves it again: times-to-live end at the same
    moment, for the state that is served, and not for the one that it had before."""
    node = Node(1)
    queue = node.open("queue", "q")
    node.push(queue, [b"x"], ttl_ms=100)
    fabric, shard = node.fabric, node.fabric.kernel.shards[0]
    taken = msgspec.msgpack.decode(node.snapshot()["0"])
    fabric.end_shard(shard)
    shard.reset()
    shard.load(taken)
    fabric.begin_shard(shard, node.now_us, 1)
    node.tick(100_000)
    assert node.call(m.StreamStats(queue))["messages"] == 0
    assert state_of(node.crash().fabric) == state_of(fabric)
