"""Keep-latest: the newest message of every key stays, whatever the disk does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.blocking_streams import Topic
from penstock.core.partition import Partition
from penstock.embedded import Inline, embed
from penstock.engine import maintenance
from penstock.engine.engine import Engine
from penstock.engine.recovery import open_engine
from penstock.engine.thinning import thin
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
