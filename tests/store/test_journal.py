"""The journal: group commit, levels, rolling, recycling, failures."""

from __future__ import annotations

import pytest

from penstock.store.disk import DiskError
from penstock.store.files import Files
from penstock.store.flush import Finished
from penstock.store.journal import MAX_SPARES, MAX_UNSYNCED_US, Journal
from penstock.store.locations import split
from penstock.store.memory import MemoryDisk
from penstock.store.scan import Record, Tail, scan
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry


class FailingDisk(MemoryDisk):
    """A memory disk that counts its syncs and fails the next call of one kind when told."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = ""
        self.syncs: list[str] = []

    def create(self, name, size=0, recycle=None):
        self._check("create")
        super().create(name, size, recycle)

    def write(self, name, offset, parts):
        self._check("write")
        super().write(name, offset, parts)

    def sync(self, name):
        self._check("sync")
        self.syncs.append(name)
        super().sync(name)

    def _check(self, action: str) -> None:
        if self.failing == action:
            self.failing = ""
            raise DiskError(f"{action} failed")


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def journal(disk: FailingDisk) -> Journal:
    return Journal(disk, Files(), 1, segment_bytes=4096, max_flush_bytes=4096)


def entry(number: int, level: Durability = Durability.SYNCED, payload: Buffer | None = None):
    return Entry(7, 1, 1, number, b"meta", payload, level)


def flush_once(journal: Journal, now_us: int = 0) -> Finished:
    flush = journal.next_flush(now_us)
    assert flush is not None
    try:
        flush.run()
    except DiskError as error:
        return journal.finish(flush, error)
    return journal.finish(flush)


def numbers_on_disk(disk: FailingDisk, name: str) -> list[int]:
    return [item.number for item in scan(disk, name) if isinstance(item, Record)]


def test_one_flush_commits_all_that_waited_in_order(journal, disk) -> None:
    entries = [entry(number, Durability(1 + number % 3)) for number in range(1, 9)]
    for each in entries:
        journal.append(each)
    finished = flush_once(journal)
    assert finished.committed == entries
    assert disk.syncs == ["j-00000001"]
    assert journal.syncs == 1
    assert journal.pending_bytes == 0
    assert journal.tail == journal.written == journal.synced
    assert numbers_on_disk(disk, "j-00000001") == list(range(1, 9))
    assert journal.next_flush(0) is None


def test_only_one_flush_runs(journal) -> None:
    journal.append(entry(1))
    flush = journal.next_flush(0)
    journal.append(entry(2))
    assert journal.next_flush(0) is None
    flush.run()
    journal.finish(flush)
    with pytest.raises(ValueError, match="not running"):
        journal.finish(flush)
    assert [each.number for each in flush_once(journal).committed] == [2]


def test_written_entries_are_synced_within_a_second(journal, disk) -> None:
    journal.append(entry(1, Durability.SYNCED))
    flush_once(journal, 0)
    journal.append(entry(2, Durability.WRITTEN))
    assert [each.number for each in flush_once(journal, 100).committed] == [2]
    assert len(disk.syncs) == 1
    assert journal.synced < journal.written
    assert journal.next_due() == 100 + MAX_UNSYNCED_US
    assert journal.next_flush(99 + MAX_UNSYNCED_US) is None
    assert flush_once(journal, 100 + MAX_UNSYNCED_US) == Finished([], [])
    assert journal.synced == journal.written
    assert journal.next_due() is None
    assert len(disk.syncs) == 2


def test_a_sync_covers_what_was_only_written_before(journal, disk) -> None:
    """The call that writes and syncs at once makes nothing else durable."""
    journal.append(entry(1))
    flush_once(journal)  # makes the segment
    journal.append(entry(2))
    flush = journal.next_flush(0)
    assert flush.at_once
    flush.run()
    journal.finish(flush)
    journal.append(entry(3, Durability.WRITTEN))
    flush_once(journal)
    journal.append(entry(4))
    flush = journal.next_flush(0)
    assert flush.sync
    assert not flush.at_once


def test_the_unsynced_backlog_is_bounded(disk, batch_of) -> None:
    journal = Journal(disk, Files(), 1, max_unsynced_bytes=5000)
    journal.append(entry(1))
    flush_once(journal)
    for number in range(2, 8):
        journal.append(entry(number, Durability.WRITTEN, batch_of(1500)))
        flush_once(journal)
    assert len(disk.syncs) == 1 + 2


def test_a_memory_entry_is_readable_before_it_is_written(journal, disk, batch_of) -> None:
    first, second = entry(1, payload=batch_of(9)), entry(2, Durability.MEMORY, batch_of(800))
    journal.append(first)
    assert first.location == 0
    journal.append(second)
    for each in (first, second):
        assert journal.unwritten(each.location) is each.payload
        assert journal.unwritten(each.location + 8) is None
    flush = journal.next_flush(0)
    assert journal.unwritten(second.location) is second.payload
    flush.run()
    assert journal.finish(flush).committed == [first]
    assert journal.unwritten(second.location) is None
    number, offset = split(second.payload_location)
    assert disk.read(f"j-{number:08x}", offset, len(second.payload)) == second.payload


def test_a_record_never_spans_segments_and_a_large_one_gets_its_own(
    journal, disk, batch_of
) -> None:
    entries = [entry(n, payload=batch_of(size)) for n, size in enumerate([1500, 1500, 1500, 9000])]
    for each in entries:
        journal.append(each)
    while journal.pending_bytes:
        flush_once(journal)
    segments = journal.segments()
    assert [segment.sealed for segment in segments] == [True, True, False]
    assert [disk.size(f"j-{segment.number:08x}") > 4096 for segment in segments] == [
        False, False, True,
    ]  # fmt: skip
    for each in entries:
        number, offset = split(each.payload_location)
        assert disk.read(f"j-{number:08x}", offset, len(each.payload)) == each.payload
    assert segments[-1].end == journal.tail


def test_flushes_are_bounded(journal, batch_of) -> None:
    for number in range(20):
        journal.append(entry(number, payload=batch_of(1000)))
    sizes = []
    while True:
        flush = journal.next_flush(0)
        if flush is None:
            break
        sizes.append(flush.bytes)
        flush.run()
        journal.finish(flush)
    assert len(sizes) > 4
    assert max(sizes) < 4096 + 1300


def test_what_waits_is_bounded(disk, batch_of) -> None:
    journal = Journal(disk, Files(), 1, max_pending_bytes=2000)
    journal.append(entry(1, payload=batch_of(1500)))
    with pytest.raises(DiskError) as raised:
        journal.append(entry(2, payload=batch_of(1500)))
    assert raised.value.full
    flush_once(journal)
    journal.append(entry(2, payload=batch_of(1500)))


@pytest.mark.parametrize("action", ["create", "write", "sync"])
def test_a_failure_stops_the_journal_and_nothing_is_lost(journal, disk, batch_of, action) -> None:
    journal.append(entry(1))
    flush_once(journal)
    written = entry(2, Durability.WRITTEN, batch_of(10))
    journal.append(written)
    flush_once(journal)
    old_written = written.location
    memory, synced = entry(3, Durability.MEMORY, batch_of(20)), entry(4, payload=batch_of(5000))
    journal.append(memory)
    old_memory = memory.location
    journal.append(synced)
    disk.failing = action
    finished = flush_once(journal)
    assert journal.stopped is not None
    assert journal.next_flush(0) is None
    assert journal.next_due() is None
    if action == "create":  # the first segment was synced before the second was to be created
        assert finished == Finished([], [])
    else:
        assert finished == Finished([], [(written, old_written), (memory, old_memory)])
        assert journal.unwritten(written.location) is written.payload
    journal.resume()
    assert flush_once(journal).committed == [synced]
    assert journal.synced == journal.tail
    newest = journal.segments()[-1]
    expected = [4] if action == "create" else [2, 3, 4]
    assert numbers_on_disk(disk, f"j-{newest.number:08x}") == expected


def test_a_failed_segment_stays_listed_with_its_synced_part(journal, disk) -> None:
    journal.append(entry(1))
    flush_once(journal)
    synced = journal.synced
    journal.append(entry(2))
    disk.failing = "sync"
    flush_once(journal)
    assert journal.segments()[0].end == synced
    assert not journal.segments()[0].sealed
    journal.resume()
    flush_once(journal)
    assert [segment.sealed for segment in journal.segments()] == [True, False]
    assert disk.syncs == ["j-00000001", "j-00000002"]


def test_repeated_failures(journal, disk, batch_of) -> None:
    written = entry(1, Durability.WRITTEN, batch_of(10))
    journal.append(written)
    for action in ("create", "write", "sync", "create"):
        disk.failing = action
        journal.resume()
        assert flush_once(journal).committed == []
    journal.resume()
    assert flush_once(journal).committed == [written]
    number, offset = split(written.payload_location)
    assert disk.read(f"j-{number:08x}", offset, len(written.payload)) == written.payload


def fill_segment(journal: Journal, batch_of, number: int) -> None:
    journal.append(entry(number, payload=batch_of(3500)))
    flush_once(journal)


def recycle(journal: Journal, number: int) -> None:
    recycling = journal.recycle(number)
    recycling.run()
    journal.finish_recycling(recycling)


def test_recycled_files_do_not_bring_old_records_back(journal, disk, batch_of) -> None:
    for number in range(1, 4):
        fill_segment(journal, batch_of, number)
    recycle(journal, 1)
    assert sorted(disk.names()) == ["j-00000002", "j-00000003", "r-00000001"]
    journal.append(entry(4))
    fill_segment(journal, batch_of, 5)
    assert "r-00000001" not in disk.names()
    name = f"j-{journal.segments()[-1].number:08x}"
    items = list(scan(disk, name))
    assert [item.number for item in items if isinstance(item, Record)] == [5]
    assert isinstance(items[-1], Tail)
    assert not items[-1].torn


def test_only_some_spares_are_kept_and_found_again(journal, disk, batch_of) -> None:
    filled = MAX_SPARES + 4
    for number in range(1, filled + 1):
        fill_segment(journal, batch_of, number)
    for number in range(1, filled):
        recycle(journal, number)
    assert sum(name.startswith("r-") for name in disk.names()) == MAX_SPARES
    again = Journal(disk, Files(), 1, journal.tail, segment_bytes=4096)
    fill_segment(again, batch_of, filled + 1)
    assert sum(name.startswith("r-") for name in disk.names()) == MAX_SPARES - 1
    assert again.segments()[-1].number == filled + 1


def test_an_open_segment_is_not_recycled(journal) -> None:
    journal.append(entry(1))
    flush_once(journal)
    for number in (1, 99):
        with pytest.raises(ValueError, match="not a sealed"):
            journal.recycle(number)
