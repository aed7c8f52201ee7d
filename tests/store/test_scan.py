"""Scanning and recovery: damage is found, named and passed; everything else is read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.files import Files
from penstock.store.journal import Journal
from penstock.store.locations import locate, split
from penstock.store.memory import MemoryDisk
from penstock.store.record import FILE_HEADER_BYTES
from penstock.store.recovery import Cut, read_journal
from penstock.store.scan import Damage, Record, Tail, scan
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

DIRECTORY = 77


def fill(disk, batch_of, sizes, segment_bytes=1 << 16) -> tuple[Journal, list[Entry]]:
    """A journal with one synced flush for each size; 0 is a record without payload."""
    journal = Journal(disk, Files(), DIRECTORY, segment_bytes=segment_bytes)
    entries = []
    for number, size in enumerate(sizes, start=1):
        payload = batch_of(size, number) if size else None
        entry = Entry(3, 2, 1, number, b"m" * (number % 11), payload)
        append(journal, entry)
        entries.append(entry)
    return journal, entries


def append(journal: Journal, *entries: Entry) -> None:
    for entry in entries:
        journal.append(entry)
    flush = journal.next_flush(0)
    assert flush is not None
    flush.run()
    journal.finish(flush)


def flip(disk: MemoryDisk, name: str, offset: int) -> None:
    disk.files[name][offset] ^= 0x10


def read(disk: MemoryDisk, from_position: int = 0, **options: int) -> list:
    return list(read_journal(disk, disk.names(), from_position, **options))


def numbers(items: list) -> list[int]:
    return [item.number for item in items if isinstance(item, Record)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 900), max_size=25), st.sampled_from([64, 200, 1000, 1 << 20]))
def test_everything_is_read_back_whatever_the_chunk(batch_of, sizes, chunk_bytes) -> None:
    disk = MemoryDisk()
    journal, entries = fill(disk, batch_of, [1, *sizes])
    *records, tail = scan(disk, "j-00000001", chunk_bytes=chunk_bytes)
    assert tail == Tail(split(journal.tail)[1], False)
    for record, entry in zip(records, entries, strict=True):
        assert isinstance(record, Record)
        assert (record.shard, record.kind, record.epoch) == (3, 2, 1)
        assert (record.number, record.meta) == (entry.number, entry.meta)
        assert (record.location, record.length) == (entry.location, entry.length)
        assert record.payload_location == entry.payload_location
        assert bytes(record.payload or b"") == (entry.payload or b"")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 70, 600]), min_size=3, max_size=12), st.randoms())
def test_a_flipped_bit_costs_exactly_its_record(batch_of, sizes, rng: random.Random) -> None:
    disk = MemoryDisk()
    _, entries = fill(disk, batch_of, sizes)
    victim = rng.choice(entries[:-1])
    start = split(victim.location)[1]
    payload = victim.payload if rng.random() < 0.5 else None
    if payload is not None:
        inside = rng.randrange(-4, len(payload))  # below 0: in the record's checksum of its start
        offset = start + 56 + inside if inside < 0 else split(victim.payload_location)[1] + inside
    else:
        checked = [*range(52), *range(56, 56 + len(victim.meta))]
        offset = start + rng.choice(checked if victim.payload else range(56 + len(victim.meta)))
    flip(disk, "j-00000001", offset)
    items = read(disk)
    assert numbers(items) == [entry.number for entry in entries if entry is not victim]
    (damage,) = [item for item in items if not isinstance(item, Record)]
    assert (damage.file, damage.offset, damage.length) == ("j-00000001", start, victim.length)
    if payload is not None:
        assert (damage.shard, damage.number, damage.kind) == (3, victim.number, 2)
        assert damage.meta == victim.meta
    else:
        assert damage.number is None


def test_payloads_are_not_verified_when_told(batch_of) -> None:
    disk = MemoryDisk()
    _, entries = fill(disk, batch_of, [100, 100])
    flip(disk, "j-00000001", split(entries[0].payload_location)[1] + 60)
    assert numbers(list(scan(disk, "j-00000001"))) == [2]
    assert numbers(list(scan(disk, "j-00000001", verify_payloads=False))) == [1, 2]


@pytest.mark.parametrize("keep", [0, 7, 40, 56, 100])
def test_a_torn_last_record_is_the_tail(batch_of, keep: int) -> None:
    disk = MemoryDisk()
    _, entries = fill(disk, batch_of, [10, 10, 10])
    torn = split(entries[-1].location)[1]
    disk.files["j-00000001"][torn + keep :] = bytes(disk.size("j-00000001") - torn - keep)
    if keep < 100:
        assert list(scan(disk, "j-00000001"))[-1] == Tail(torn, keep >= 16)
    items = read(disk)
    assert numbers(items) == [1, 2]
    assert items[2:] == ([Cut("j-00000001", torn, 0)] if keep >= 16 else [])


def test_what_follows_a_torn_flush_is_discarded_if_it_was_not_synced(batch_of) -> None:
    disk = MemoryDisk()
    journal, _ = fill(disk, batch_of, [10])
    later = [Entry(3, 2, 1, n, b"", batch_of(50), Durability.WRITTEN) for n in (2, 3, 4)]
    append(journal, *later)
    torn = split(later[0].location)[1]
    flip(disk, "j-00000001", torn + 20)
    reader = read_journal(disk, disk.names())
    items = list(reader)
    assert numbers(items) == [1]
    assert items[1:] == [Cut("j-00000001", torn, 2)]
    assert reader.end == locate(1, torn)


def test_the_checkpoint_may_know_that_it_was_synced(batch_of) -> None:
    disk = MemoryDisk()
    journal, entries = fill(disk, batch_of, [10, 10])
    flip(disk, "j-00000001", split(entries[1].location)[1] + 20)
    assert read(disk)[1:] == [Cut("j-00000001", split(entries[1].location)[1], 0)]
    (damage,) = read(disk, synced=journal.tail)[1:]
    assert damage.offset == split(entries[1].location)[1]
    assert damage.length == entries[1].length


def test_a_bad_end_of_an_older_segment_is_damage(batch_of) -> None:
    disk = MemoryDisk()
    _, entries = fill(disk, batch_of, [1000, 1000, 1000, 1000, 1000, 1000], segment_bytes=4096)
    assert sorted(disk.names()) == ["j-00000001", "j-00000002"]
    last = entries[2]
    flip(disk, "j-00000001", split(last.location)[1])
    items = read(disk)
    assert numbers(items) == [1, 2, 4, 5, 6]
    assert items[2] == Damage("j-00000001", split(last.location)[1], last.length, "no valid record")


def test_reading_starts_at_the_position(batch_of) -> None:
    disk = MemoryDisk()
    journal, entries = fill(disk, batch_of, [1000] * 9, segment_bytes=4096)
    for index, entry in enumerate(entries):
        assert numbers(read(disk, entry.location)) == list(range(index + 1, 10))
    assert read(disk, journal.tail) == []


@pytest.mark.parametrize("content", [b"", bytes(100), b"PSF1" + bytes(96)])
def test_a_newest_file_without_header_is_absent(batch_of, content: bytes) -> None:
    disk = MemoryDisk()
    journal, _ = fill(disk, batch_of, [10, 10])
    disk.create("j-00000002")
    disk.write("j-00000002", 0, [content])
    reader = read_journal(disk, disk.names())
    assert numbers(list(reader)) == [1, 2]
    assert reader.end == journal.tail
    assert [segment.used for segment in reader.segments()] == [split(journal.tail)[1], 0]
    again = Journal(disk, Files(), DIRECTORY, reader.end, reader.segments())
    append(again, Entry(3, 2, 1, 3, b"", None))
    assert numbers(read(disk)) == [1, 2, 3]
    assert again.segments()[-1].number == 3


def test_a_damaged_header_does_not_hide_synced_records(batch_of) -> None:
    for name, segment_bytes in [("j-00000001", 4096), ("j-00000001", 1 << 16)]:
        disk = MemoryDisk()
        fill(disk, batch_of, [1000] * 5, segment_bytes=segment_bytes)
        flip(disk, name, 9)
        items = read(disk)
        assert numbers(items) == [1, 2, 3, 4, 5]
        assert items[0] == Damage(name, 0, FILE_HEADER_BYTES, "file header")


def test_files_of_another_directory_are_not_read(batch_of) -> None:
    disk = MemoryDisk()
    fill(disk, batch_of, [10, 10])
    (damage,) = read(disk, directory=DIRECTORY + 1)
    assert damage.reason == "file of another data directory"
    assert numbers(read(disk, directory=DIRECTORY)) == [1, 2]


def test_an_empty_directory() -> None:
    reader = read_journal(MemoryDisk(), [])
    assert list(reader) == []
    assert reader.end == 0
    reader.settle()
    assert reader.segments() == []
