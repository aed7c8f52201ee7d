"""A fabric in the caller's process: interrupted, forked, closed on a disk that takes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import penstock
from penstock.embedded import open_fabric
from penstock.errors import ClosedError, InvalidError, StorageError
from penstock.store.disk import DiskError
from penstock.store.memory import MemoryDisk
from penstock.testing import FakeClock, memory_fabric
from penstock.wire.buffers import Buffer


class Interrupted(MemoryDisk):
    """Ctrl-C comes during a sync."""

    interrupt = False

    def sync(self, name: str) -> None:
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        super().sync(name)


class NoCheckpoints(MemoryDisk):
    """A full disk on which only the preallocated journal has room."""

    full = False

    def write(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        if self.full and name.startswith("t-"):
            raise DiskError("no room", full=True)
        super().write(name, offset, parts)


def test_an_interrupted_write_ends_the_fabric_and_loses_nothing() -> None:
    disk = Interrupted()
    with memory_fabric(disk=disk) as fabric:
        queue = fabric.queue("q")
        queue.push(b"safe")
        disk.interrupt = True
        with pytest.raises(KeyboardInterrupt):
            queue.push(b"interrupted")
        with pytest.raises(ClosedError, match="interrupted"):
            queue.push(b"later")
    with memory_fabric(disk=disk) as fabric:
        message = fabric.queue("q").pop()
        assert message is not None
        assert message.value == b"safe"


def test_a_full_disk_does_not_hold_up_the_close() -> None:
    disk = NoCheckpoints()
    with memory_fabric(disk=disk) as fabric:
        fabric.queue("q").push(b"safe")
        disk.full = True
    disk.full = False
    with memory_fabric(disk=disk) as fabric:
        assert fabric.queue("q").pop() is not None


def test_a_closed_fabric_writes_nothing_when_the_clock_moves() -> None:
    clock, disk = FakeClock(), MemoryDisk()
    with memory_fabric(clock, disk) as fabric:
        queue = fabric.queue("q", lease=30)
        queue.push(b"leased")
        assert queue.pop() is not None
    files = {name: bytes(data) for name, data in disk.files.items()}
    clock.advance(60)
    assert files == {name: bytes(data) for name, data in disk.files.items()}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_cannot_write_to_the_journal(tmp_path: Path) -> None:
    with open_fabric(str(tmp_path / "data"), timeout=5) as fabric:
        queue = fabric.queue("q")
        queue.push(b"parent")
        child = os.fork()
        if not child:
            try:
                queue.push(b"child")
            except ClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        queue.push(b"parent again")
    with open_fabric(str(tmp_path / "data")) as fabric:
        assert len(fabric.queue("q").pop_many(5)) == 2


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(StorageError, match="Give a folder"):
        penstock.open(str(file))
    assert file.read_bytes() == b"mine"
    for address in (None, 7911):
        with pytest.raises(InvalidError, match="penstock://host:port"):
            penstock.connect(address)  # type: ignore[arg-type]
