"""Upkeep that does not grow with what it has nothing to do with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.core.liveness import grown_partition
from penstock.core.queues import FORGET_AFTER_US
from penstock.embedded import Inline, embed
from penstock.engine import maintenance
from penstock.engine.recovery import open_engine
from penstock.store.disk import Disk, DiskError
from penstock.store.files import Limits
from penstock.store.journal import MAX_SPARES
from penstock.testing import FakeClock, MemoryDisk
from penstock.wire.buffers import Buffer

SEGMENT = 256 << 10
NEVER = maintenance.Pace(checkpoint_bytes=1 << 40, checkpoint_records=1 << 40)
DISK_CALLS = frozenset(name for name in vars(Disk) if not name.startswith("_"))


def new_inline(disk: MemoryDisk, shards: int = 16) -> Inline:
    clock = FakeClock()
    return Inline(open_engine(disk, clock.now_us(), 1, shards=shards), disk, clock)


class CarefulDisk(MemoryDisk):
    """Counts what is deleted, and must not be asked for anything while steps are decided on."""

    deciding = False
    deleted = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._watched(found) if name in DISK_CALLS else found

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any) -> Any:
            assert not self.deciding, f"{call} on the loop"
            return call(*given)

        return watched

    def delete(self, name: str) -> None:
        self.deleted += 1
        super().delete(name)


def test_the_disk_is_only_used_in_steps_and_a_step_lets_one_segment_go() -> None:
    disk, clock = CarefulDisk(), FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=4, segment_bytes=SEGMENT, pace=NEVER)
    inline = Inline(engine, disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        queue = fabric.queue("q")
        for _ in range(MAX_SPARES):  # about four segments each
            queue.push_many([b"x" * 1000] * 1000, batch=50)
            for delivery in queue.consume_batches(idle_timeout=0.01):
                delivery.ack()
            queue.flush()
        with inline.changed:  # the background keeps out
            files = len(disk.files)
            deleted = deleted_by_steps(inline, disk) + deleted_by_steps(inline, disk)
            assert len(disk.files) < files - MAX_SPARES
            assert max(deleted) == 1
            assert sum(name.startswith("r-") for name in disk.files) == MAX_SPARES


def deleted_by_steps(inline: Inline, disk: CarefulDisk) -> list[int]:
    """Takes a checkpoint, and what follows from it: files that each step has deleted."""
    maintenance, clock, deleted = inline.engine.maintenance, inline.clock, list[int]()
    maintenance.want_checkpoint()
    while True:
        disk.deciding = True
        step = maintenance.next_step(clock.now_us())
        disk.deciding = False
        inline.run()  # what the step may wait for
        if step is None and not maintenance._work:
            return deleted
        if step is not None:
            before = disk.deleted
            step.run()
            deleted.append(disk.deleted - before)
            maintenance.end_step(None, clock.now_us())


class FullForCopies(MemoryDisk):
    """Has no room for what the cleaner copies, nor for the header of its file."""

    full = False

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        if self.full and name.startswith("s-"):
            raise DiskError("no space left", full=True)
        super().write(name, offset, parts)


def work_off(inline: Inline) -> None:
    """Does what there is to do, until something fails or nothing is left."""
    maintenance, now_us = inline.engine.maintenance, inline.clock.now_us()
    failures = maintenance.failures
    while maintenance.failures == failures:
        inline.run()
        if (step := maintenance.next_step(now_us)) is None:
            return
        try:
            step.run()
        except DiskError as error:
            maintenance.end_step(error, now_us)
        else:
            maintenance.end_step(None, now_us)


def test_cleaning_goes_on_once_a_full_disk_has_room() -> None:
    disk, clock = FullForCopies(), FakeClock()
    pace = NEVER._replace(limits=Limits(keep_journal=0))
    engine = open_engine(disk, clock.now_us(), 1, shards=4, segment_bytes=SEGMENT, pace=pace)
    inline = Inline(engine, disk, clock)
    with embed(inline, 5.0, "default") as fabric:
        with inline.changed:  # the background keeps out
            disk.full = True
            fabric.queue("q").push_many([b"%d" % n + b"x" * 1000 for n in range(1000)], batch=50)
            clock.advance(maintenance.LOOK_EVERY_US / 1e6)  # it may have looked a moment ago
            for _ in range(5):
                work_off(inline)
                clock.advance(maintenance.RETRY_US / 1e6)
            assert (engine.maintenance.failures, engine.maintenance.cleaned_files) == (5, 0)
            assert engine.maintenance.cleaner._targets == {}
            disk.full = False
            work_off(inline)
            assert engine.maintenance.cleaned_files >= 3
            engine.maintenance.want_checkpoint()
            work_off(inline)
        on_disk = {name for name in disk.files if name.startswith("s-")}
        assert on_disk == {file.name for file in engine.files.all() if file.kind == "s"}
    clock.advance(1)
    again = open_engine(disk, clock.now_us(), 1, segment_bytes=SEGMENT, pace=NEVER)
    with embed(Inline(again, disk, clock), 5.0, "default") as fabric:
        values = [message.value for message in fabric.queue("q").pop_many(2000)]
        assert sorted(int(value.rstrip(b"x")) for value in values) == list(range(1000))


def sections_of_steps(inline: Inline) -> list[dict[str, bytes]]:
    return list(inline.engine.maintenance._sections())


def test_a_step_of_a_checkpoint_is_bounded_in_shards_and_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inline = new_inline(MemoryDisk())
    with embed(inline, 5.0, "default") as fabric:
        fabric.queue("q").push_many([b"x"] * 6400, batch=1)
        with inline.changed:
            assert [len(each) for each in sections_of_steps(inline)] == [8, 8]
            every = {key: data for each in sections_of_steps(inline) for key, data in each.items()}
            assert len(every) == 16
            monkeypatch.setattr(maintenance, "STEP_BYTES", 2 * min(map(len, every.values())))
            steps = sections_of_steps(inline)
            assert max(map(len, steps)) <= 2
            assert {key for each in steps for key in each} == set(every)


def test_what_a_checkpoint_notes_is_in_line_before_another_event() -> None:
    inline = new_inline(MemoryDisk())
    clock = inline.clock
    assert isinstance(clock, FakeClock)
    with embed(inline, 5.0, "default") as fabric:
        queue = fabric.queue("q")
        queue.push(b"x")
        (message,) = queue.pop_many()
        message.ack(wait=True)
        with inline.changed:
            clock.advance(2 * FORGET_AFTER_US / 1e6)
            inline.run()
            kernel, written = inline.engine.fabric.kernel, inline.engine.journal.appended_records
            kernel.now_us = clock.now_us()
            sections_of_steps(inline)
            assert inline.engine.journal.appended_records > written  # the queue is forgotten
            assert kernel.effects == []


def test_only_partitions_that_have_grown_are_looked_at() -> None:
    disk = MemoryDisk()
    inline = new_inline(disk)
    with embed(inline, 5.0, "default") as fabric:
        topic = fabric.topic("t", partitions=64, keep="latest")
        kernel = inline.engine.fabric.kernel
        for number in range(64):  # a partition without messages would not count anyway
            topic.publish(b"first", key=b"k", partition=number)
        other = fabric.topic("all", partitions=4)
        with inline.changed:  # the background keeps out
            while grown_partition(kernel) is not None:
                pass
            other.publish(b"v", partition=1)
            topic.publish(b"v", key=b"k", partition=5)
            found = grown_partition(kernel)
            assert found is not None
            assert (found.stream, found.number) == (topic.info.id, 5)
            assert grown_partition(kernel) is None


def test_what_is_known_of_a_topic_that_was_thinned_goes_with_it() -> None:
    inline = new_inline(MemoryDisk())
    clock = inline.clock
    assert isinstance(clock, FakeClock)
    with embed(inline, 5.0, "default") as fabric:
        for name in ("one", "two"):
            topic = fabric.topic(name, partitions=1, keep="latest")
            count = maintenance.THIN_MESSAGES
            topic.publish_many([b"v"] * count, keys=[b"k"] * count, batch=count // 2)
            with inline.changed:
                clock.advance(maintenance.LOOK_EVERY_US / 1e6)  # it may have looked a moment ago
                work_off(inline)
                assert [*inline.engine.maintenance._thinned] == [(topic.info.id, 0)]
            topic.delete()


def test_after_a_restart_all_partitions_are_looked_at_once() -> None:
    disk = MemoryDisk()
    with embed(new_inline(disk), 5.0, "default") as fabric:
        topic = fabric.topic("t", partitions=8, keep="latest")
        for number in (2, 6):
            topic.publish(b"v", key=b"k", partition=number)
    kernel = open_engine(disk, FakeClock().now_us(), 1).fabric.kernel
    found = set()
    while (partition := grown_partition(kernel)) is not None:
        assert partition.live_messages == 1
        found.add(partition.number)
    assert found == {2, 6}
