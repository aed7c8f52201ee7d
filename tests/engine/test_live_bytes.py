"""How much of each file is live: to the byte, or a file is deleted that somebody wants."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tests.engine.test_maintenance import work_off

import penstock
from penstock.embedded import Inline, embed
from penstock.engine import maintenance
from penstock.engine.recovery import all_stored, open_engine
from penstock.errors import DamagedError
from penstock.store.files import Limits
from penstock.store.locations import split
from penstock.store.memory import MemoryDisk
from penstock.testing import FakeClock

SEGMENT = 64 << 10
PACE = maintenance.Pace(1 << 40, 1 << 40, Limits(keep_journal=0, dead_bytes=0))


def new_inline(disk: MemoryDisk, clock: FakeClock, **settings: Any) -> Inline:
    engine = open_engine(
        disk, clock.now_us(), 1, shards=2, segment_bytes=SEGMENT, pace=PACE, **settings
    )
    return Inline(engine, disk, clock)


def check_files(inline: Inline) -> None:
    """Each has as much that is live as the batches in it say."""
    stored = Counter[int]()
    for batch in all_stored(inline.engine.fabric):
        stored[split(batch.location)[0]] += batch.live_bytes
    files = inline.engine.files
    assert {file.number: file.live for file in files.all() if file.live} == dict(+stored)
    assert files.live_bytes == stored.total()


def clean(inline: Inline, clock: FakeClock) -> None:
    inline.run()
    clock.advance(maintenance.LOOK_EVERY_US / 1e6)
    work_off(inline)
    inline.engine.maintenance.want_checkpoint()
    work_off(inline)


@pytest.mark.parametrize("seed", range(12))
def test_files_are_as_live_as_their_batches_whatever_is_cleaned(seed: int) -> None:
    chance, disk, clock = random.Random(seed), MemoryDisk(), FakeClock()
    inline = new_inline(disk, clock)
    with embed(inline, 5.0, "default") as fabric, inline.changed:  # the background keeps out
        queue, other = fabric.queue("q"), fabric.queue("other")
        for number in range(120):
            size = chance.randrange(2, 30)
            queue.push_many([b"%d.%d" % (number, row) for row in range(size)], batch=size)
        taken: list[penstock.Message] = []
        while some := queue.pop_many(1000, lease=3600.0):
            taken += some
        chance.shuffle(taken)
        for _ in range(8):
            for message in taken[: len(taken) // 2]:
                message.ack(wait=True)
            del taken[: len(taken) // 2]
            other.push_many([bytes(1000)] * 80, batch=20)  # the segment ends
            clean(inline, clock)
            check_files(inline)
        kept = sorted(message.value for message in taken)
        assert kept
        for message in taken:
            message.nack()
        assert sorted(message.value for message in queue.pop_many(100)) == kept
        assert inline.engine.maintenance.cleaned_files > 3


def test_a_start_without_a_file_that_is_wanted_says_so() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    inline = new_inline(disk, clock)
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        queue = fabric.queue("q")
        queue.push_many([bytes(1000)] * 200, batch=20)
        fabric.queue("last").push(b"x")
        clean(inline, clock)
        (lost, *_) = [file for file in inline.engine.files.all() if file.kind == "s"]
        inline.engine.files.drop(lost.number)  # as if it had been taken for dead
        inline.engine.maintenance.want_checkpoint()
        work_off(inline)
        disk.delete(lost.name)
    clock.advance(1)
    with pytest.raises(DamagedError, match=f"file {lost.number}"):
        new_inline(disk, clock)
    again = new_inline(disk, clock, accept_damage=True)
    with embed(again, 5.0, "default") as fabric:
        assert fabric.queue("last").pop_many(10)[0].value == b"x"
        assert again.engine.recovered["damages"]
