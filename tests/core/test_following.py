"""A node that follows a shard for years folds its log, and does not grow: nobody pops there, and no
timer looks at anything."""

from __future__ import annotations

import pytest
from tests.core.harness import Got, Node

from penstock.core.fabric import Fabric
from penstock.core.queue import QueueShard
from penstock.wire import messages as m
from penstock.wire.frames import PushExtra, Settle

CYCLES = 1600
MOST = 1100  # of what is not there any more: so much is not worth a look


class Follower:
    """Folds what a node logs, as it comes."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.fabric = Fabric(len(node.fabric.kernel.shards), node.now_us)
        self.fabric.restart(node.now_us, owns=False)
        self._folded = 0

    def follow(self) -> None:
        for record in self.node.journal[self._folded :]:
            self.fabric.replay(record, self.node.now_us)
        self._folded = len(self.node.journal)

    def part(self, queue: int) -> QueueShard:
        return self.fabric.kernel.shards[0].queues[queue]


@pytest.fixture
def follower() -> Follower:
    return Follower(Node(1))


def test_grants_that_are_over(follower: Follower) -> None:
    node = follower.node
    queue = node.open("queue", "q")
    for _ in range(CYCLES):
        node.push(queue, [b"x"])
        (got,) = node.popped(queue)
        node.ack(queue, got, Settle.EXTEND, 60_000)
        node.ack(queue, got)
    node.push(queue, [b"stays"])
    node.popped(queue)
    follower.follow()
    leases = follower.part(queue).leases
    assert sum(len(line) for _, line in leases._due.values()) < 2 * MOST
    follower.fabric.kernel.shards[0].restart(node.now_us, 1)
    assert leases.next_due() == node.now_us + 30_000_000


@pytest.mark.parametrize("delay_ms", [0, 1000])
def test_messages_that_were_given_back(follower: Follower, delay_ms: int) -> None:
    node = follower.node
    queue = node.open("queue", "q", max_deliveries=0)
    node.push(queue, [b"x"])

    def popped() -> Got:
        return node.popped(queue)[0]

    for _ in range(CYCLES):
        node.ack(queue, popped(), Settle.NACK, delay_ms)
        node.tick(delay_ms * 1000)
    follower.follow()
    part = follower.part(queue)
    assert len(part.returned._heap) < MOST
    assert len(part.delayed._heap) < MOST
    assert part.returned.messages + part.delayed.messages == 1


def test_gangs_that_were_given_back(follower: Follower) -> None:
    node = follower.node
    queue = node.open("queue", "q", gangs=True, max_deliveries=0)
    node.push(queue, [b"x"], generation=1)
    for _ in range(CYCLES):
        seat = node.call(m.Park(queue, "worker", "", 1000))
        shard, grant, position, *_ = seat
        got = Got(shard, grant, position, 0, b"")
        node.ack(queue, got, Settle.NACK)
    for fabric in (node.fabric, follower.fabric):
        follower.follow()
        line = fabric.kernel.shards[0].queues[queue].gangs
        assert line is not None
        assert len(line._by_size[1]) < MOST


def test_ids_whose_time_is_over(follower: Follower) -> None:
    node = follower.node
    queue = node.open("queue", "q", id_window_ms=1000)
    for number in range(CYCLES):
        node.push(queue, [b"x"], extra=PushExtra(b"id-%d" % number))
        node.ack(queue, node.popped(queue)[0])
        node.tick(10_000)
        follower.follow()
    assert len(follower.part(queue).ids) <= 101
