"""A disk that is full of what nobody wants any more gets room again by itself."""

from __future__ import annotations

import pytest

from penstock.embedded import Inline, embed
from penstock.engine.maintenance import LOOK_EVERY_US
from penstock.engine.recovery import open_engine
from penstock.errors import StorageError
from penstock.store import segments
from penstock.store.memory import MemoryDisk
from penstock.testing import FakeClock

SEGMENT = 256 << 10
VALUE = bytes(16 << 10)


class SharedDisk(MemoryDisk):
    """Others take some of it."""

    taken = 0

    def free_bytes(self) -> int:
        return super().free_bytes() - self.taken


def node_on(disk: MemoryDisk, clock: FakeClock) -> Inline:
    engine = open_engine(disk, clock.now_us(), 1, shards=1, segment_bytes=SEGMENT)
    return Inline(engine, disk, clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def pass_time(node: Inline, clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    for _ in range(50):
        node.run()
        node.maintain()


def test_what_passes_through_does_not_fill_the_disk(clock: FakeClock) -> None:
    disk = MemoryDisk(capacity=SEGMENT * 7 // 2)
    node = node_on(disk, clock)
    with embed(node, 5.0, "default") as fabric, node.changed:  # the background keeps out
        queue = fabric.queue("q")
        for _ in range(200):
            queue.push(VALUE)
            message = queue.pop()
            assert message is not None
            message.ack(wait=True)
            pass_time(node, clock, 2 * LOOK_EVERY_US / 1e6)
        assert disk.free_bytes() >= 0
        assert node.engine.maintenance.checkpoints < 40


def test_a_disk_that_others_have_filled_lets_its_garbage_go(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three segments that nobody wants, and no room for another, which a checkpoint would need."""
    monkeypatch.setattr(segments, "SMALL_BYTES", 32 << 10)
    disk = SharedDisk(capacity=SEGMENT * 100)
    node = node_on(disk, clock)
    with embed(node, 5.0, "default") as fabric, node.changed:
        queue = fabric.queue("q")
        queue.push_many([VALUE] * 45, batch=1)
        while message := queue.pop():
            message.ack(wait=True)
        disk.taken += disk.free_bytes() - (100 << 10)
        with pytest.raises(StorageError):
            queue.push_many([VALUE] * 40, batch=1)
        for _ in range(20):
            pass_time(node, clock, 5.0)
        assert node.engine.fabric.kernel.refusing is None
        for _ in range(60):
            queue.push(VALUE)
            taken = queue.pop()
            assert taken is not None
            taken.ack(wait=True)
            pass_time(node, clock, 2 * LOOK_EVERY_US / 1e6)
