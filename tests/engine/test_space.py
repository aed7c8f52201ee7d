"""The data directory stays small while messages come and go; a forgotten one pins nothing."""

from __future__ import annotations

import pytest

from penstock.embedded import Inline, embed
from penstock.engine.maintenance import Pace
from penstock.engine.recovery import open_engine
from penstock.errors import LeaseLostError
from penstock.store.files import Limits
from penstock.testing import FakeClock, MemoryDisk

SEGMENT = 256 << 10
# As many segments of dead bytes, beside what is live, as a node has by default.
PACE = Pace(limits=Limits(dead_bytes=4 * SEGMENT))


def small_segments(disk: MemoryDisk, clock: FakeClock) -> Inline:
    engine = open_engine(disk, clock.now_us(), 1, shards=4, segment_bytes=SEGMENT, pace=PACE)
    return Inline(engine, disk, clock)


def settle(inline: Inline) -> None:
    """Cleans until there is nothing left to clean."""
    with inline.changed:
        maintenance = inline.engine.maintenance
        for _ in range(3):
            maintenance.want_checkpoint()
            while (step := maintenance.next_step(inline.clock.now_us())) is not None or (
                inline.engine.journal.pending_bytes
            ):
                if step is not None:
                    step.run()
                    maintenance.end_step(None, inline.clock.now_us())
                inline.run()


def used(disk: MemoryDisk) -> int:
    return sum(len(data) for name, data in disk.files.items() if name[0] in "js")


def test_acknowledged_messages_cost_no_space() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = small_segments(disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        queue = fabric.queue("q")
        for _ in range(20):
            queue.push_many([b"x" * 1000] * 500, batch=50)
            for delivery in queue.consume_batches(idle_timeout=0.01):
                delivery.ack()
            queue.flush()
        settle(inline)
        assert queue.stats()["messages"] == 0
        assert used(disk) <= 8 * SEGMENT, f"{used(disk):,} bytes for an empty queue"


def test_forgotten_messages_do_not_pin_what_came_with_them() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = small_segments(disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        queue = fabric.queue("q", lease=3600)
        queue.push_many([b"%04d" % n + b"x" * 1000 for n in range(5000)], batch=100)
        kept = []
        for message in queue.pop_many(5000):
            if int(message.value[:4]) % 100:
                message.ack()
            else:
                kept.append(message.value)
        while more := queue.pop_many(5000):
            for message in more:
                if int(message.value[:4]) % 100:
                    message.ack()
                else:
                    kept.append(message.value)
        queue.flush()
        assert len(kept) == 50
        settle(inline)
        assert used(disk) <= 12 * SEGMENT, f"{used(disk):,} bytes for 50 messages"
        clock.advance(3601)
        assert sorted(m.value for m in queue.pop_many(100)) == sorted(kept)


def test_moved_messages_survive_a_restart() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = small_segments(disk, clock)
    values = [b"%05d" % n + b"y" * 500 for n in range(3000)]
    with embed(inline, 5.0, "default") as fabric:
        topic = fabric.topic("t", partitions=2)
        topic.publish_many(values, keys=[value[:5] for value in values], batch=100)
        settle(inline)
        assert fabric.stats()["cleaned_files"] > 0 or len(disk.files) < 12
    inline = small_segments(disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        topic = fabric.topic("t")
        found = [row.value for p in range(2) for batch in topic.read(p, 0) for row in batch]
        assert sorted(found) == values


def test_an_idle_queue_costs_no_memory_and_its_old_tokens_stay_worthless() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = small_segments(disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        queue = fabric.queue("q", ordered=True, lease=30)
        queue.push(b"first")
        old = queue.pop()
        assert old is not None
        clock.advance(31)
        again = queue.pop()
        assert again is not None
        again.ack(wait=True)
        clock.advance(600)
        settle(inline)
        assert sum(len(shard.queues) for shard in inline.engine.fabric.kernel.shards) == 0
        queue.push(b"second")
        second = queue.pop()
        assert second is not None
        assert second.position > old.position
        with pytest.raises(LeaseLostError):
            old.ack(wait=True)
        second.ack(wait=True)
