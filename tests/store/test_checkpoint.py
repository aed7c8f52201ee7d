"""Checkpoints: whole or not there, and damage is known by section."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.checkpoint import CheckpointWriter, drop_older, read_checkpoint
from penstock.store.disk import DiskError
from penstock.store.memory import MemoryDisk

SECTIONS = st.dictionaries(st.text(max_size=20), st.binary(max_size=3000), max_size=8)


def write(disk, number: int, sections: dict[str, bytes], position: int = 5) -> None:
    writer = CheckpointWriter(disk, number)
    for key, data in sections.items():
        writer.add(key, data)
    writer.commit(position, position + 1)


def sections_of(disk) -> dict[str, bytes]:
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    return checkpoint.sections


@settings(deadline=None)
@given(SECTIONS)
def test_round_trip(sections: dict[str, bytes]) -> None:
    disk = MemoryDisk()
    write(disk, 3, sections, position=9)
    assert disk.names() == ["c-00000003"]
    assert read_checkpoint(disk) == (3, 9, 10, sections, [])


def test_none() -> None:
    assert read_checkpoint(MemoryDisk()) is None


def test_large_sections_are_written_in_blocks() -> None:
    disk = MemoryDisk()
    sections = {"large": bytes(3 << 20), "small": b"s", "larger": b"\x07" * (5 << 20)}
    write(disk, 1, sections)
    assert sections_of(disk) == sections


def test_the_newest_whole_one_counts() -> None:
    disk = MemoryDisk()
    write(disk, 1, {"a": b"1"})
    write(disk, 2, {"a": b"2"})
    CheckpointWriter(disk, 3).add("a", b"3")
    assert sections_of(disk) == {"a": b"2"}
    del disk.files["c-00000002"][-1:]
    assert sections_of(disk) == {"a": b"1"}


def test_older_ones_are_dropped() -> None:
    disk = MemoryDisk()
    for number in (1, 2, 4):
        write(disk, number, {})
    CheckpointWriter(disk, 3)
    disk.create("j-00000001")
    drop_older(disk, 4)
    assert sorted(disk.names()) == ["c-00000004", "j-00000001"]


@settings(max_examples=150, deadline=None)
@given(SECTIONS, st.data())
def test_damage_is_found(sections: dict[str, bytes], data: st.DataObject) -> None:
    disk = MemoryDisk()
    write(disk, 1, sections)
    image = disk.files["c-00000001"]
    at = data.draw(st.integers(0, len(image) - 1))
    image[at] ^= 1 << data.draw(st.integers(0, 7))
    found = read_checkpoint(disk)
    start = 0
    for key, content in sections.items():
        if start <= at < start + len(content):
            assert found is not None
            assert found.damaged == [key]
            assert found.sections == {k: v for k, v in sections.items() if k != key}
            return
        start += len(content)
    assert found is None


def test_a_crash_leaves_the_old_one_or_the_new_one(crash_disk) -> None:
    for seed in range(60):
        disk = crash_disk(seed)
        disk.patience = 0
        write(disk, 1, {"a": b"old"})
        writer = CheckpointWriter(disk, 2)
        writer.add("a", b"new")
        if seed % 3:
            disk.failing.add("sync")
        try:
            writer.commit(5, 6)
            drop_older(disk, 2)
        except DiskError:
            disk.lose_power()
            assert sections_of(disk) == {"a": b"old"}
        else:
            disk.lose_power()
            assert sections_of(disk) == {"a": b"new"}


def test_wrong_use() -> None:
    writer = CheckpointWriter(MemoryDisk(), 1)
    writer.add("a", b"")
    for key in ("a", "x" * 70000):
        with pytest.raises(ValueError, match="section"):
            writer.add(key, b"")
    with pytest.raises(ValueError, match="synced"):
        writer.commit(8, 7)


def test_an_abandoned_writer_does_not_block_the_next() -> None:
    disk = MemoryDisk()
    CheckpointWriter(disk, 1).add("a", bytes(2 << 20))
    write(disk, 1, {"b": b"2"})
    assert sections_of(disk) == {"b": b"2"}
