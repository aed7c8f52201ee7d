"""Reopening: what was committed is there, what is damaged is named, nothing is invented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import Fabric, Message, Queue
from penstock.core.records import Kind
from penstock.embedded import Inline, embed
from penstock.engine.engine import Engine
from penstock.engine.recovery import open_engine
from penstock.errors import DamagedError
from penstock.node.clock import Clock
from penstock.node.node import open_directory
from penstock.testing import FakeClock, MemoryDisk, memory_fabric


def crash(fabric: Fabric, disk: MemoryDisk) -> MemoryDisk:
    """The disk as a killed process leaves it: everything written, no checkpoint at the end."""
    image = MemoryDisk()
    image.files = {name: bytearray(data) for name, data in disk.files.items()}
    fabric.close()
    return image


def popped(queue: Queue) -> Message:
    message = queue.pop()
    assert message is not None
    return message


def fill(fabric: Fabric) -> None:
    queue = fabric.queue("q", lease=30)
    queue.push_many([b"m%d" % number for number in range(100)], batch=10)
    for message in queue.pop_many(30):
        message.ack()
    queue.flush()
    queue.push(b"later", delay=60)
    queue.push(b"held", id="h", hold=True)
    queue.push(b"urgent", priority=9)
    topic = fabric.topic("t", partitions=2)
    topic.publish_many([b"e%d" % n for n in range(10)], keys=[b"k%d" % n for n in range(10)])
    topic.commit("g", {0: 1})
    table = fabric.table("kv")
    table.put("a", b"1")
    table.append("a", b"2")
    table.put("gone", b"x")
    table.delete("gone")


def look(fabric: Fabric) -> dict[str, object]:
    queue, topic, table = fabric.queue("q"), fabric.topic("t"), fabric.table("kv")
    stats = queue.stats()
    return {
        "queue": {name: stats[name] for name in ("ready", "delayed", "held", "dead", "messages")},
        "offsets": topic.offsets(),
        "rows": [row.value for p in range(2) for b in topic.read(p, 0) for row in b],
        "committed": topic.committed("g"),
        "table": list(table.items()),
    }


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "killed"])
def test_everything_is_there_after_a_restart(clean: bool) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    fill(fabric)
    before = look(fabric)
    if clean:
        fabric.close()
    else:
        disk = crash(fabric, disk)
    with memory_fabric(clock, disk) as again:
        assert look(again) == before
        assert popped(again.queue("q")).value == b"urgent"


def test_leases_outlive_a_restart_and_then_start_anew() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    queue = fabric.queue("q", lease=30)
    queue.push(b"m")
    assert popped(queue).deliveries == 1
    clock.advance(20)
    disk = crash(fabric, disk)
    with memory_fabric(clock, disk) as again:
        queue = again.queue("q")
        clock.advance(20)
        assert queue.pop() is None
        clock.advance(11)
        assert popped(queue).deliveries == 2


def flip(disk: MemoryDisk, needle: bytes) -> None:
    """Damages the stored bytes that contain `needle`, wherever they are."""
    for name, data in disk.files.items():
        at = data.find(needle)
        if name.startswith(("j-", "s-")) and at >= 0:
            data[at] ^= 0xFF
            return
    raise AssertionError(f"{needle!r} is not on the disk")


def test_a_damaged_batch_is_quarantined_and_everything_else_served() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    queue, topic = fabric.queue("q"), fabric.topic("t", partitions=1)
    queue.push(b"bad-queue-message")
    queue.push(b"good")
    topic.publish(b"zero")
    topic.publish(b"bad-topic-message")
    topic.publish(b"two")
    disk = crash(fabric, disk)
    flip(disk, b"bad-queue-message")
    flip(disk, b"bad-topic-message")
    with memory_fabric(clock, disk) as again:
        assert [m.value for m in again.queue("q").pop_many(10)] == [b"good"]
        assert again.stats()["damaged"] == 2
        topic = again.topic("t")
        assert topic.offsets() == [(0, 3)]
        read = iter(topic.read(0, 0))
        assert next(read).values == [b"zero"]
        with pytest.raises(DamagedError, match="offsets 1 to 1"):
            next(read)
        assert [row.value for batch in topic.read(0, 2) for row in batch] == [b"two"]


def test_a_record_that_cannot_be_read_stops_the_start_unless_it_is_accepted() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    queue = fabric.queue("q")
    for number in range(20):
        queue.push(b"message %d" % number)
    disk = crash(fabric, disk)
    journal = next(data for name, data in disk.files.items() if name.startswith("j-"))
    at = journal.find(b"PSR1", 2000)
    journal[at + 33] ^= 0xFF  # the log number of some record: its header does not hold any more
    with pytest.raises(DamagedError, match="j-"):
        open_engine(disk, clock.now_us(), 1)
    engine = open_engine(disk, clock.now_us(), 1, accept_damage=True)
    assert engine.recovered["damages"]


def test_messages_whose_record_is_lost_are_named_and_not_passed_over() -> None:
    """A reader of a topic must not find the next ones as if nothing had been between."""
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue, topic = fabric.queue("q"), fabric.topic("t", partitions=1)
    for value in (b"zero", b"lost-one", b"two"):
        queue.push(b"queued-" + value)
        topic.publish(value)
    disk = crash(fabric, disk)
    journal = next(data for name, data in disk.files.items() if name.startswith("j-"))
    for lost in (b"queued-lost-one", b"lost-one"):
        at = journal.rfind(b"PSR1", 0, journal.rfind(lost))
        journal[at + 33] ^= 0xFF
    engine = open_engine(disk, clock.now_us(), 1, accept_damage=True)
    with embed(Inline(engine, disk, clock), 5.0, "default") as again:
        topic = again.topic("t")
        read = iter(topic.read(0, 0))
        assert next(read).values == [b"zero"]
        with pytest.raises(DamagedError, match="offsets 1 to 1"):
            next(read)
        assert [row.value for batch in topic.read(0, 2) for row in batch] == [b"two"]
        assert topic.publish(b"three").base == 3
        assert len(again.queue("q").pop_many(10)) == 2
        assert again.stats()["damaged"] == 2


def test_what_comes_after_a_lost_first_batch_is_served() -> None:
    """The lease of what is lost says nothing of what was pushed later."""
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue = fabric.queue("q", lease=30)
    queue.push(b"first-one")
    popped(queue).ack()
    queue.flush()
    queue.push(b"second")
    queue.push(b"third")
    disk = crash(fabric, disk)
    journal = next(data for name, data in disk.files.items() if name.startswith("j-"))
    at = journal.rfind(b"PSR1", 0, journal.find(b"first-one"))
    journal[at + 33] ^= 0xFF
    engine = open_engine(disk, clock.now_us(), 1, accept_damage=True)
    with embed(Inline(engine, disk, clock), 5.0, "default") as again:
        assert {m.value for m in again.queue("q").pop_many(10)} == {b"second", b"third"}
        again.queue("q").push(b"fourth")
        assert popped(again.queue("q")).value == b"fourth"


@pytest.mark.parametrize("ordered", [False, pytest.param(True, marks=pytest.mark.slow), "key"])
def test_whichever_record_cannot_be_read_what_is_left_is_served(ordered: bool | str) -> None:
    """Later records may speak of what the lost one said: of messages, leases or dead letters."""
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    queue = fabric.queue("q", ordered=ordered, max_deliveries=1)
    queue.push_many([b"a", b"b", b"c"], keys=[b"1", b"1", b"2"])
    for number in range(4):
        queue.push(b"%d" % number, key=b"1")
    for settle in ("ack", "nack", "dead"):
        for message in queue.pop_many(2):
            getattr(message, settle)()
        queue.flush()
    stored = crash(fabric, disk)
    name = next(name for name in stored.files if name.startswith("j-"))
    sent = {b"a", b"b", b"c", b"0", b"1", b"2", b"3"}
    starts = [found.start() for found in re.finditer(b"PSR1", stored.files[name])]
    assert len(starts) > 8
    for start in starts:
        broken = MemoryDisk()
        broken.files = {each: bytearray(data) for each, data in stored.files.items()}
        broken.files[name][start + 33] ^= 0xFF
        engine = open_engine(broken, clock.now_us(), 1, accept_damage=True)
        with embed(Inline(engine, broken, clock), 5.0, "default") as again:
            found = {message.value for message in again.queue("q", ordered=ordered).pop_many(10)}
            assert found <= sent


def test_a_lease_over_several_batches_stands_without_the_one_that_is_lost() -> None:
    """What the lease says of the others counts: what was acked is not served again, what was not is
    served when the lease is over, and the lost ones are counted nowhere."""
    disk, clock = MemoryDisk(), FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=1)
    fabric = embed(Inline(engine, disk, clock), 5.0, "default")
    queue = fabric.queue("q", lease=30)
    sent = [b"%02d" % number for number in range(40)]
    for at in range(0, 40, 5):
        queue.push_many(sent[at : at + 5])
    leased = queue.pop_many(30)
    for message in leased[:20]:
        message.ack()
    queue.flush()
    stored = crash(fabric, disk)
    name = next(name for name in stored.files if name.startswith("j-"))
    journal = stored.files[name]
    starts = [found.start() for found in re.finditer(b"PSR1", journal)]
    pushes = [(start, at) for start, at in zip(starts, range(-5, 40, 5), strict=False) if at >= 0]
    assert all(journal.find(sent[at], start) > 0 for start, at in pushes)
    for start, at in pushes:  # the first record defines the queue
        broken = MemoryDisk()
        broken.files = {each: bytearray(data) for each, data in stored.files.items()}
        broken.files[name][start + 33] ^= 0xFF
        engine = open_engine(broken, clock.now_us(), 1, accept_damage=True)
        with embed(Inline(engine, broken, clock), 5.0, "default") as again:
            left = again.queue("q")
            expected = [value for value in sent[20:] if value not in sent[at : at + 5]]
            assert left.stats()["messages"] == len(expected)
            clock.advance(31)
            assert sorted(message.value for message in left.pop_many(100)) == expected


@pytest.mark.parametrize("several", [False, True], ids=["singles", "batches"])
def test_what_was_acked_stays_so_although_the_record_of_its_lease_is_lost(several: bool) -> None:
    """And what was leased and acked after that stays so as well; what was not comes again."""
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue = fabric.queue("q", lease=30)
    sent = [b"%02d" % number for number in range(20)]
    queue.push_many(sent, batch=5 if several else 1)
    for _ in range(4):
        leased = queue.pop_many(4)
        for message in leased[::2]:
            message.ack()
        queue.flush()
    stored = crash(fabric, disk)
    name = next(name for name in stored.files if name.startswith("j-"))
    starts = [found.start() for found in re.finditer(b"PSR1", stored.files[name])]
    grants = [start for start in starts if stored.files[name][start + 26] == Kind.GRANT]
    assert len(grants) == 4
    for start in grants[:-1]:  # the last is in the end that a crash may tear off
        broken = MemoryDisk()
        broken.files = {each: bytearray(data) for each, data in stored.files.items()}
        broken.files[name][start + 33] ^= 0xFF
        engine = open_engine(broken, clock.now_us(), 1, accept_damage=True)
        assert len(engine.recovered["damages"]) == 1, engine.recovered["damages"]
        with embed(Inline(engine, broken, clock), 5.0, "default") as again:
            left = again.queue("q")
            assert left.stats()["messages"] == 12
            clock.advance(31)
            found = sorted(message.value for message in left.pop_many(100))
            assert found == [*sent[1:16:2], *sent[16:]]


def without(disk: MemoryDisk, kind: int, which: int, clock: FakeClock) -> Engine:
    """The engine that goes on without a record of this kind, counted from the start."""
    name = next(name for name in disk.files if name.startswith("j-"))
    starts = [found.start() for found in re.finditer(b"PSR1", disk.files[name])]
    chosen = [start for start in starts if disk.files[name][start + 26] == kind][which]
    disk.files[name][chosen + 33] ^= 0xFF
    return open_engine(disk, clock.now_us(), 1, accept_damage=True)


def test_what_was_acked_after_a_delay_stays_so_without_the_record_of_its_lease() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue = fabric.queue("q", lease=30)
    queue.push(b"acked", delay=5)
    queue.push(b"left")
    clock.advance(6)
    leased = {message.value: message for message in queue.pop_many(2)}
    leased[b"acked"].ack(wait=True)
    queue.push(b"later")
    engine = without(crash(fabric, disk), Kind.GRANT, 0, clock)
    with embed(Inline(engine, engine.disk, clock), 5.0, "default") as again:
        clock.advance(31)
        assert {message.value for message in again.queue("q").pop_many(9)} == {b"left", b"later"}


@pytest.mark.parametrize("settle", ["nack", "expire"])
def test_what_was_acked_stays_so_without_the_record_of_an_earlier_leases_end(settle: str) -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    queue = fabric.queue("q", lease=30)
    queue.push(b"acked")
    if settle == "nack":
        popped(queue).nack()
        queue.flush()
    else:
        popped(queue)
        clock.advance(31)
    again = popped(queue)
    assert again.deliveries == 2
    again.ack(wait=True)
    queue.push(b"later")
    engine = without(crash(fabric, disk), Kind.CHANGE, 0, clock)
    assert len(engine.recovered["damages"]) == 1, engine.recovered["damages"]
    with embed(Inline(engine, engine.disk, clock), 5.0, "default") as after:
        clock.advance(31)
        assert [message.value for message in after.queue("q").pop_many(9)] == [b"later"]


def test_offsets_that_a_group_has_read_are_not_used_again() -> None:
    """The last messages of a partition are lost, and the commit behind them is not."""
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    topic = fabric.topic("t", partitions=1)
    for value in (b"zero", b"one", b"two"):
        topic.publish(value)
    topic.commit("g", {0: 3})
    fabric.queue("q").push(b"more, so that this is no torn end")
    fabric.queue("q").push(b"more")
    engine = without(crash(fabric, disk), Kind.PUSH, 2, clock)
    with embed(Inline(engine, engine.disk, clock), 5.0, "default") as again:
        topic = again.topic("t")
        assert topic.publish(b"three").base == 3
        with pytest.raises(DamagedError, match="offsets 2 to 2"):
            list(topic.read(0, 2))
        assert [row.value for batch in topic.read(0, 3) for row in batch] == [b"three"]
        assert again.stats()["damaged"] == 1


def test_a_lost_record_and_a_damaged_batch_behind_it_are_both_named() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk, shards=1)
    topic = fabric.topic("t", partitions=1)
    for value in (b"zero", b"lost-record", b"bad-payload", b"three", b"four"):
        topic.publish(value)
    disk = crash(fabric, disk)
    flip(disk, b"bad-payload")
    engine = without(disk, Kind.PUSH, 1, clock)
    with embed(Inline(engine, engine.disk, clock), 5.0, "default") as again:
        topic = again.topic("t")
        for offset in (1, 2):
            with pytest.raises(DamagedError, match=f"offsets {offset} to {offset}"):
                list(topic.read(0, offset))
        assert [row.value for batch in topic.read(0, 3) for row in batch] == [b"three", b"four"]
        assert again.stats()["damaged"] == 2


def test_a_damaged_message_that_was_acknowledged_does_not_stop_the_start() -> None:
    disk, clock = MemoryDisk(), FakeClock()
    fabric = memory_fabric(clock, disk)
    queue = fabric.queue("q", ordered=True)
    queue.push(b"damaged-and-done")
    queue.push(b"next")
    message = queue.pop()
    assert message is not None
    message.ack(wait=True)
    disk = crash(fabric, disk)
    flip(disk, b"damaged-and-done")
    with memory_fabric(clock, disk) as again:
        message = again.queue("q").pop()
        assert message is not None
        assert message.value == b"next"


def test_a_clock_that_was_set_back_goes_on_where_it_was(tmp_path: Path) -> None:
    later = Clock()
    later.not_before(later.now_us() + 3600 * 1_000_000)
    disk, engine = open_directory(str(tmp_path), later)
    with embed(Inline(engine, disk, later), 5.0, "default") as fabric:
        fabric.topic("t", partitions=1).publish(b"from the future")
        stored_us = later.now_us()
    clock = Clock()
    disk, engine = open_directory(str(tmp_path), clock)
    with embed(Inline(engine, disk, clock), 5.0, "default") as fabric:
        assert clock.now_us() > stored_us - 60_000_000
        assert fabric.topic("t").offsets() == [(0, 1)]
