"""Keep-latest: the newest message of every key stays, whatever the disk does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.blocking_streams import Topic
from penstock.core.partition import Partition
from penstock.embedded import Inline, embed
from penstock.engine import engine as engines
from penstock.engine import maintenance, thinning
from penstock.engine.engine import Engine
from penstock.engine.recovery import open_engine
from penstock.engine.thinning import thin
from penstock.errors import StorageError
from penstock.store.disk import DiskError
from penstock.store.locations import split
from penstock.testing import FakeClock, MemoryDisk

NEVER = maintenance.Pace(checkpoint_bytes=1 << 40, checkpoint_records=1 << 40)
KEYS = 10


class MoodyDisk(MemoryDisk):
    """Cannot read what includes one place, once."""

    bad: int | None = None

    def read(self, name: str, offset: int, length: int) -> bytes:
        if self.bad is not None and offset <= self.bad < offset + length:
            self.bad = None
            raise DiskError("input/output error")
        return super().read(name, offset, length)


class Patient(Inline):
    """Writes nothing while it waits."""

    waits = False

    def _write(self) -> None:
        if not self.waits:
            super()._write()


def new_inline(disk: MemoryDisk) -> Patient:
    clock = FakeClock()
    return Patient(open_engine(disk, clock.now_us(), 1, shards=1, pace=NEVER), disk, clock)


def fill(topic: Topic, messages: int) -> None:
    """One message a batch; key n mod KEYS has the value n."""
    for number in range(messages):
        topic.publish(b"%d" % number, key=b"k%d" % (number % KEYS))


def only_partition(engine: Engine) -> Partition:
    (partition,) = engine.fabric.kernel.shards[0].partitions.values()
    return partition


def thin_all(inline: Inline) -> None:
    """Thins the only partition."""
    for work in thin(inline.engine, only_partition(inline.engine)):
        if work is not None:
            work()
        inline.run()


def rows_of(topic: Topic) -> dict[bytes | None, list[bytes]]:
    """Values of every key, in order."""
    rows: dict[bytes | None, list[bytes]] = {}
    for batch in topic.read(0):
        for row in batch:
            rows.setdefault(row.key, []).append(row.value)
    return rows


@pytest.mark.parametrize("key", [b"k3", b"new"], ids=["of older ones too", "of no other"])
def test_what_could_not_be_read_once_is_not_removed(key: bytes) -> None:
    disk = MoodyDisk()
    inline = new_inline(disk)
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        topic = fabric.topic("t", partitions=1, keep="latest")
        fill(topic, 3 * KEYS)
        topic.publish(b"newest", key=key)
        topic.publish(b"other", key=b"k4")
        newest = list(only_partition(inline.engine).index.rows())[-2]
        disk.bad = split(newest.location)[1]
        thin_all(inline)
        assert disk.bad is None
        rows = rows_of(topic)
        assert rows[key][-1] == b"newest"
        # Of its key, which has it and the last one before it, nothing else is certain.
        expected = {b"k%d" % n: [b"%d" % (2 * KEYS + n)] for n in range(KEYS)} | {b"k4": [b"other"]}
        expected[key] = [*expected.get(key, []), b"newest"]
        assert rows == expected
        thin_all(inline)
        assert rows_of(topic)[key] == [b"newest"]


class RepeatingDisk(MemoryDisk):
    """Tells when something is read that was read before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, int]] = set()
        self.again: Callable[[], object] = bool

    def read(self, name: str, offset: int, length: int) -> bytes:
        if (name, offset) in self.seen:
            self.again()
        self.seen.add((name, offset))
        return super().read(name, offset, length)


def test_a_batch_that_is_written_meanwhile_is_not_removed() -> None:
    """One that is kept in memory can be read before it is on the disk."""
    disk = RepeatingDisk()
    inline = new_inline(disk)

    def write() -> None:
        inline.waits = False
        inline.run()

    with embed(inline, 5.0, "default") as fabric, inline.changed:
        topic = fabric.topic("t", partitions=1, keep="latest", durability="memory")
        fill(topic, 3 * KEYS)
        inline.waits = True  # the thread of the journal is busy
        topic.publish(b"newest", key=b"k3")
        topic.publish(b"newer than it", key=b"new")
        topic.publish(b"other", key=b"k4")
        disk.seen.clear()
        disk.again = write
        thin_all(inline)
        assert not inline.waits
        rows = rows_of(topic)
        assert (rows[b"k3"], rows[b"new"]) == ([b"newest"], [b"newer than it"])
        assert sum(map(len, rows.values())) == KEYS + 1


PENDING_BYTES = 20_000  # the journal takes no more; a note has 80
BUSY_BYTES = 5_000


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_BYTES", BUSY_BYTES)
    monkeypatch.setattr(thinning, "NOTES_A_PART", 100)


@pytest.mark.usefixtures("small_parts")
def test_what_is_found_is_noted_as_the_journal_takes_it() -> None:
    disk = MemoryDisk()
    inline = new_inline(disk)
    engine = inline.engine
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        topic = fabric.topic("t", partitions=1, keep="latest")
        fill(topic, 1000)
        engine.journal._max_pending_bytes = PENDING_BYTES
        inline.waits = True
        most = waited = 0
        for work in thin(engine, only_partition(engine)):
            most = max(most, engine.journal.pending_bytes)
            if work is not None:
                work()
            else:  # that the journal has written is an event
                waited += 1
                inline.waits = False
                inline.run()
                inline.waits = True
        assert waited > 5
        assert most < PENDING_BYTES
        inline.waits = False
        inline.run()
        assert only_partition(engine).live_messages == KEYS
        topic.publish(b"after", key=b"k1")
    with embed(new_inline(disk), 5.0, "default") as fabric:
        newest = {key: values[-1] for key, values in rows_of(fabric.topic("t")).items()}
        expected = {b"k%d" % n: b"%d" % (990 + n) for n in range(KEYS)}
        assert newest == expected | {b"k1": b"after"}


@pytest.mark.usefixtures("small_parts")
def test_nothing_is_noted_while_the_disk_refuses() -> None:
    inline = new_inline(MemoryDisk())
    engine = inline.engine
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        fill(fabric.topic("t", partitions=1, keep="latest"), 1000)
        work = thin(engine, only_partition(engine))
        first = next(work)
        assert first is not None
        first()
        engine.fabric.refuse(StorageError("the disk is full"))
        assert next(work) is None
        engine.fabric.refuse(None)
        assert next(work) is not None
        assert only_partition(engine).live_messages == 900


def delete(engine: Engine) -> None:
    """The topic is gone."""
    engine.fabric.kernel.undefine(only_partition(engine).stream)


def lose(engine: Engine) -> None:
    """Another node owns the shard."""
    engine.fabric.end_shard(engine.fabric.kernel.shards[0])


def replace(engine: Engine) -> None:
    """Another state of the shard is in the place of this one, and this node owns it again."""
    shard, partition = engine.fabric.kernel.shards[0], only_partition(engine)
    again = type(partition).restore(
        partition.stream, 0, partition.options, partition.totals, partition.snapshot()
    )
    shard.partitions[partition.stream, 0] = again


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("end", [delete, lose, replace])
@pytest.mark.parametrize("steps", [1, 2])
def test_it_ends_with_its_partition(end: Callable[[Engine], None], steps: int) -> None:
    """Before the first part is noted, and between two."""
    inline = new_inline(MemoryDisk())
    engine = inline.engine
    with embed(inline, 5.0, "default") as fabric, inline.changed:
        fill(fabric.topic("t", partitions=1, keep="latest"), 1000)
        shard, work = engine.fabric.kernel.shards[0], thin(engine, only_partition(engine))
        for _ in range(steps):
            step = next(work)
            assert step is not None
            step()
            inline.run()
        end(engine)
        inline.run()
        before = shard.last
        assert list(work) == []
        assert shard.last == before
        engine.fabric.begin_shard(shard, inline.clock.now_us(), 1 << 40)  # so that it can close
