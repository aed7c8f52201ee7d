"""Deliveries of singles: merged or not, a client sees and settles the same messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.blocking_messages import Delivery
from penstock.client.delivery import read_grants
from penstock.client.settle import Settler
from penstock.client.settle_items import ack_items
from penstock.core.effects import Deliver, Serve, Slice
from penstock.core.runs import full
from penstock.core.staged import STAGED
from penstock.engine.delivery import Answer, deliver, serve
from penstock.engine.reader import Found
from penstock.errors import DamagedError, PenstockError
from penstock.testing import FakeClock, MemoryDisk, memory_fabric
from penstock.wire.batch import Batch, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import COUNT, FETCH_HEAD, FRAME_BYTES, Flag, SettleItem, Verb

KINDS = ["plain"] * 6 + ["keyed", "timed", "headers", "compressed", "rows", "damaged"]


def stored(kind: str, base: int) -> Found:
    """A batch as the node has it."""
    if kind == "damaged":
        return DamagedError("damaged")
    count = 5 if kind == "rows" else 1
    times = 9 if kind == "compressed" else 1
    values = [b"value %d" % (base + row) * times for row in range(count)]
    buffer = encode_batch(
        values,
        timestamp_us=1000 + base,
        keys=[b"k%d" % base] * count if kind == "keyed" else None,
        timestamps_us=[base] * count if kind == "timed" else None,
        headers=[{"n": b"%d" % base}] if kind == "headers" else None,
        compression="lz4" if kind == "compressed" else "none",
    )
    stamp(buffer, base, 1, 7)
    return buffer


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[Slice], list[Found]]:
    """Batches of several shards in any order; a grant goes on with the next single of its shard."""
    slices: list[Slice] = []
    found: list[Found] = []
    at = dict.fromkeys(range(3), 100)  # the next position of each shard
    grants = dict.fromkeys(range(3), 1)
    for shard in [*draw(st.lists(st.integers(0, 2), max_size=60)), 0]:
        kind = draw(st.sampled_from(KINDS)) if slices else "plain"
        if kind == "rows" or draw(st.integers(0, 5)) == 0:
            grants[shard] += 1
        base, grant, mask = at[shard], grants[shard], 1
        if kind == "rows":
            mask = draw(st.sampled_from([1, 0b11111, 0b111, 0b10101]))
            grants[shard] += 1
        slices.append(Slice(shard, grant, base, mask, grant % 4 + 1, 0, 0, base))
        found.append(stored(kind, base))
        at[shard] = base + (5 if kind == "rows" else 1)
    return slices, found


def delivered(slices: list[Slice], found: list[Found], merges: bool) -> tuple[Delivery, Answer]:
    answer = deliver(Deliver(1, Verb.DELIVER, 9, Flag.RESPONSE, slices, merges), found)
    return Delivery(read_grants(bytearray(b"".join(answer.parts)), Settler(1))), answer


def seen(delivery: Delivery) -> list[tuple[Any, ...]]:
    return [
        (one.value, one.position, one.shard, one._granted.grant, one.deliveries, one.key,
         one.headers, one.timestamp_us)
        for one in delivery
    ]  # fmt: skip


def named(items: Sequence[SettleItem]) -> list[tuple[int, int, int, int, int]]:
    """Every message that is settled, one by one."""
    each: list[tuple[int, int, int, int, int]] = []
    for op, shard, count, grant, position, arg, mask in items:
        bits = mask or full(count)
        each += [(op, shard, grant, position + n, arg) for n in range(count) if bits >> n & 1]
    return sorted(each)


@settings(max_examples=150, deadline=None)
@given(mixes(), st.data())
def test_merged_or_not_the_messages_and_their_settlements_are_the_same(
    mix: tuple[list[Slice], list[Found]], data: st.DataObject
) -> None:
    (plain, one), (merged, other) = (delivered(*mix, merges) for merges in (False, True))
    assert one.damaged == other.damaged
    assert seen(merged) == seen(plain)
    for column in ("values", "keys", "headers", "deliveries"):
        assert getattr(merged, column) == getattr(plain, column)
    assert np.array_equal(merged.timestamps, plain.timestamps)
    assert named(merged._items(2, 50)) == named(plain._items(2, 50))
    rows = data.draw(st.lists(st.integers(0, len(plain) - 1), unique=True))
    assert named(merged._items(1, 0, rows)) == named(plain._items(1, 0, rows))
    chosen = [[list(each)[row] for row in rows] for each in (merged, plain)]
    assert named(ack_items(chosen[0])) == named(ack_items(chosen[1]))


def test_singles_of_many_shards_travel_as_one_batch() -> None:
    slices = [Slice(n % 4, 1, 100 + n // 4, 1, 1, 0, 0, 100 + n // 4) for n in range(40)]
    found = [stored("plain", part.base) for part in slices]
    delivery, answer = delivered(slices, found, True)
    assert len(answer.parts) == 2
    assert COUNT.unpack_from(answer.parts[0], FRAME_BYTES) == (4, 40)
    assert len(delivery._items(1)) == 4
    whole = Batch.parse(answer.parts[1])
    assert whole.offsets.tolist() == [n % 4 for n in range(40)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS[:-1]), st.integers(0, 3)), max_size=40))
def test_a_topic_is_read_the_same(batches: list[tuple[str, int]]) -> None:
    found: list[Found] = []
    places: list[tuple[int, int, int]] = []
    offset = 10
    for kind, gap in batches:
        offset += gap
        found.append(stored(kind, offset))
        places.append((0, 0, offset))
        offset += 5 if kind == "rows" else 1
    answer = serve(Serve(1, 2, 0, offset, places), found)
    whole = memoryview(b"".join(answer.parts))
    count = FETCH_HEAD.unpack_from(whole, FRAME_BYTES)[2]
    rest = whole[FRAME_BYTES + FETCH_HEAD.size :]
    read: list[Batch] = []
    for _ in range(count):
        length = int.from_bytes(rest[4:8], "little")
        read.append(Batch.parse(rest[:length]))
        rest = rest[length:]
    assert not rest
    expected = [Batch.parse(each) for each in found if not isinstance(each, PenstockError)]
    assert [row for batch in read for row in batch] == [row for b in expected for row in b]


class CountingDisk(MemoryDisk):
    """Counts what is read."""

    reads = 0

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.reads += 1
        return super().read(name, offset, length)

    def read_now(self, name: str, offset: int, length: int) -> bytes | None:
        self.reads += 1
        return super().read_now(name, offset, length)


def test_records_that_lie_together_are_read_together() -> None:
    disk, clock = CountingDisk(), FakeClock()
    with memory_fabric(clock, disk) as fabric:
        fabric.queue("q").push_many([b"%d" % n for n in range(500)], batch=1)
    disk.reads = 0
    with memory_fabric(clock, disk) as fabric:
        before = disk.reads
        assert len(fabric.queue("q").pop_many(500)) == 500
        assert disk.reads - before <= 5


@pytest.fixture
def singles() -> Any:
    with memory_fabric(clock := FakeClock(), shards=4) as fabric:
        queue = fabric.queue("q", lease=30, max_deliveries=2)
        for number in range(40):
            queue.push(b"%02d" % number)
            clock.advance(0.001)
        yield clock, queue


def test_singles_come_oldest_first_and_are_settled_one_by_one(singles: Any) -> None:
    clock, queue = singles
    got = queue.pop_many(40)
    assert [int(m.value) for m in got] == list(range(40))
    assert len({(m.shard, m._granted.grant) for m in got}) == len({m.shard for m in got}) == 2
    got[7].nack()
    got[8].dead()
    got[9].nack(delay=5)
    for message in got[10:20]:
        message.ack(wait=True)
    again = queue.pop_many(40)
    assert [(int(m.value), m.deliveries) for m in again] == [(7, 2)]
    assert [int(m.value) for m in queue.dead.peek(5)] == [8]
    clock.advance(6)
    assert [(int(m.value), m.deliveries) for m in queue.pop_many(40)] == [(9, 2)]
    clock.advance(25)
    back = queue.pop_many(40)
    assert [int(m.value) for m in back] == [*range(7), *range(20, 40)]
    assert {m.deliveries for m in back} == {2}
    assert queue.refused == 0


def test_one_message_cannot_end_the_lease_of_others(singles: Any) -> None:
    clock, queue = singles
    got = queue.pop_many(40)
    got[0].extend(1)
    clock.advance(2)
    assert queue.pop_many(40) == []
    for message in got:
        message.ack(wait=True)
    assert queue.stats()["messages"] == 0


@pytest.mark.parametrize("lost", [0, 4, 7], ids=["first", "middle", "last"])
def test_a_grant_loses_only_what_is_damaged(lost: int) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue = fabric.queue("q", lease=30)
    for number in range(8):
        queue.push(b"message-%d" % number)
    got = queue.pop_many(8)
    got[5].ack(wait=True)
    got[6].nack()
    queue.flush()
    image = MemoryDisk()
    image.files = {name: bytearray(data) for name, data in disk.files.items()}
    fabric.close()
    for data in image.files.values():
        if (at := data.find(b"message-%d" % lost)) >= 0:
            data[at] ^= 0xFF
    with memory_fabric(clock, image, shards=1) as again:
        queue = again.queue("q")
        figures = queue.stats()
        rest = set(range(8)) - {5, lost}
        assert (figures["ready"], figures["leased"]) == (1, len(rest) - 1)
        clock.advance(31)
        assert {int(m.value[-1:]) for m in queue.pop_many(8)} == rest


def test_a_client_that_does_not_know_merged_batches_gets_none() -> None:
    slices = [Slice(0, 1, 100 + n, 1, 1, 0, 0, 100 + n) for n in range(20)]
    found = [stored("plain", part.base) for part in slices]
    assert len(delivered(slices, found, False)[1].parts) == 21
    assert len(delivered(slices, found, True)[1].parts) == 2


def test_what_is_nowhere_on_a_node_keeps_its_own_offsets() -> None:
    """Batches that a copy came without have no location; another node gives them later."""
    bases, stamped = [4, 9, 12], [STAGED + 7, 9, STAGED + 30]
    places = [(0, 0, base) for base in stamped]
    found: list[Found] = [
        bytes(batch_of(b"%d" % base, at)) for base, at in zip(bases, stamped, strict=True)
    ]
    moved = {STAGED + 7: (4, 1), STAGED + 30: (12, 1)}
    answer = serve(Serve(1, 2, 0, 13, places, moved), found)
    batches = [Batch.parse(part) for part in answer.parts[1:]]
    assert [(each.header.base, each.values) for each in batches] == [
        (base, [b"%d" % base]) for base in bases
    ]


def batch_of(value: bytes, base: int) -> bytearray:
    batch = encode_batch([value], timestamp_us=1)
    stamp(batch, base, 1, 1)
    return batch
