"""A pipeline as a process of its own that tells how it goes on, and can be killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

END_S = 60.0
_LOG_TAIL_BYTES = 3000


class PipelineRun:
    """`penstock pipeline run FILE`. It and all that it starts are one group of processes, which
    is ended when this is left."""

    def __init__(self, file: Path, log: Path, memory: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "penstock.cli.app", "pipeline", "run", str(file)]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "--json", "--memory", memory],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.pid = self._process.pid
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """What it tells next; an empty one if it says nothing for so long, None at its end."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return {}
        if line is None:
            self._lines.put(None)
            return None
        told: dict[str, Any] = json.loads(line)
        return told

    def kill(self) -> None:
        """Ends the driver, its Java and all workers at once, as a crash would."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(END_S)

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait(END_S)

    def words(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
