"""What a client may do for ever without the node growing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Node

from penstock.core import dedupe
from penstock.core.queue import SPARE_TTLS
from penstock.core.queue_rules import SWEEP_CHANGES, SWEEP_MESSAGES
from penstock.core.queues import FORGET_AFTER_US
from penstock.core.runs import Run
from penstock.core.table import SPARE_EXPIRIES, Cell, TableShard
from penstock.errors import LimitError, UnavailableError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FETCH, POP, PushExtra, Settle, Verb, read_error


def test_a_cancelled_pop_or_fetch_is_answered_and_leaves_no_timer() -> None:
    """Until it is answered it counts as in flight: after 1,024 the node would read nothing more."""
    node = Node()
    queue, topic = node.open("queue", "q"), node.open("topic", "t", partitions=1)
    timers = timers_left(node)
    for verb, body in (
        (Verb.POP, POP.pack(queue, 1, 0, 60_000, 0, 0)),
        (Verb.FETCH, FETCH.pack(topic, 0, 0, 1 << 20, 60_000)),
    ):
        request = node.send(verb, body)
        node.inbox.clear()
        node.send(Verb.CANCEL, request=request)
        node.send(Verb.CANCEL, request=request)
        (answer,) = node.inbox
        assert (answer.verb, answer.request) == (verb, request)
        assert isinstance(read_error(answer.body), UnavailableError)
    assert timers_left(node) == timers


def timers_left(node: Node) -> int:
    return sum(item[2].action is not None for item in node.fabric.kernel.timers._heap)


def test_a_shard_of_a_queue_has_one_timer_however_often_it_wakes_up() -> None:
    """A message is far away, and many others come and go before it."""
    node = Node()
    timers, others, times = node.fabric.kernel.timers, timers_left(node), 1500
    queue = node.open("queue", "q")
    node.push(queue, [b"far"], 0, due_us=-30 * 86_400_000_000)
    for _ in range(times):
        node.push(queue, [b"x"], 0, due_us=-10_000)
        node.tick(10_000)
        node.ack(queue, node.popped(queue)[0])
    assert timers_left(node) == others + 1
    assert len(timers._heap) < times, "what is cancelled leaves"
    node.tick(30 * 86_400_000_000)
    assert [got.value for got in node.popped(queue)] == [b"far"]


@pytest.mark.parametrize("how", ["deleted", "forgotten", "moved"])
def test_a_part_of_a_queue_that_is_gone_has_no_timer(how: str) -> None:
    node = Node()
    fabric, shard = node.fabric, node.fabric.kernel.shards[0]
    timers = timers_left(node)
    queue = node.open("queue", "q", lease_ms=43_200_000)
    node.push(queue, [b"x"], 0)
    node.ack(queue, node.popped(queue)[0])
    assert timers_left(node) == timers + 1, "the lease would have lasted for hours"
    if how == "deleted":
        node.call(m.Delete("queue", "q"))
    elif how == "forgotten":
        node.tick(2 * FORGET_AFTER_US)
        fabric.queues.forget_idle(shard)
    else:
        fabric.end_shard(shard)
    assert timers_left(node) == timers
    node.tick(2 * 86_400_000_000)


@pytest.mark.parametrize("pending", [False, True])
def test_nothing_is_left_of_what_was_on_its_way_to_a_deleted_queue(pending: bool) -> None:
    node = Node(lazy=True)
    queue = node.open("queue", "q")
    node.push(queue, [b"x"], 0)
    if not pending:
        node.commit()
    node.call(m.Delete("queue", "q"))
    node.commit()
    assert not any(shard.coming for shard in node.fabric.kernel.shards)


def test_times_to_live_of_consumed_messages_are_forgotten() -> None:
    node = Node()
    queue = node.open("queue", "q", ttl_ms=86_400_000)
    for _ in range(3 * SPARE_TTLS):
        node.push(queue, [b"x"], 0)
        node.ack(queue, node.popped(queue)[0])
    node.push(queue, [b"stays"], 0)
    assert len(node.fabric.kernel.shards[0].queues[queue].ttl) <= SPARE_TTLS + 3
    node.tick(86_400_000_000)
    assert not node.popped(queue)


def test_many_leases_that_run_out_at_once_do_so_in_steps() -> None:
    node = Node()
    queue = node.open("queue", "q", max_deliveries=0)
    for _ in range(3):  # a returned message gets a lease of its own: then there are many
        for _ in range(SWEEP_CHANGES // 2):
            node.push(queue, [b"x"], 0)
    count = 3 * (SWEEP_CHANGES // 2)
    for got in node.popped(queue, count):
        node.ack(queue, got, Settle.NACK)
    part = node.fabric.kernel.shards[0].queues[queue]
    assert len(node.popped(queue, count)) == count
    assert len(part.leases.grants) == count
    node.tick(30_000_000)
    assert part.leases.messages == count - SWEEP_CHANGES
    assert node.fabric.next_due() == node.now_us + 1
    node.tick(1)
    assert part.leases.messages == 0
    assert {got.deliveries for got in node.popped(queue, count)} == {3}


def test_leases_of_many_messages_run_out_in_steps_too() -> None:
    node = Node()
    queue = node.open("queue", "q")
    for _ in range(4):
        node.push(queue, [b"x"] * SWEEP_MESSAGES, 0)
        node.popped(queue, SWEEP_MESSAGES)
    part = node.fabric.kernel.shards[0].queues[queue]
    node.tick(30_000_000)
    assert part.leases.messages == 3 * SWEEP_MESSAGES


class NeverScanned(dict[bytes, Run]):
    """What is held may be looked up, and not searched."""

    def items(self) -> Any:
        raise AssertionError("all that is held was looked at")


def test_a_release_does_not_look_at_all_that_is_held() -> None:
    node = Node()
    queue = node.open("queue", "q")
    for number in range(3):
        key = b"id-%d" % number
        home = node.fabric.kernel.shard_of(key).id
        node.push(queue, [key], home, extra=PushExtra(key, True))
    for shard in node.fabric.kernel.shards:
        if (part := shard.queues.get(queue)) is not None:
            part.held = NeverScanned(part.held)
    assert node.call(m.Release(queue, [b"id-1"])) == ["released"]
    assert [got.value for got in node.popped(queue, 3)] == [b"id-1"]


def test_an_entry_that_is_written_again_and_again_expires_once() -> None:
    table = TableShard(1)
    for version in range(1, 3 * SPARE_EXPIRIES):
        table.put(b"beat", Cell(b"", version, 1_000_000 + version))
    assert len(table._expiry) <= SPARE_EXPIRIES + 3
    assert table.expired(1_000_000 + 3 * SPARE_EXPIRIES) == [b"beat"]


def test_transactions_of_ever_new_producers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "MAX_PRODUCERS", 3)
    node = Node()
    queue = node.open("queue", "q")
    for producer in range(1, 5):
        push = m.TxnPush(queue, 0, 1, bytes(encode_batch([b"x"], timestamp_us=1)))
        call = m.Transact(producer, 0, 0, pushes=[push])
        if producer <= 3:
            node.call(call)
        else:
            with pytest.raises(LimitError, match="producers"):
                node.call(call)
