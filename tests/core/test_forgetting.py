"""Forgetting an idle part of a queue is a record: whoever folds the log forgets it there, too."""

from __future__ import annotations

from tests.core.harness import Got, Node

from penstock.core.fabric import Fabric
from penstock.core.queues import FORGET_AFTER_US
from penstock.core.shard import Replayed
from penstock.errors import LeaseLostError
from penstock.wire import messages as m
from penstock.wire.entry import Entry


def node() -> Fabric:
    fabric = Fabric(1, 0)
    fabric.control.defined(m.StreamInfo(1, "queue", "q", "default", {}))
    fabric.kernel.shards[0].queue(1).leases.skip(40)
    return fabric


def test_owner_and_follower_forget_the_same():
    owner, follower = node(), node()
    owner.kernel.now_us = FORGET_AFTER_US + 1
    owner.queues.forget_idle(owner.kernel.shards[0])
    (entry,) = owner.take_effects()
    assert isinstance(entry, Entry)
    record = Replayed(0, entry.kind, entry.number, entry.meta, None, 0, 0, entry.epoch)
    follower.replay(record, 5)
    for fabric in (owner, follower):
        shard = fabric.kernel.shards[0]
        assert shard.queues == {}
        assert (shard.last, shard.first_grant) == (1, 41)


def test_who_does_not_own_a_shard_forgets_nothing_by_itself():
    fabric = node()
    fabric.kernel.now_us = FORGET_AFTER_US + 1
    fabric.end_shard(fabric.kernel.shards[0])
    fabric.queues.forget_idle(fabric.kernel.shards[0])
    assert 1 in fabric.kernel.shards[0].queues
    assert fabric.take_effects() == []


def acked() -> tuple[Node, int, Got]:
    """A node whose only message was acknowledged."""
    node = Node(1)
    queue = node.open("queue", "q")
    node.push(queue, [b"x"])
    (got,) = node.popped(queue)
    assert node.ack(queue, got).accepted == 1
    return node, queue, got


def test_an_ack_whose_answer_was_lost_in_a_restart_is_still_known():
    before, queue, got = acked()
    node = before.crash(before.snapshot())
    node.fabric.queues.forget_idle(node.fabric.kernel.shards[0])
    assert node.ack(queue, got) == (1, {})


def test_the_ack_of_something_that_was_forgotten_is_too_late():
    node, queue, got = acked()
    node.tick(FORGET_AFTER_US + 1)
    node.fabric.queues.forget_idle(node.fabric.kernel.shards[0])
    assert node.ack(queue, got) == (0, {0: LeaseLostError.code})
