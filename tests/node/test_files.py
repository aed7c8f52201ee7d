"""What only the real disk does: locking, descriptors, short writes, a full device, threads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InUseError
from penstock.node import files
from penstock.node.files import AHEAD_BYTES, MAX_OPEN_FILES, WRITE_BYTES, FileDisk
from penstock.node.writeback import begin_writing
from penstock.store.disk import DiskError


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    disk = FileDisk(tmp_path / "deep" / "data")
    yield disk
    disk.close()


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_directory_has_one_owner(disk: FileDisk) -> None:
    with pytest.raises(InUseError):
        FileDisk(disk.path)
    assert "LOCK" not in disk.names()


def test_closing_lets_the_directory_and_all_descriptors_go(tmp_path: Path) -> None:
    before = open_descriptors()
    for _ in range(2):
        disk = FileDisk(tmp_path)
        for name in "abc":
            if name not in disk.names():
                disk.create(name, 8)
            disk.sync(name)
        disk.close()
    assert open_descriptors() == before


def test_content_outlives_the_disk(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    disk.create("a", 10)
    disk.write("a", 2, [b"here"])
    disk.close()
    disk = FileDisk(tmp_path)
    assert disk.read("a", 0, 10) == b"\0\0here\0\0\0\0"
    disk.close()


def test_descriptors_are_bounded(disk: FileDisk) -> None:
    before = open_descriptors()
    for number in range(MAX_OPEN_FILES * 2):
        disk.create(f"f{number}")
        disk.write(f"f{number}", 0, [b"%d" % number])
    assert open_descriptors() <= before + MAX_OPEN_FILES
    for number in range(MAX_OPEN_FILES * 2):
        assert disk.read(f"f{number}", 0, 9) == b"%d" % number


@pytest.mark.parametrize("write", ["write", "write_synced"])
def test_short_writes_go_on(disk: FileDisk, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    writev = os.pwritev

    def short_writev(fd, parts, offset, *flags):
        return writev(fd, [b"".join(parts)[:5]], offset, *flags)

    monkeypatch.setattr(os, "pwritev", short_writev)
    disk.create("a")
    getattr(disk, write)("a", 1, [b"0123", b"456789", b"abcdef"])
    assert disk.read("a", 0, 99) == b"\x000123456789abcdef"


def test_a_synced_write_is_one_call_where_that_is_possible(disk: FileDisk, monkeypatch) -> None:
    calls: list[str] = []
    writev = os.pwritev

    def refuse_flags(fd, parts, offset, *flags):
        calls.append("flagged" if flags else "plain")
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return writev(fd, parts, offset)

    disk.create("a")
    monkeypatch.setattr(files, "_sync_data", lambda fd: calls.append("sync"))
    disk.write_synced("a", 0, [b"one"])
    assert calls == []
    monkeypatch.setattr(os, "pwritev", refuse_flags)
    disk.write_synced("a", 3, [b"two"])
    disk.write_synced("a", 6, [b"three"])  # it is not tried again
    assert calls == ["flagged", "plain", "sync", "plain", "sync"]
    assert disk.read("a", 0, 99) == b"onetwothree"


@given(sizes=st.lists(st.integers(0, 3 * WRITE_BYTES), max_size=6), small=st.integers(0, 2100))
@settings(max_examples=30, deadline=None)
def test_what_is_large_is_written_in_portions(sizes: list[int], small: int) -> None:
    parts = [bytes([number % 251]) * size for number, size in enumerate([*sizes, *[3] * small])]
    calls: list[tuple[int, int]] = []
    writev = os.pwritev

    def counted(fd, some, offset, *flags):
        calls.append((len(some), sum(map(len, some))))
        return writev(fd, some, offset, *flags)

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        disk = FileDisk(folder)
        patch.setattr(os, "pwritev", counted)
        for name, write in (("a", disk.write), ("b", disk.write_synced)):
            disk.create(name)
            write(name, 7, parts)
            assert disk.read(name, 7, 1 << 30) == b"".join(parts)
        disk.close()
    assert all(count <= 1024 and size <= WRITE_BYTES for count, size in calls)


def test_the_disk_begins_before_all_of_a_large_write_is_there(disk: FileDisk, monkeypatch) -> None:
    calls: list[tuple[int, ...]] = []

    def begin(fd: int, *where: int) -> None:
        calls.append(where)
        begin_writing(fd, *where)

    monkeypatch.setattr(files, "begin_writing", begin)
    monkeypatch.setattr(files, "_sync_data", lambda _: calls.append(()))
    disk.create("a")
    disk.write_synced("a", 9, [bytes(AHEAD_BYTES + 100), bytes(2 * AHEAD_BYTES)])
    assert calls == [*((9 + n * AHEAD_BYTES, AHEAD_BYTES) for n in range(3)), ()]
    calls.clear()
    disk.write("a", 0, [bytes(2 * AHEAD_BYTES)])  # a sync follows soon, and waits for less then
    assert calls == [(0, AHEAD_BYTES), (AHEAD_BYTES, AHEAD_BYTES)]


def test_a_disk_that_refuses_to_begin_has_failed(disk: FileDisk, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    disk.create("a")
    monkeypatch.setattr(files, "begin_writing", refuse)
    with pytest.raises(DiskError):
        disk.write_synced("a", 0, [bytes(2 * AHEAD_BYTES)])


def test_begin_writing_tells_of_what_is_wrong_only(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(bytes(100))
        file.flush()
        begin_writing(file.fileno(), 0, 100)
        closed = os.dup(file.fileno())
    os.close(closed)
    with pytest.raises(OSError, match="Bad file"):
        begin_writing(closed, 0, 100)
    ends = os.pipe()
    begin_writing(ends[1], 0, 100)  # cannot be begun: what follows is as ever
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("code", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_errors_of_the_device(disk: FileDisk, monkeypatch, code: int, full: bool) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    disk.create("a")
    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "posix_fallocate", fail)
    for write in (disk.write, disk.write_synced):
        with pytest.raises(DiskError) as raised:
            write("a", 0, [b"x"])
        assert raised.value.full is full
    with pytest.raises(DiskError, match="cannot create b") as raised:
        disk.create("b", 1 << 20)
    assert raised.value.full is full
    assert disk.names() == ["a"]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP])
def test_a_read_that_would_wait_is_left_to_the_caller(disk, monkeypatch, code: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    disk.create("a")
    disk.write("a", 0, [b"cached"])
    monkeypatch.setattr(os, "preadv", fail)
    assert disk.read_now("a", 0, 6) is None
    assert disk.read("a", 0, 6) == b"cached"


def test_a_descriptor_in_use_is_not_closed(disk: FileDisk) -> None:
    names = [f"f{number}" for number in range(MAX_OPEN_FILES + 20)]
    for name in names:
        disk.create(name)

    def work(name: str) -> bytes:
        for turn in range(10):
            disk.write(name, turn * 8, [name.encode().ljust(8)])
            disk.sync(name) if turn == 5 else None
        return disk.read(name, 0, 80)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, names))
    assert results == [name.encode().ljust(8) * 10 for name in names]
