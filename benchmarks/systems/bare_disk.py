"""Another floor: what the disk takes in a row, with one sync at the end, and what comes of the page
cache when that is read again. Nothing is sent, and nothing is told apart."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.folders import fresh_folder
from benchmarks.system import MIB, System


class BareDisk(System):
    """See the module."""

    module = "bare_disk"
    recovers = False
    moves_only = True

    @property
    def durable(self) -> str:
        return "on disk once all of it is written"

    @property
    def settings(self) -> str:
        return "a new file, 1 MiB a call, fdatasync at the end"

    def start(self, fresh: bool = True) -> None:
        """There is nothing to start."""

    def version(self) -> str:
        return f"CPython {platform.python_version()}"

    def client_version(self) -> str:
        return self.version()

    def rates(self, size: int, count: int) -> tuple[float, float]:
        """Messages a second there, and back: as many bytes as they are."""
        blocks = max(1, size * count // MIB)
        path, block = fresh_folder(self.name) / "blocks", os.urandom(MIB)
        there = _seconds(lambda: _write(path, block, blocks))
        back = _seconds(lambda: _read(path, blocks))
        path.unlink()
        messages = blocks * MIB / size
        return messages / there, messages / back


def _seconds(do: Callable[[], None]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def _write(path: Path, block: bytes, blocks: int) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(blocks):
            file.write(block)
        os.fdatasync(file.fileno())


def _read(path: Path, blocks: int) -> None:
    block = bytearray(MIB)
    with path.open("rb", buffering=0) as file:
        for _ in range(blocks):
            file.readinto(block)


SYSTEM = BareDisk
