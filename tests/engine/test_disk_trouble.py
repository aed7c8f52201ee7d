"""A full or failing disk: nothing is acknowledged, reads go on, and it recovers by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.core.queues import FORGET_AFTER_US
from penstock.embedded import Inline, embed
from penstock.engine.engine import UnsettledError
from penstock.engine.recovery import open_engine
from penstock.errors import ClosedError, StorageError
from penstock.store.disk import DiskError
from penstock.store.journal import MAX_PENDING_BYTES
from penstock.testing import FakeClock, MemoryDisk, memory_fabric
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability


class MoodyDisk(MemoryDisk):
    """A disk that refuses when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.failing_syncs = 0
        self.syncs: list[str] = []

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        if self.full:
            raise DiskError("no space left", full=True)
        super().write(name, offset, parts)

    def sync(self, name: str) -> None:
        self.syncs.append(name)
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise DiskError("input/output error")
        super().sync(name)


def test_a_full_disk_refuses_writes_serves_reads_and_recovers() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    with memory_fabric(clock, disk) as fabric:
        queue, topic = fabric.queue("q"), fabric.topic("t", partitions=1)
        table = fabric.table("kv")
        topic.publish(b"before")
        table.put("k", b"v")
        disk.full = True
        with pytest.raises(StorageError, match="full"):
            queue.push(b"refused")
        with pytest.raises(StorageError):
            table.put("k", b"w")
        assert [row.value for batch in topic.read(0, 0) for row in batch] == [b"before"]
        assert fabric.stats()["refusing"]
        disk.full = False
        clock.advance(1.5)
        queue.push(b"after")
        assert fabric.stats()["refusing"] is None
        assert b"after" in [message.value for message in queue.pop_many(10)]


def test_looks_do_not_get_in_line_while_the_disk_refuses() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=4)
    inline = Inline(engine, disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        fabric.queue("q").push(b"safe")
        table = fabric.table("kv")
        table.put("other", b"v")
        disk.full = True
        with pytest.raises(StorageError, match="full"):
            table.put("k", b"not safe")
        waiting = engine.journal.pending_bytes
        for _ in range(3):  # it stays in line, and may be lost with it
            with pytest.raises(StorageError, match="full"):
                table.get("k")
        assert [each.value for each in fabric.queue("q").peek(1)] == [b"safe"], "opened, and read"
        with pytest.raises(StorageError, match="full"):
            fabric.queue("new")
        assert engine.journal.pending_bytes == waiting
        disk.full = False
        clock.advance(1.5)
        with inline.changed:
            inline.run()
        assert table.get("k") == b"not safe"


def test_what_a_pop_was_refused_goes_to_the_next_and_was_not_delivered() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    with memory_fabric(clock, disk) as fabric:
        queue = fabric.queue("q", max_deliveries=1)
        values = {b"%d" % number for number in range(5)}
        queue.push_many(sorted(values), batch=1)
        disk.full = True
        with pytest.raises(StorageError, match="full"):
            queue.pop_many(10)
        disk.full = False
        clock.advance(1.5)  # the disk takes what the pop was refused
        found = queue.pop_many(10)
        assert {message.value for message in found} == values
        assert {message.deliveries for message in found} == {1}
        assert queue.stats()["dead"] == 0


def test_all_that_waits_is_refused_at_once_in_however_many_flushes() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=4)
    engine.journal._max_flush_bytes = 100
    refused: list[str] = []
    kernel = engine.fabric.kernel
    for number in range(5):
        entry = kernel.barrier(Durability.SYNCED)
        entry.failed = lambda error, n=number: refused.append(f"{n} {error.message}")
    engine.settle(clock.now_us())
    flush = engine.next_flush(clock.now_us())
    assert flush is not None
    assert len(flush.entries) < 5
    engine.end_flush(flush, DiskError("no room", full=True), clock.now_us())
    assert refused == [f"{n} the disk is full: no room" for n in range(5)]


def test_a_failed_sync_is_never_retried_on_that_file() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    with memory_fabric(clock, disk) as fabric:
        queue = fabric.queue("q")
        queue.push(b"one")
        before = disk.syncs[-1]
        disk.failing_syncs = 1
        with pytest.raises(StorageError, match="fails"):
            queue.push(b"two")
        failed = len(disk.syncs)
        clock.advance(1.5)
        queue.push(b"three")
        assert before not in disk.syncs[failed:]
        values = sorted(message.value for message in queue.pop_many(10))
        # The push that got an error was in line all the same: it may be stored, and once only.
        assert values == [b"one", b"three", b"two"]


def test_what_was_not_acknowledged_at_a_failure_survives_a_restart_once() -> None:
    disk, clock = MoodyDisk(), FakeClock()
    with memory_fabric(clock, disk) as fabric:
        queue = fabric.queue("q")
        queue.push(b"one")
        disk.failing_syncs = 1
        with pytest.raises(StorageError):
            queue.push(b"two")
        clock.advance(1.5)
    with memory_fabric(clock, disk) as fabric:
        values = sorted(message.value for message in fabric.queue("q").pop_many(10))
        assert values == [b"one", b"two"]


def test_what_the_journal_does_not_take_ends_the_engine() -> None:
    """It is numbered already: what came after it would be acknowledged behind a gap in the log."""
    disk, clock = MemoryDisk(), FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=1)
    inline = Inline(engine, disk, clock)
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        queues = [fabric.queue(name) for name in ("a", "b", "c")]
        for queue in queues[:2]:
            queue.push(b"x")
            queue.pop_many()[0].ack(wait=True)
        queues[2].push(b"safe")
        clock.advance(2 * FORGET_AFTER_US / 1e6)
        inline.run()
        engine.journal._max_pending_bytes = 1
        engine.maintenance.want_checkpoint()  # which has two queues forgotten first
        with pytest.raises(UnsettledError, match="wait for the journal"):
            do_steps(inline)
        assert engine.maintenance.failures == 0
        engine.journal._max_pending_bytes = MAX_PENDING_BYTES
        with pytest.raises(UnsettledError):
            queues[2].push(b"after")
        with pytest.raises(ClosedError):
            queues[2].push(b"later")
    with embed(Inline(open_engine(disk, clock.now_us(), 1), disk, clock), 5.0, "default") as fabric:
        assert [message.value for message in fabric.queue("c").pop_many(10)] == [b"safe"]


def do_steps(inline: Inline) -> None:
    """Maintenance, until there is nothing to do."""
    engine, now_us = inline.engine, inline.clock.now_us()
    while (step := engine.maintenance.next_step(now_us)) is not None:
        step.run()
        engine.maintenance.end_step(None, now_us)
