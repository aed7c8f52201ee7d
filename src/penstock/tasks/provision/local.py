"""Workers as processes of this computer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.errors import UnavailableError
from penstock.tasks.provision.policy import Terms
from penstock.tasks.provision.provider import WorkerInfo

KILL_S = 60.0


@dataclass
class _Process:
    process: subprocess.Popen[str]
    reader: threading.Thread | None = None
    figures: dict[str, float] = field(default_factory=dict)


class LocalProcesses:
    """A `Provider`: starts `penstock worker` here. `close` it, or processes may outlive it.

    `arguments` are those of the command: modules, the address of the fabric, the task set. What a
    worker says on standard error appears where this process says its own.
    """

    def __init__(self, arguments: Sequence[str], terms: Terms) -> None:
        command = [sys.executable, "-m", "penstock.cli.app", "worker", "--json", *arguments]
        self._staying = command
        leaving = ["--period", f"{terms.period_s}", "--idle", f"{terms.idle_s}"]
        self._leaving = [*command, *leaving]
        self._workers: dict[str, _Process] = {}
        self._started = 0

    def start(self, stays: bool) -> str:
        """A new process; UnavailableError if there cannot be one."""
        command = self._staying if stays else self._leaving
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise UnavailableError(f"a worker cannot be started: {error}") from error
        self._started += 1
        worker = f"{self._started}:{process.pid}"
        started = self._workers[worker] = _Process(process)
        started.reader = threading.Thread(target=_read, args=(started,), daemon=True)
        started.reader.start()
        return worker

    def stop(self, worker: str) -> None:
        """SIGTERM."""
        if worker in self._workers:
            with suppress(ProcessLookupError):
                self._workers[worker].process.terminate()

    def list(self) -> list[WorkerInfo]:
        """Those that run."""
        for worker, each in list(self._workers.items()):
            if each.process.poll() is not None:
                _end(each)
                del self._workers[worker]
        return [_info(worker, each.figures) for worker, each in self._workers.items()]

    def close(self) -> None:
        """Ends all, and waits; those that do not end in time are killed."""
        for worker in self._workers:
            self.stop(worker)
        for each in self._workers.values():
            try:
                each.process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                each.process.kill()
            _end(each)
        self._workers.clear()


def _end(ended: _Process) -> None:
    ended.process.wait()
    if ended.reader is not None:
        ended.reader.join()
    if ended.process.stdout is not None:
        ended.process.stdout.close()


def _read(of: _Process) -> None:
    """What a worker says of itself: when it is ready, then once a second."""
    assert of.process.stdout is not None
    for line in of.process.stdout:
        with suppress(ValueError):
            told = json.loads(line)
            if told.get("event") in ("started", "progress"):
                of.figures = told


def _info(worker: str, figures: dict[str, float]) -> WorkerInfo:
    return WorkerInfo(
        worker,
        bool(figures),
        int(figures.get("running", 0)),
        int(figures.get("done", 0)),
        figures.get("busy_s", 0.0),
    )
