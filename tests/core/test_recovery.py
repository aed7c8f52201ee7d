"""fold(records) == load(snapshot at k) + fold(the rest), for every k and any choice of shards."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from tests.core.canonical import state_of
from tests.core.harness import Got, Node, Snapshot

from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import PushExtra, Settle


class Life:
    """A random life of a node with everything in it, and snapshots from all along the way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = Node(4, lazy=True)
        node = self.node
        self.queues = [
            node.open("queue", "plain", max_deliveries=2, lease_ms=2000, ttl_ms=20_000),
            node.open("queue", "keyed", ordered="key"),
            node.open("queue", "written", durability="written"),
        ]
        self.topic = node.open("topic", "topic", partitions=4, retention_bytes=900)
        self.table = node.open("table", "table")
        self.leased: list[tuple[int, Got]] = []
        self.snapshots: list[tuple[int, Snapshot]] = []
        self.sequence = 0

    def run(self, steps: int) -> None:
        actions = [
            self.push, self.push, self.push, self.push_id, self.pop, self.pop, self.settle,
            self.settle, self.publish, self.write, self.transact, self.by_hand, self.define,
        ]  # fmt: skip
        for _ in range(steps):
            with suppress(PenstockError):
                self.chance.choice(actions)()
            self.node.tick(self.chance.choice([1, 1000, 700_000]))
            self.node.commit(self.chance.choice([0, 1, 2, 5, 100]))
            shards = [n for n in range(4) if self.chance.random() < 0.7]
            self.snapshots.append((len(self.node.journal), self.node.snapshot(shards)))
        self.node.commit()

    def _values(self) -> list[bytes]:
        return [b"%d" % self.chance.getrandbits(30) for _ in range(self.chance.randint(1, 5))]

    def push(self) -> None:
        values, queue = self._values(), self.chance.choice(self.queues)
        terms: dict[str, Any] = {}
        if queue == self.queues[1]:
            terms["keys"] = [self.chance.choice([b"a", b"b"]) for _ in values]
        elif self.chance.random() < 0.5:
            terms["priority"] = self.chance.choice([0, 9])
            terms["due_us"] = self.chance.choice([0, -1_000_000])
        self.node.push(queue, values, self.chance.randrange(4), **terms)

    def push_id(self) -> None:
        key = b"id%d" % self.chance.randrange(5)
        extra = PushExtra(key, self.chance.random() < 0.5)
        self.node.push(
            self.queues[0], [b"i"], self.node.fabric.kernel.shard_of(key).id, extra=extra
        )
        if self.chance.random() < 0.5:
            self.node.call(m.Release(self.queues[0], [key]))

    def pop(self) -> None:
        queue = self.chance.choice(self.queues)
        self.leased += [(queue, got) for got in self.node.popped(queue, self.chance.randint(1, 6))]

    def settle(self) -> None:
        if self.leased:
            queue, got = self.leased.pop(self.chance.randrange(len(self.leased)))
            op = self.chance.choice(
                [Settle.ACK, Settle.ACK, Settle.NACK, Settle.EXTEND, Settle.DEAD]
            )
            self.node.ack(queue, got, op, self.chance.choice([0, 500]))

    def publish(self) -> None:
        self.node.push(self.topic, self._values(), partition=self.chance.randrange(4))
        call = m.Commit(self.topic, "g", [(self.chance.randrange(4), 0, 0)])
        self.node.call(self.chance.choice([call, m.Claim(self.topic, 1, "g", "me", 1000)]))

    def write(self) -> None:
        key = self.chance.choice([b"x", b"y", b"z"])
        put = m.Put(self.table, key, b"v", ttl_ms=self.chance.choice([0, 1000]))
        self.node.call(self.chance.choice([put, m.Remove(self.table, key), m.SessionOpen(3000)]))

    def transact(self) -> None:
        batch = bytes(encode_batch([b"txn"], timestamp_us=0))
        call = m.Transact(5, self.sequence, 2)
        call.writes.append(m.TxnWrite(self.table, b"x", b"txn"))
        call.pushes.append(m.TxnPush(self.queues[2], 0, 3, batch))
        if self.leased:
            queue, got = self.leased.pop()
            call.acks.append(m.TxnSettle(queue, got.shard, got.grant, got.position, 1))
        self.node.call(call)
        self.sequence += 1

    def by_hand(self) -> None:
        queue = self.chance.choice(self.queues)
        dead = self.chance.random() < 0.3
        self.node.call(self.chance.choice([m.Purge(queue, dead), m.Redrive(queue, 2)]))

    def define(self) -> None:
        """A queue comes and goes, with messages in it."""
        name = self.chance.choice(["one", "two"])
        number = self.node.open("queue", name)
        self.node.push(number, self._values(), self.chance.randrange(4), producer=9)
        if self.chance.random() < 0.5:
            self.node.call(m.Delete("queue", name))


@pytest.mark.parametrize("seed", range(6))
def test_snapshot_and_rest_equal_the_whole_log(seed: int) -> None:
    life = Life(seed)
    life.run(200)
    folded = state_of(life.node.crash().fabric, timed=False)
    assert state_of(life.node.fabric, timed=False) == folded, "a fold gives what life gave"
    for records, taken in life.snapshots[:: 5 if seed == 0 else 20]:
        assert records <= len(life.node.journal)
        assert state_of(life.node.crash(taken).fabric, timed=False) == folded


@pytest.mark.parametrize("seed", range(3))
def test_every_prefix_of_the_log_can_be_folded(seed: int) -> None:
    """Whatever a crash leaves, the node comes up and goes on."""
    life = Life(100 + seed)
    life.run(80)
    for keep in range(0, len(life.node.journal) + 1, 3):
        node = life.node.crash(keep=keep)
        node.tick(100_000_000)
        node.commit()
        state_of(node.fabric)
        node.check()


def test_the_figures_of_a_copy_are_those_of_where_its_batches_lie() -> None:
    """Their records are shorter or longer than those that the owner has."""
    node = Node(shards=1)
    queue, topic = node.open("queue", "q"), node.open("topic", "t", partitions=1)
    for _ in range(2):
        node.push(queue, [b"a", b"b", b"c"])
        node.push(topic, [b"a", b"b"])
    node.ack(queue, node.popped(queue)[0])
    copy = node.crash(node.snapshot())
    (shard,) = copy.fabric.kernel.shards
    batches = [stored for _, stored in shard.batches()]
    shard.relocate({s.location: (100 + at, s.length + 9 - 5 * at) for at, s in enumerate(batches)})
    kept = {queue: shard.queues[queue].kept_bytes, topic: shard.partitions[topic, 0].bytes}
    for stream, figure in kept.items():
        size = sum(stored.live_bytes for meta, stored in shard.batches() if meta.stream == stream)
        assert size == figure == copy.fabric.kernel.streams[stream].totals.bytes
