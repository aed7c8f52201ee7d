"""The journal loses power, processes and disks, and is recovered: the promises hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.test_journal import recycle

from penstock.store.disk import DiskError
from penstock.store.files import Files
from penstock.store.flush import Finished, Flush, Sync
from penstock.store.journal import Journal
from penstock.store.recovery import Cut, read_journal
from penstock.store.scan import Damage, Record
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

DIRECTORY = 0xD1
SEGMENT_BYTES = 4096
LEVELS = [Durability.MEMORY, Durability.WRITTEN, Durability.SYNCED, Durability.REPLICATED]


class Story:
    """A data directory through several lives, next to a plain list of what was appended."""

    def __init__(self, disk, batch_of, seed: int) -> None:
        self.disk = disk
        self.batch_of = batch_of
        self.random = random.Random(seed)
        self.history: list[Entry] = []
        self.promised: dict[int, Durability] = {}
        self.begin = 0
        self.checkpoint = 0
        self.clock_us = 0
        self.torn = 0
        self.syncing: Sync | None = None
        self.open()

    def open(self) -> None:
        self.reader = read_journal(
            self.disk, self.disk.names(), self.checkpoint, synced=self.checkpoint,
            directory=DIRECTORY,
        )  # fmt: skip
        items = list(self.reader)
        self.torn += sum(isinstance(item, Cut) for item in items)
        assert not [item for item in items if isinstance(item, Damage)]
        self.check([item for item in items if isinstance(item, Record)])
        self.reader.settle()
        self.syncing = None
        self.journal = Journal(
            self.disk, Files(), DIRECTORY, self.reader.end, self.reader.segments(),
            segment_bytes=SEGMENT_BYTES, max_flush_bytes=2048, max_unsynced_bytes=3000,
        )  # fmt: skip

    def check(self, records: list[Record]) -> None:
        found: dict[tuple[int, int], Record] = {}
        for record in records:
            key = (record.shard, record.number)
            if key in found:
                assert contents(found[key]) == contents(record)
            found.setdefault(key, record)
        expected = self.history[self.begin :]
        got = [contents(record) for record in found.values()]
        assert got == [contents(entry) for entry in expected[: len(got)]]
        assert len(got) + self.begin >= 1 + max(self.promised, default=-1)
        # What was recovered is durable from now on; what was not never happened.
        del self.history[self.begin + len(got) :]
        for entry, record in zip(expected, found.values(), strict=False):
            entry.location = record.location
        self.promised = dict.fromkeys(range(len(self.history)), Durability.SYNCED)

    def append(self) -> None:
        shard = self.random.randint(0, 3)
        number = 1 + sum(entry.shard == shard for entry in self.history)
        size = self.random.choice([0, 1, 60, 300, 1500, 6000])
        payload = self.batch_of(size, number) if size else None
        meta = bytes([number & 255]) * self.random.randint(0, 40)
        entry = Entry(shard, 1, 1, number, meta, payload, self.random.choice(LEVELS))
        self.history.append(entry)
        self.journal.append(entry)
        if entry.level == Durability.MEMORY and payload is not None:
            assert self.journal.unwritten(entry.location) is payload

    def flush(self) -> None:
        self.clock_us += self.random.choice([0, 10, 600_000])
        if self.journal.stopped is not None:
            self.journal.resume()
        flush = self.journal.next_flush(self.clock_us, self.random.random() < 0.6)
        if flush is None:
            return
        if not flush.apart and self.random.random() < 0.2:  # appended while the flush runs
            self.append()
        failure = failure_of(flush)
        finished = self.journal.finish(flush, failure)
        assert (self.journal.stopped is None) == (failure is None)
        self.finished(finished)

    def sync(self) -> None:
        """Begins one, or ends the one that was begun before."""
        if self.syncing is None:
            self.syncing = self.journal.next_sync(self.clock_us)
            return
        sync, self.syncing = self.syncing, None
        self.finished(self.journal.finish_sync(sync, failure_of(sync)))

    def finished(self, finished: Finished) -> None:
        self.committed(finished.committed)
        for entry, old in finished.moved:
            assert entry.location != old
            assert self.journal.unwritten(entry.location) is entry.payload

    def committed(self, entries: list[Entry]) -> None:
        indexes = [self.history.index(entry) for entry in entries]
        assert indexes == sorted(indexes)
        for index, entry in zip(indexes, entries, strict=True):
            assert index not in self.promised, "committed twice"
            assert entry.level != Durability.MEMORY
            self.promised[index] = entry.level
            assert all(
                earlier in self.promised or each.level == Durability.MEMORY
                for earlier, each in enumerate(self.history[:index]) if each.shard == entry.shard
            ), "committed before an earlier one of its shard"  # fmt: skip
            if entry.level >= Durability.SYNCED:
                assert entry.location < self.journal.synced

    def fail(self) -> None:
        self.disk.failing.add(self.random.choice(["sync", "write", "create"]))

    def take_checkpoint(self) -> None:
        """Everything synced so far is covered; its segments are recycled."""
        self.checkpoint = self.journal.synced
        self.begin = sum(0 < entry.location < self.checkpoint for entry in self.history)
        for segment in self.journal.segments():
            if segment.sealed and segment.end <= self.checkpoint:
                recycle(self.journal, segment.number)
        if self.random.random() < 0.5:
            self.disk.sync_names()

    def lose_power(self) -> None:
        self.disk.lose_power()
        self.promised = {i: level for i, level in self.promised.items() if level >= 2}
        self.open()

    def end_process(self) -> None:
        self.disk.failing.clear()
        self.disk.writes_left = None
        self.promised = {i: level for i, level in self.promised.items() if level >= 1}
        self.open()


def failure_of(work: Flush | Sync) -> DiskError | None:
    try:
        work.run()
    except DiskError as error:
        return error
    return None


def contents(item: Entry | Record) -> tuple[int, int, bytes, bytes]:
    return item.shard, item.number, item.meta, bytes(item.payload or b"")


STEPS = ["append"] * 12 + ["flush"] * 8 + ["sync"] * 8
STEPS += ["fail", "take_checkpoint", "lose_power", "end_process"]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=120))
def test_what_was_promised_survives(crash_disk, batch_of, seed: int, steps: list[str]) -> None:
    story = Story(crash_disk(seed), batch_of, seed)
    for step in steps:
        getattr(story, step)()
    story.lose_power()


@pytest.mark.parametrize("seed", range(12))
def test_long_stories(crash_disk, batch_of, seed: int) -> None:
    story = Story(crash_disk(seed), batch_of, seed)
    for _ in range(400):
        getattr(story, story.random.choice(STEPS))()
    story.lose_power()


@pytest.mark.parametrize("writes", range(2))
def test_a_process_that_ends_while_it_appends_again_loses_nothing(
    crash_disk, batch_of, writes: int
) -> None:
    """After a failed sync, `writes` calls reach the new segment, and then the process ends."""
    story = Story(crash_disk(1), batch_of, 1)
    story.disk.patience = 0
    journal = story.journal
    entries = [Entry(0, 1, 1, n, b"", batch_of(9), Durability.WRITTEN) for n in range(1, 6)]
    story.history = list(entries)
    for entry in entries[:4]:
        journal.append(entry)
        written = journal.next_flush(story.clock_us)
        assert written is not None
        written.run()
        story.finished(journal.finish(written))
    assert journal.synced < journal.written
    story.clock_us += 2_000_000
    story.disk.failing.add("sync")
    flush = journal.next_flush(story.clock_us)
    assert flush is not None
    with pytest.raises(DiskError) as raised:
        flush.run()
    assert [entry for entry, _ in journal.finish(flush, raised.value).moved] == entries[1:4]
    journal.resume()
    journal.append(entries[4])
    story.disk.writes_left = writes
    again = journal.next_flush(story.clock_us)
    assert again is not None
    with pytest.raises(DiskError):
        again.run()
    story.end_process()
    assert len(story.history) >= 4
