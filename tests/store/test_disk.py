"""What every disk does, whichever it is: the same suite for the one in memory and the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.node.files import FileDisk
from penstock.store.disk import Disk, DiskError
from penstock.store.memory import MemoryDisk


@pytest.fixture(params=["memory", "files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "memory":
        yield MemoryDisk()
        return
    real = FileDisk(tmp_path / "data")
    yield real
    real.close()


def test_a_new_file_is_zeros(disk: Disk) -> None:
    disk.create("a", 100)
    assert disk.names() == ["a"]
    assert disk.size("a") == 100
    assert disk.read("a", 0, 200) == bytes(100)


def test_parts_are_written_one_after_the_other(disk: Disk) -> None:
    disk.create("a")
    disk.write("a", 3, [b"one", bytearray(b"two"), memoryview(b"-three")[1:], b""])
    disk.sync("a")
    assert disk.read("a", 0, 100) == b"\0\0\0onetwothree"


@pytest.mark.parametrize("write", ["write", "write_synced"])
def test_more_parts_than_one_call_takes(disk: Disk, write: str) -> None:
    disk.create("a", 64)
    parts = [bytes([part & 255]) * (part % 5) for part in range(3000)]
    getattr(disk, write)("a", 7, parts)
    assert disk.read("a", 7, 1 << 20) == b"".join(parts)


def test_reads_are_short_only_at_the_end(disk: Disk) -> None:
    disk.create("a")
    disk.write("a", 0, [b"0123456789"])
    assert disk.read("a", 4, 3) == b"456"
    assert disk.read("a", 8, 10) == b"89"
    assert disk.read("a", 50, 10) == b""
    assert disk.read_now("a", 2, 5) in (b"23456", None)


def test_recycling_renames_and_keeps_the_content(disk: Disk) -> None:
    disk.create("old", 16)
    disk.write("old", 0, [b"remains"])
    disk.create("new", 32, recycle="old")
    disk.sync_names()
    assert disk.names() == ["new"]
    assert disk.size("new") == 32
    assert disk.read("new", 0, 7) == b"remains"
    disk.write("new", 1, [b"E"])
    assert disk.read("new", 0, 7) == b"rEmains"


def test_rename_replaces(disk: Disk) -> None:
    disk.create("a")
    disk.write("a", 0, [b"a"])
    disk.create("b")
    disk.write("b", 0, [b"b"])
    disk.rename("a", "b")
    assert disk.names() == ["b"]
    assert disk.read("b", 0, 9) == b"a"


def test_delete(disk: Disk) -> None:
    disk.create("a", 8)
    disk.delete("a")
    disk.sync_names()
    assert disk.names() == []


def test_there_is_room(disk: Disk) -> None:
    assert disk.free_bytes() > 1 << 20


@pytest.mark.parametrize(
    "action",
    [
        lambda disk: disk.size("missing"),
        lambda disk: disk.write("missing", 0, [b"x"]),
        lambda disk: disk.sync("missing"),
        lambda disk: disk.read("missing", 0, 1),
        lambda disk: disk.delete("missing"),
        lambda disk: disk.rename("missing", "other"),
        lambda disk: disk.create("other", 8, recycle="missing"),
        lambda disk: disk.create("there"),
        lambda disk: disk.create("there", 8, recycle="spare"),
    ],
)
def test_wrong_names_are_disk_errors(disk: Disk, action) -> None:
    disk.create("there")
    disk.create("spare")
    with pytest.raises(DiskError) as raised:
        action(disk)
    assert not raised.value.full


def test_a_full_memory_disk_says_so() -> None:
    disk = MemoryDisk(capacity=100)
    disk.create("a", 80)
    with pytest.raises(DiskError) as raised:
        disk.create("b", 30)
    assert raised.value.full
    with pytest.raises(DiskError):
        disk.write("a", 90, [bytes(20)])
    assert disk.names() == ["a"]


WRITES = st.lists(
    st.tuples(st.integers(0, 300), st.lists(st.binary(max_size=60), max_size=4)), max_size=12
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WRITES, st.integers(0, 400), st.integers(0, 400))
def test_both_disks_hold_the_same(tmp_path: Path, writes, offset: int, length: int) -> None:
    real, memory = FileDisk(tmp_path / "data"), MemoryDisk()
    try:
        for name in real.names():
            real.delete(name)
        for disk in (real, memory):
            disk.create("a", 50)
            for at, parts in writes:
                if any(parts):
                    disk.write("a", at, parts)
        assert real.size("a") == memory.size("a")
        assert real.read("a", offset, length) == memory.read("a", offset, length)
    finally:
        real.close()
