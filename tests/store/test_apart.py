"""Small flushes are written apart from their sync: nobody waits for more than was asked for."""

from __future__ import annotations

import weakref

import pytest
from tests.store.test_journal import FailingDisk, entry, flush_once, numbers_on_disk

from penstock.store.disk import DiskError
from penstock.store.files import Files
from penstock.store.flush import APART_BYTES, Finished, Flush, Sync
from penstock.store.journal import MAX_PATIENCE_US, MAX_UNSYNCED_US, Journal
from penstock.store.unsynced import OVER_AT_ONCE
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def journal(disk: FailingDisk) -> Journal:
    """With a segment, in which the first record is."""
    made = Journal(disk, Files(), 1, segment_bytes=64 << 10)
    made.append(entry(1))
    flush_once(made)
    return made


def elsewhere(number: int, level: Durability = Durability.WRITTEN) -> Entry:
    """An entry of another shard."""
    return Entry(8, 1, 1, number, b"meta", None, level)


def flush_of(journal: Journal, now_us: int = 0) -> Flush:
    flush = journal.next_flush(now_us, apart=True)
    assert flush is not None
    return flush


def sync_of(journal: Journal, now_us: int = 0) -> Sync:
    sync = journal.next_sync(now_us)
    assert sync is not None
    return sync


def numbers(finished: Finished) -> list[int]:
    return [each.number for each in finished.committed]


def apart(journal: Journal, *entries: Entry) -> list[int]:
    """Writes entries apart from their sync; the numbers of those that are committed then."""
    for each in entries:
        journal.append(each)
    flush = flush_of(journal)
    assert flush.apart
    flush.run()
    safe = [each.number for each in journal.safe_when_written(flush)]
    committed = numbers(journal.finish(flush))
    assert safe in ([], committed), "nothing is said to be safe that is not committed"
    return committed


def test_what_is_written_is_known_to_be_safe_before_that_is_noted(journal) -> None:
    def safe(*levels: Durability) -> list[int]:
        for number, level in enumerate(levels):
            journal.append(elsewhere(number, level))
        flush = flush_of(journal)
        flush.run()
        found = [each.number for each in journal.safe_when_written(flush)]
        journal.finish(flush)
        return found

    assert safe(Durability.WRITTEN, Durability.WRITTEN) == [0, 1]
    assert safe(Durability.WRITTEN, Durability.SYNCED) == []
    assert safe(Durability.WRITTEN) == [], "those before it wait for a sync, and it comes after"
    sync = sync_of(journal)
    sync.run()
    journal.finish_sync(sync)
    assert safe(Durability.MEMORY, Durability.WRITTEN) == [1], "the first was so before"


def test_while_a_sync_runs_others_are_written(journal, disk) -> None:
    assert apart(journal, entry(2), elsewhere(3)) == [3]
    assert journal.committed < journal.written
    sync = sync_of(journal)
    assert journal.busy
    assert not journal.writing
    assert apart(journal, elsewhere(4), entry(5)) == [4]
    assert journal.next_sync(0) is None
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2]
    assert journal.synced < journal.written
    again = sync_of(journal)
    again.run()
    assert numbers(journal.finish_sync(again)) == [5]
    assert journal.synced == journal.written == journal.committed
    assert journal.next_sync(0) is None
    assert disk.syncs == ["j-00000001"] * 3


def test_what_is_large_waits_for_the_sync(journal, batch_of) -> None:
    assert apart(journal, entry(2)) == []
    sync = sync_of(journal)
    journal.append(Entry(0, 1, 1, 3, b"", batch_of(APART_BYTES), Durability.SYNCED))
    assert journal.next_flush(0, apart=True) is None
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2]
    flush = flush_of(journal)
    assert flush.sync
    assert not flush.apart


def test_a_flush_that_syncs_commits_what_waited(journal, batch_of) -> None:
    assert apart(journal, entry(2)) == []
    journal.append(Entry(0, 1, 1, 3, b"", batch_of(APART_BYTES), Durability.SYNCED))
    assert numbers(flush_once(journal)) == [2, 3]
    assert journal.next_sync(0) is None


def test_a_sync_that_fails_puts_all_off_to_a_new_segment(journal, disk) -> None:
    assert apart(journal, entry(2), elsewhere(3)) == [3]
    sync = sync_of(journal)
    assert apart(journal, entry(4)) == []
    assert journal.finish_sync(sync, DiskError("broken")).committed == []
    assert journal.stopped is not None
    assert [each.number for each in journal.waiting] == []
    journal.resume()
    assert numbers(flush_once(journal)) == [2, 4]
    assert numbers_on_disk(disk, "j-00000002") == [2, 3, 4]


def test_a_write_that_fails_while_a_sync_runs_makes_the_sync_worthless(journal) -> None:
    assert apart(journal, entry(2)) == []
    sync = sync_of(journal)
    journal.append(entry(3))
    flush = flush_of(journal)
    assert journal.finish(flush, DiskError("broken")).committed == []
    sync.run()
    assert journal.finish_sync(sync) == Finished([], [])
    journal.resume()
    assert numbers(flush_once(journal)) == [2, 3]


def test_written_entries_are_synced_within_a_second_also_apart(journal) -> None:
    assert apart(journal, entry(2, Durability.WRITTEN)) == [2]
    assert journal.next_sync(MAX_UNSYNCED_US - 1) is None
    assert journal.next_flush(MAX_UNSYNCED_US, apart=True) is None
    sync = sync_of(journal, MAX_UNSYNCED_US)
    sync.run()
    assert journal.finish_sync(sync) == Finished([], [])
    assert journal.next_due() is None


def test_entries_of_a_shard_are_committed_in_their_order(journal) -> None:
    assert apart(journal, entry(2), entry(3, Durability.WRITTEN)) == []
    sync = sync_of(journal)
    assert apart(journal, entry(4, Durability.WRITTEN), elsewhere(5)) == [5]
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2, 3]
    again = sync_of(journal)
    again.run()
    assert numbers(journal.finish_sync(again)) == [4]
    assert apart(journal, entry(6, Durability.WRITTEN)) == [6]


def test_no_sync_is_begun_for_who_is_patient_but_every_sync_takes_them_along(journal) -> None:
    patient = entry(2)
    patient.patient = True
    assert apart(journal, patient) == []
    assert journal.next_sync(0) is None
    assert journal.next_due() == MAX_PATIENCE_US
    assert apart(journal, elsewhere(1, Durability.SYNCED)) == []
    sync = sync_of(journal)
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2, 1]
    assert journal.next_due() is None


def test_who_is_patient_waits_for_some_milliseconds_at_most(journal) -> None:
    patient = entry(2)
    patient.patient = True
    apart(journal, patient)
    assert journal.next_sync(MAX_PATIENCE_US - 1) is None
    sync = sync_of(journal, MAX_PATIENCE_US)
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2]


def test_one_who_follows_a_patient_one_in_a_shard_is_not_patient(journal) -> None:
    patient = entry(2)
    patient.patient = True
    assert apart(journal, patient) == []
    assert apart(journal, entry(3, Durability.WRITTEN)) == []
    sync = sync_of(journal)
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2, 3]


def test_patience_that_began_while_a_sync_ran_is_not_forgotten(journal) -> None:
    apart(journal, entry(2))
    sync = sync_of(journal)
    patient = elsewhere(1, Durability.SYNCED)
    patient.patient = True
    apart(journal, patient)
    sync.run()
    assert numbers(journal.finish_sync(sync)) == [2]
    assert journal.next_sync(0) is None
    assert journal.next_due() == MAX_PATIENCE_US


def test_what_is_synced_is_let_go_a_few_at_a_time(journal: Journal) -> None:
    """All at once, ten thousand would hold the loop up for milliseconds."""
    payloads = [Payload(b"p") for _ in range(200)]
    left = [weakref.ref(each) for each in payloads]
    apart(journal, *(entry(n, Durability.WRITTEN, each) for n, each in enumerate(payloads, 2)))
    payloads.clear()
    sync = sync_of(journal, MAX_UNSYNCED_US)
    sync.run()
    journal.finish_sync(sync)
    before = held(left)
    assert before >= 200 - OVER_AT_ONCE
    for number in range(300, 306):
        apart(journal, elsewhere(number))
        assert before - OVER_AT_ONCE <= held(left) <= before
        before = held(left)
    assert not before


class Payload(bytearray):
    """One of which it can be told whether it is still there."""


def held(payloads: list[weakref.ref[Payload]]) -> int:
    return sum(each() is not None for each in payloads)
