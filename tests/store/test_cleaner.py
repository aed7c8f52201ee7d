"""Cleaning keeps what is live, and the accounting follows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.cleaner import Cleaner, CleanJob, Live
from penstock.store.disk import DiskError
from penstock.store.files import Files, Limits
from penstock.store.journal import Journal
from penstock.store.locations import split
from penstock.store.memory import MemoryDisk
from penstock.store.record import FileHeader, payload_of
from penstock.store.scan import Record, scan
from penstock.wire.batch import Batch
from penstock.wire.entry import Entry

DIRECTORY = 5

EAGER = Limits(keep_journal=8, dead_bytes=0)


class Table:
    """An owner: knows by the record's location which positions of a batch live."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.live: dict[int, list[int]] = {}
        self.counts: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.left: dict[int, int] = {}

    def store(self, entry: Entry) -> None:
        assert entry.payload is not None
        self._put(entry.location, list(range(len(Batch.parse(entry.payload)))), entry.length)

    def _put(self, location: int, live: list[int], length: int, count: int = 0) -> None:
        self.live[location] = live
        self.counts[location] = count or len(live)
        self.lengths[location] = length
        self.left[location] = length * len(live) // self.counts[location]
        self.files.stored(location, self.left[location])

    def kill(self, location: int, position: int) -> None:
        live = self.live[location]
        share = self.left[location] // len(live)  # the last one gives back what rounding left
        live.remove(position)
        self.left[location] -= share
        self.files.freed(location, share)

    def live_positions(self, shard, kind, meta, location) -> Live | None:
        live = self.live.get(location, [])
        if len(live) == self.counts.get(location, 0):
            return "all" if live else None
        return np.array(live, np.int64) if live else None

    def apply(self, moves) -> None:
        for move in moves:
            self.files.freed(move.old_location, self.left.pop(move.old_location))
            assert self.lengths[move.old_location] == move.old_length
            live = self.live.pop(move.old_location)
            self._put(move.new_location, live, move.new_length, move.rows)

    def values(self, disk: MemoryDisk) -> list[bytes]:
        found = []
        for location, live in self.live.items():
            if live:
                name, offset = self.files.name_of(location), split(location)[1]
                batch = Batch.parse(payload_of(disk.read(name, offset, self.lengths[location])))
                assert len(batch) == self.counts[location]
                values = dict(zip(batch.offsets.tolist(), batch.values, strict=True))
                found += [values[position] for position in live]
        return found


def drive(job: CleanJob, table: Table) -> None:
    while job.plan_scan():
        job.choose(table)
        job.copy()
    job.sync()
    table.apply(job.finish())


def drop(cleaner: Cleaner, number: int) -> None:
    assert cleaner.files[number].live == 0
    cleaner.disk.delete(cleaner.files[number].name)
    cleaner.files.drop(number)


def world(disk, batch_of, batches, segment_bytes=1 << 14) -> tuple[Files, Table]:
    files = Files()
    journal = Journal(disk, files, DIRECTORY, segment_bytes=segment_bytes)
    table = Table(files)
    for number, (shard, rows, size) in enumerate(batches, start=1):
        entry = Entry(shard, 4, 9, number, b"meta%d" % number, batch_of(size, number, rows))
        journal.append(entry)
        journal.append(Entry(shard, 5, 9, number, b"no payload"))
        while flush := journal.next_flush(0):
            flush.run()
            journal.finish(flush)
        table.store(entry)
    return files, table


BATCHES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 8), st.sampled_from([1, 40, 700])),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(BATCHES, st.randoms(use_true_random=False))
def test_cleaning_keeps_live_rows_and_bounds_the_disk(batch_of, batches, rng) -> None:
    disk = MemoryDisk()
    files, table = world(disk, batch_of, batches)
    cleaner = Cleaner(disk, files, DIRECTORY, segment_bytes=1 << 13)
    for _ in range(3):
        for location, live in table.live.items():
            for position in list(live):
                if rng.random() < 0.4:
                    table.kill(location, position)
        expected = sorted(table.values(disk))
        victims = files.victims(EAGER)
        for _ in range(100):
            if not victims:
                break
            if files[victims[0]].live:
                drive(cleaner.clean(victims[0]), table)
            drop(cleaner, victims[0])
            assert sorted(table.values(disk)) == expected
            victims = files.victims(EAGER)
        assert not victims
        open_bytes = sum(file.used for file in files.all() if file.kind == "j" and not file.sealed)
        assert files.used_bytes <= 2 * files.live_bytes + open_bytes + 64 * len(files)
        assert sorted(disk.names()) == sorted(file.name for file in files.all())


def test_copies_keep_who_they_are(batch_of) -> None:
    disk = MemoryDisk()
    files, table = world(disk, batch_of, [(1, 4, 10), (2, 1, 10)], 1 << 20)
    first = next(iter(table.live))
    for row in (0, 2):
        table.kill(first, row)
    job = Cleaner(disk, files, DIRECTORY).clean(1)
    drive(job, table)
    copies = [file for file in files.all() if file.kind == "s"]
    assert [copy.shard for copy in copies] == [1, 2]
    assert all(not copy.sealed for copy in copies)
    record, _ = scan(disk, copies[0].name, end=copies[0].used)
    assert isinstance(record, Record)
    assert (record.shard, record.kind, record.epoch, record.number) == (1, 4, 9, 1)
    assert record.meta == b"meta1"
    assert record.payload is not None
    batch = Batch.parse(record.payload)
    assert batch.offsets.tolist() == [1, 3]
    assert batch.values == [bytes([2]) * 10, bytes([4]) * 10]
    header = FileHeader.parse(disk.read(copies[1].name, 0, 64))
    assert header == FileHeader("s", copies[1].number, 2, DIRECTORY, 0)
    assert record.location + record.length == copies[0].number << 32 | copies[0].used


def test_open_segments_are_appended_to_also_after_a_restart(batch_of) -> None:
    disk = MemoryDisk()
    files, table = world(disk, batch_of, [(1, 2, 700)] * 20, 4096)
    sealed = [file.number for file in files.all() if file.sealed]
    drive(Cleaner(disk, files, DIRECTORY).clean(sealed[0]), table)
    files = table.files = Files.load(files.dump())
    expected = sorted(table.values(disk))
    cleaner = Cleaner(disk, files, DIRECTORY)
    drive(cleaner.clean(sealed[1]), table)
    assert [file.kind for file in files.all()].count("s") == 1
    for number in sealed[:2]:
        drop(cleaner, number)
    assert sorted(table.values(disk)) == expected


def test_one_job_at_a_time(batch_of) -> None:
    disk = MemoryDisk()
    files, table = world(disk, batch_of, [(1, 1, 10)] * 2)
    cleaner = Cleaner(disk, files, DIRECTORY)
    job = cleaner.clean(1)
    with pytest.raises(ValueError, match="another"):
        cleaner.clean(1)
    drive(job, table)


class FullDisk(MemoryDisk):
    failing = ""

    def create(self, name, size=0, recycle=None):
        if self.failing == "create":
            raise DiskError("full", full=True)
        super().create(name, size, recycle)

    def sync(self, name):
        if self.failing == "sync":
            raise DiskError("sync failed")
        super().sync(name)


@pytest.mark.parametrize("action", ["create", "sync"])
def test_an_abandoned_job_changes_nothing(batch_of, action: str) -> None:
    disk = FullDisk()
    files, table = world(disk, batch_of, [(1, 2, 700)] * 20, 4096)
    sealed = [file.number for file in files.all() if file.sealed]
    expected = sorted(table.values(disk))
    cleaner = Cleaner(disk, files, DIRECTORY)
    disk.failing = action
    job = cleaner.clean(sealed[0])
    with pytest.raises(DiskError):
        drive(job, table)
    job.abandon()
    disk.failing = ""
    assert sorted(table.values(disk)) == expected
    for file in files.all():
        if file.kind == "s":
            drop(cleaner, file.number)
    drive(cleaner.clean(sealed[0]), table)
    drop(cleaner, sealed[0])
    assert sorted(table.values(disk)) == expected


class NoRoomDisk(MemoryDisk):
    """Makes empty files, and refuses what is to be in those of the cleaner from an offset on."""

    room = 0
    full = keeps = False

    def write(self, name, offset, parts):
        if self.full and name.startswith("s") and offset >= self.room:
            raise DiskError("full", full=True)
        super().write(name, offset, parts)

    def delete(self, name):
        if self.keeps:
            raise DiskError("delete failed")
        super().delete(name)

    def segments(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith("s"))


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("room", [0, 1])  # not even for the header, or for that alone
def test_a_full_disk_is_tried_again_and_nothing_stays_of_it(
    batch_of, room: int, keeps: bool
) -> None:
    disk = NoRoomDisk()
    files, table = world(disk, batch_of, [(1, 2, 700)] * 20, 4096)
    sealed = [file.number for file in files.all() if file.sealed]
    expected = sorted(table.values(disk))
    cleaner = Cleaner(disk, files, DIRECTORY)
    disk.room, disk.full, disk.keeps = room, True, keeps
    for _ in range(4):
        job = cleaner.clean(sealed[0])
        with pytest.raises(DiskError, match="full"):
            drive(job, table)
        job.abandon()
        assert not cleaner._targets, "what is to be copied is held"
    assert len(disk.segments()) == (4 if keeps else 0)
    disk.full = disk.keeps = False
    drive(cleaner.clean(sealed[0]), table)
    assert sorted(table.values(disk)) == expected
    # A restart knows as much of them: those that a checkpoint is to let go, and the one in use.
    files = table.files = Files.load(files.dump())
    assert files.orphans(disk.names()) == []
    dead = {files[number].name for number in files.victims(EAGER) if not files[number].live}
    assert dead == {files[sealed[0]].name, *disk.segments()[:-1]}
    cleaner = Cleaner(disk, files, DIRECTORY)
    drive(cleaner.clean(sealed[1]), table)
    assert sorted(table.values(disk)) == expected
    assert [target.name for target in cleaner._targets.values()] == disk.segments()[-1:]


def test_damage_in_a_victim_is_told_and_not_copied(batch_of) -> None:
    disk = MemoryDisk()
    files, table = world(disk, batch_of, [(1, 1, 100)] * 3, 1 << 20)
    bad = list(table.live)[1]
    disk.files["j-00000001"][split(bad)[1] + 150] ^= 1
    job = Cleaner(disk, files, DIRECTORY).clean(1)
    drive(job, table)
    assert [(damage.shard, damage.number) for damage in job.damages] == [(1, 2)]
    assert bad in table.live
    assert files[1].live == table.left[bad]
