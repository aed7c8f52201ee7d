"""Upkeep that does not grow with what it has nothing to do with."""

from __future__ import annotations

import pytest

from penstock.core.liveness import grown_partition
from penstock.embedded import Inline, embed
from penstock.engine import maintenance
from penstock.engine.recovery import open_engine
from penstock.testing import FakeClock, MemoryDisk


def new_inline(disk: MemoryDisk, shards: int = 16) -> Inline:
    clock = FakeClock()
    return Inline(open_engine(disk, clock.now_us(), 1, shards=shards), disk, clock)


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
