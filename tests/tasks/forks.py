"""Tasks that fork, and what tests know of a process that outlives the one that has forked it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Self

from penstock.tasks.declare import task

FUNCTIONS = Path(__file__)


def fork(told: str, gate: str) -> int:
    """A process that writes its id to a pipe, and ends when another one is written to."""
    if not (pid := os.fork()):
        try:
            Path(told).write_text(str(os.getpid()), "utf-8")
            Path(gate).read_bytes()
        finally:
            os._exit(0)
    return pid


@task
def wait_for_a_fork(*args: Any) -> None:
    """The pipes come last: a member has its gang before them."""
    told, gate = args[-2:]
    os.waitpid(fork(told, gate), 0)


class Fork:
    """Such a process: it lives until this is left."""

    def __init__(self, folder: Path) -> None:
        self.pipes = str(folder / "told"), str(folder / "gate")
        for each in self.pipes:
            os.mkfifo(each)
        self._pid: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)

    async def begun(self) -> None:
        """Waits until it is there."""
        self._pid = int(await asyncio.to_thread(Path(self.pipes[0]).read_text, "utf-8"))
