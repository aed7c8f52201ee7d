"""The floor, and no peer: a bare process that only writes and syncs the batches that Penstock makes
of the same messages, and sends them back. There is no client: they are encoded before the clock.

`fresh`: the file's blocks were written before, but the page cache has nothing of it. Whoever keeps
more than before needs new memory, and on a virtual machine that can take longer than all else."""

from __future__ import annotations

import platform
from contextlib import ExitStack

from benchmarks.folders import fresh_folder
from benchmarks.system import System
from penstock.cli.benchmarks.floors import Floors
from penstock.cli.benchmarks.settings import Settings
from penstock.client.ops_push import BATCH_MESSAGES
from penstock.client.rows import BATCH_BYTES


class BarePipe(System):
    """See the module."""

    module = "bare_pipe"
    recovers = False
    moves_only = True

    def __init__(self, name: str, variant: str) -> None:
        super().__init__(name, variant)
        self._stack = ExitStack()
        self._fresh = variant == "fresh"

    @property
    def durable(self) -> str:
        return "on disk: synced before it is confirmed"

    @property
    def settings(self) -> str:
        place = "outside" if self._fresh else "in"
        return (
            "the batches of Penstock's client, encoded before; written to a file "
            f"{place} the page cache, synced in groups"
        )

    def start(self, fresh: bool = True) -> None:
        self._stack = ExitStack()

    def stop(self) -> None:
        self._stack.close()

    def kill(self) -> None:
        self.stop()

    def version(self) -> str:
        return f"CPython {platform.python_version()}"

    def client_version(self) -> str:
        return self.version()

    def rates(self, size: int, count: int) -> tuple[float, float]:
        """Messages a second there, and back."""
        batch = max(1, min(BATCH_MESSAGES, BATCH_BYTES // size, count))
        settings = Settings(messages=count, size=size, batch=batch, durability="synced")
        floors = Floors(settings, fresh_folder(self.name), self._stack, self._fresh)
        return floors.pipe_in()["pipe in"].value, floors.pipe_out()["pipe out"].value


SYSTEM = BarePipe
