"""Figures of messages and bytes are what is there, whatever has happened to it."""

from __future__ import annotations

import random

import pytest
from tests.engine.test_space import SEGMENT, settle

from penstock.client.blocking import Fabric
from penstock.core.index import BatchIndex
from penstock.core.kernel import Kernel
from penstock.embedded import Inline, embed
from penstock.engine.maintenance import Pace
from penstock.engine.recovery import open_engine
from penstock.store.files import Limits
from penstock.testing import FakeClock, MemoryDisk

LEASE = 30
KEYS = [b"k%d" % number for number in range(40)]
Figures = dict[object, tuple[int, int]]  # of a stream, or a part of one: messages and bytes


def figures_of(kernel: Kernel) -> Figures:
    """As they are kept."""
    found: Figures = {}
    for number, stream in kernel.streams.items():
        found[number] = stream.totals.messages, stream.totals.bytes
    for shard in kernel.shards:
        for number, queue in shard.queues.items():
            found["queue", shard.id, number] = queue.kept_messages, queue.kept_bytes
        for key, partition in shard.partitions.items():
            found[key] = partition.live_messages, partition.bytes
    return {what: figures for what, figures in found.items() if any(figures)}


def counted(kernel: Kernel) -> Figures:
    """The same, from what is there."""
    found: Figures = {}

    def count(stream: int, part: object, indexes: list[BatchIndex]) -> None:
        rows = [stored for index in indexes for stored in index.rows()]
        here = sum(each.live for each in rows), sum(each.live_bytes for each in rows)
        messages, size = found.get(stream, (0, 0))
        found[stream] = messages + here[0], size + here[1]
        found[part] = here

    for shard in kernel.shards:
        for number, queue in shard.queues.items():
            indexes = [lane.index for lane in queue.lanes.values()]
            count(number, ("queue", shard.id, number), indexes)
        for key, partition in shard.partitions.items():
            count(key[0], key, [partition.index])
    return {what: figures for what, figures in found.items() if any(figures)}


class Traffic:
    """Messages of a queue and of a topic that keeps the latest of every key, by chance."""

    def __init__(self, seed: int, fabric: Fabric) -> None:
        self.chance = random.Random(seed)
        self.queue = fabric.queue("q", lease=LEASE, max_deliveries=0)
        self.topic = fabric.topic("t", partitions=2, keep="latest")

    def values(self, count: int) -> list[bytes]:
        return [bytes(self.chance.randrange(300)) for _ in range(count)]

    def go_on(self) -> None:
        chance, queue = self.chance, self.queue
        for _ in range(5):
            batch, priority = chance.choice([1, 7, 50]), chance.randrange(3)
            queue.push_many(self.values(200), batch=batch, priority=priority)
            values = self.values(150)
            keys = [chance.choice(KEYS) for _ in values]
            self.topic.publish_many(values, keys=keys, batch=chance.choice([3, 30]))
        for message in queue.pop_many(chance.randrange(400, 1000)):
            if chance.random() < 0.9:
                chance.choice([message.ack, message.ack, message.ack, message.nack])()
        queue.flush()


def start(disk: MemoryDisk, clock: FakeClock) -> Inline:
    pace = Pace(limits=Limits(keep_journal=0, dead_bytes=0))
    engine = open_engine(disk, clock.now_us(), 1, shards=3, segment_bytes=SEGMENT, pace=pace)
    return Inline(engine, disk, clock)


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_what_is_there_after_cleaning_and_thinning_and_a_restart(seed: int) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = start(disk, clock)
    kernel = inline.engine.fabric.kernel
    with embed(inline, 5.0, "default") as fabric:
        traffic = Traffic(seed, fabric)
        for _ in range(6):
            traffic.go_on()
            settle(inline)
            with inline.changed:  # the background keeps out
                assert figures_of(kernel) == counted(kernel)
        assert inline.engine.maintenance.cleaned_files
        assert inline.engine.maintenance._thinned
    again = start(disk, clock)
    before, kernel = figures_of(kernel), again.engine.fabric.kernel
    assert figures_of(kernel) == before
    with embed(again, 5.0, "default") as fabric:
        clock.advance(LEASE + 1)
        queue = fabric.queue("q")
        while messages := queue.pop_many(1000):
            for message in messages:
                message.ack()
            queue.flush()
        stats = queue.stats()
        assert (stats["messages"], stats["bytes"]) == (0, 0)
        assert figures_of(kernel) == counted(kernel)
        assert {stream for stream in kernel.streams if stream in figures_of(kernel)} == {2}
