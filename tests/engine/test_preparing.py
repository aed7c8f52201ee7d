"""Segments that are made ahead: only by a busy node, only while nobody else is at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from penstock import Fabric
from penstock.embedded import Inline, embed
from penstock.engine.maintenance import Pace
from penstock.engine.preparing import QUIET_US, ROOM, SLICE_BYTES
from penstock.engine.recovery import open_engine
from penstock.store.disk import DiskError
from penstock.testing import FakeClock, MemoryDisk
from penstock.wire.buffers import Buffer

SEGMENT = 3 * SLICE_BYTES // 2
WANTED = 2
PACE = Pace(prepared=WANTED)


class Node:
    """An engine on a disk in memory, whose upkeep is run by hand."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.clock = FakeClock()
        now_us = self.clock.now_us()
        engine = open_engine(disk, now_us, 1, shards=4, segment_bytes=SEGMENT, pace=PACE)
        self.inline = Inline(engine, disk, self.clock)
        self.engine = engine

    def push(self, fabric: Fabric, size: int) -> None:
        fabric.queue("q").push_many([bytes(1000)] * (size // 1000), batch=100)

    def step(self) -> bool:
        """Runs one step of the upkeep, if there is one."""
        step = self.engine.maintenance.next_step(self.clock.now_us())
        if step is not None:
            step.run()
            self.engine.maintenance.end_step(None, self.clock.now_us())
        return step is not None

    def rest(self, rounds: int = 100) -> int:
        """Nothing happens but the upkeep, for so long: how many steps that were."""
        steps = 0
        for _ in range(rounds):
            while self.step():
                steps += 1
            self.clock.advance(QUIET_US / 1e6)
        return steps

    @property
    def spares(self) -> list[str]:
        return sorted(name for name in self.disk.names() if name.startswith("r-"))


@contextmanager
def opened(node: Node) -> Iterator[Fabric]:
    """The background keeps out."""
    with embed(node.inline, 5.0, "default") as fabric, node.inline.changed:
        yield fabric


@pytest.fixture
def node() -> Node:
    return Node(MemoryDisk())


@pytest.fixture
def fabric(node: Node) -> Iterator[Fabric]:
    with opened(node) as fabric:
        yield fabric


def test_a_node_that_has_filled_a_segment_makes_some_ahead(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    node.rest()
    assert len(node.spares) == WANTED == node.engine.journal.spares
    assert all(node.disk.size(name) == SEGMENT for name in node.spares)
    assert node.engine.maintenance.figures()["prepared_segments"] == WANTED
    assert not node.rest()  # and then sleeps


def test_they_are_used_and_made_again(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    node.rest()
    before = node.spares
    node.push(fabric, SEGMENT)
    assert len(node.spares) < len(before)
    node.rest()
    assert len(node.spares) == WANTED
    popped = 0
    for delivery in fabric.queue("q").consume_batches(idle_timeout=0.01):
        assert set(delivery.values) == {bytes(1000)}
        popped += len(delivery.values)
    assert popped == SEGMENT // 1000 + (SEGMENT + SEGMENT // 2) // 1000


def test_a_node_that_has_little_to_do_makes_none(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT // 2)
    assert not node.rest()
    assert not node.spares


def test_it_waits_while_others_write(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    for _ in range(10):
        node.push(fabric, 1000)
        node.clock.advance(QUIET_US / 2e6)
        while node.step():
            pass
    assert not node.spares
    node.rest()
    assert len(node.spares) == WANTED


def test_who_comes_meanwhile_waits_for_one_slice(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    node.clock.advance(QUIET_US / 1e6)
    while not node.step():
        node.clock.advance(QUIET_US / 1e6)
    assert len(node.spares) == 1  # begun
    node.push(fabric, 1000)
    assert not node.step()
    node.rest()
    assert len(node.spares) == WANTED  # and brought to an end


def test_one_that_was_begun_is_used_after_a_restart(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    node.clock.advance(QUIET_US / 1e6)
    while not node.step():
        node.clock.advance(QUIET_US / 1e6)
    left = MemoryDisk()
    left.files = {name: bytearray(data) for name, data in node.disk.files.items()}
    again = Node(left)
    assert again.engine.journal.spares == 1
    with opened(again) as other:
        again.push(other, 2 * SEGMENT)
        assert not again.spares
        pushed = 2 * SEGMENT // 1000 + SEGMENT * 3 // 2 // 1000
        assert other.queue("q").stats()["messages"] == pushed


def test_a_disk_without_much_room_is_left_alone() -> None:
    node = Node(MemoryDisk(ROOM * WANTED * SEGMENT))
    with opened(node) as fabric:
        node.push(fabric, SEGMENT + SEGMENT // 2)
        node.rest()
        assert not node.spares


class TiredDisk(MemoryDisk):
    """Refuses to write what is made ahead, after the first slice."""

    refused = 0

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        if name.startswith("r-") and offset:
            self.refused += 1
            raise DiskError("tired", full=True)
        super().write(name, offset, parts)


def test_a_disk_that_refuses_keeps_nothing_and_costs_nothing_else() -> None:
    disk = TiredDisk()
    node = Node(disk)
    with opened(node) as fabric:
        node.push(fabric, SEGMENT + SEGMENT // 2)
        node.rest()
        assert disk.refused == 1  # and it was left alone
        assert not node.spares
        assert not node.engine.maintenance.failures
        node.push(fabric, 2 * SEGMENT)
        node.rest()
        assert disk.refused == 2  # it is tried again after others have written


def test_none_is_made_if_there_are_enough_by_then(node: Node, fabric: Fabric) -> None:
    node.push(fabric, SEGMENT + SEGMENT // 2)
    node.step()  # it is due now
    for number in range(WANTED):
        node.disk.create(f"r-{number + 1000:08x}", SEGMENT)
        node.engine.journal.add_spare(f"r-{number + 1000:08x}")
    node.rest()
    assert len(node.spares) == WANTED
    assert not node.engine.maintenance.preparing.made


def test_dead_segments_count_as_spares_to_come(node: Node, fabric: Fabric) -> None:
    node.push(fabric, (WANTED + 1) * SEGMENT)
    for delivery in fabric.queue("q").consume_batches(idle_timeout=0.01):
        delivery.ack()
    fabric.queue("q").flush()
    node.rest()
    assert node.engine.maintenance.dead_segments >= WANTED
    assert not node.spares
