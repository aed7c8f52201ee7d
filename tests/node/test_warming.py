"""Pages of new files that a second processor brings into memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.node import warming
from penstock.node.files import WRITE_BYTES, FileDisk
from penstock.node.mapping import Mappings
from penstock.node.warming import OWN_BYTES, Warmer

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")

SIZE = OWN_BYTES + (8 << 20)
SECOND_NS = 10**9


@pytest.fixture
def warmer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warmer]:
    monkeypatch.setattr("penstock.node.warming.cores", lambda: 2)
    made = Warmer()
    yield made
    made.stop()


def new_file(folder: Path, name: str = "new") -> int:
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, SIZE)
    return fd


def wait_until_read(warmer: Warmer) -> None:
    """Everything that was handed over has been read: the thread does one after the other."""
    warmer._waiting.put(None)
    assert warmer._thread is not None
    warmer._thread.join(30)
    assert not warmer._thread.is_alive()
    warmer._thread = None


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_written_last_is_in_memory_before_it_is_written(tmp_path: Path, warmer: Warmer):
    fd = new_file(tmp_path)
    mappings = Mappings()
    if mappings.view("new", fd, OWN_BYTES, SIZE - OWN_BYTES) is not None:
        pytest.skip("files are in memory from the beginning here")
    before = descriptors()
    warmer.wrote(OWN_BYTES, OWN_BYTES, SECOND_NS)
    warmer.made(fd, SIZE)
    wait_until_read(warmer)
    view = mappings.view("new", fd, OWN_BYTES, SIZE - OWN_BYTES)
    assert view is not None
    assert not any(bytes(view))
    assert mappings.view("new", fd, 0, OWN_BYTES - (1 << 20)) is None  # that is the writer's part
    assert descriptors() == before
    os.close(fd)


@pytest.mark.parametrize(
    ("end", "size", "taken_ns"),
    [
        (OWN_BYTES, OWN_BYTES, OWN_BYTES // 2),  # pages were at hand
        (OWN_BYTES + 1, OWN_BYTES, SECOND_NS),  # that may have been the part that is read
    ],
)
def test_nothing_is_read_unless_pages_are_seen_to_be_slow(
    tmp_path: Path, warmer: Warmer, end: int, size: int, taken_ns: int
):
    fd = new_file(tmp_path)
    warmer.wrote(end, size, taken_ns)
    warmer.made(fd, SIZE)
    assert warmer._thread is None
    os.close(fd)


def test_it_ends_when_pages_are_at_hand_again(tmp_path: Path, warmer: Warmer):
    fd = new_file(tmp_path)
    warmer.wrote(OWN_BYTES, OWN_BYTES, SECOND_NS)
    warmer.wrote(OWN_BYTES, OWN_BYTES, 0)
    warmer.made(fd, SIZE)
    assert warmer._thread is None
    os.close(fd)


def test_small_files_and_single_processors_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmer: Warmer
):
    fd = new_file(tmp_path)
    warmer.wrote(OWN_BYTES, OWN_BYTES, SECOND_NS)
    warmer.made(fd, OWN_BYTES)
    assert warmer._thread is None
    monkeypatch.setattr("penstock.node.warming.cores", lambda: 1)
    alone = Warmer()
    alone.wrote(OWN_BYTES, OWN_BYTES, SECOND_NS)
    alone.made(fd, SIZE)
    assert alone._thread is None
    alone.stop()
    os.close(fd)


def test_files_that_come_faster_than_they_are_read_are_left_out_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmer: Warmer
):
    begun, goes_on = threading.Event(), threading.Event()
    real = os.preadv

    def slowly(fd: int, buffers: object, offset: int) -> int:
        begun.set()
        assert goes_on.wait(30)
        return real(fd, buffers, offset)  # type: ignore[arg-type]

    monkeypatch.setattr("os.preadv", slowly)
    fds = [new_file(tmp_path, str(number)) for number in range(4)]
    before = descriptors()
    warmer.wrote(OWN_BYTES, OWN_BYTES, SECOND_NS)
    warmer.made(fds[0], SIZE)
    assert begun.wait(30)
    for fd in fds[1:]:
        warmer.made(fd, SIZE)
    assert descriptors() == before + 2  # one is read, one waits
    stopping = threading.Thread(target=warmer.stop)
    stopping.start()
    goes_on.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert descriptors() == before
    for fd in fds:
        os.close(fd)


def test_what_was_written_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk whose pages are slow: all that is written to its new files is read again."""
    monkeypatch.setattr("penstock.node.warming.cores", lambda: 2)
    monkeypatch.setattr(warming, "SLOW_NS", 0.0)
    disk = FileDisk(tmp_path / "data")
    data = os.urandom(4 * WRITE_BYTES)
    disk.create("first", SIZE)
    disk.write("first", 0, [data])
    disk.create("second", SIZE)
    assert disk._warmer._thread is not None
    for offset in range(0, SIZE - len(data), len(data)):
        disk.write("second", offset, [data])
    for offset in range(0, SIZE - len(data), len(data)):
        assert disk.read("second", offset, len(data)) == data
    disk.close()
