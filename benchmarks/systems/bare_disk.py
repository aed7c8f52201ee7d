"""Another floor: what the disk takes in a row, with one sync at the end. Nothing is sent, nothing
is told apart, and nothing comes back: what was just written would be read from memory."""

from __future__ import annotations

import os
import platform
import time

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

    def rates(self, size: int, count: int) -> tuple[float, None]:
        """Messages a second: as many bytes as they are."""
        blocks = max(1, size * count // MIB)
        path, block = fresh_folder(self.name) / "blocks", os.urandom(MIB)
        with path.open("wb", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(blocks):
                file.write(block)
            os.fdatasync(file.fileno())
            seconds = time.perf_counter() - started
        path.unlink()
        return blocks * MIB / size / seconds, None


SYSTEM = BareDisk
