"""Workers in processes of their own, and a caller over the plain client."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from penstock.tasks.codec import Codec
from penstock.tasks.envelope import TaskCall, TaskOutcome, encode, read_outcome
from penstock.tasks.names import (
    REPLY_PARTITIONS,
    REPLY_RETENTION_S,
    reply_partition,
    streams_of,
    task_id_of,
)
from penstock.tasks.worker.loading import load

FUNCTIONS = Path(__file__).with_name("work_functions.py")
LONG_S = 90.0


def functions() -> Any:
    """The module of tasks, under the name that workers load it by."""
    if FUNCTIONS.stem not in sys.modules:
        load(str(FUNCTIONS))
    return sys.modules[FUNCTIONS.stem]


class WorkerProcess:
    """`penstock worker`, to be killed."""

    def __init__(self, url: str, *options: str) -> None:
        self._command = [
            sys.executable, "-m", "penstock.cli.app", "worker", str(FUNCTIONS), "--json",
            "--url", url, *options,
        ]  # fmt: skip
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        try:
            told = self.process.stdout.readline()
            assert told, "the worker did not start"
            assert json.loads(told)["event"] == "started"
        except BaseException:
            self.kill()
            raise

    def executors(self) -> list[int]:
        """The ids of its executor processes."""
        pid = self.process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return [int(each) for each in children.split()]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> dict[str, Any]:
        """What it says at its end."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        self.process.wait(LONG_S)
        self.process.stdout.close()
        told: dict[str, Any] = json.loads(lines[-1])
        assert told["event"] == "stopped"
        return told

    def kill(self) -> None:
        """SIGKILL, and its executors see that it is gone."""
        self.process.kill()
        self.process.wait(LONG_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


def kill(pid: int) -> None:
    """An executor that may be gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Caller:
    """Submits calls, and collects outcomes."""

    def __init__(self, fabric: penstock.Fabric, task_set: str = "default") -> None:
        names = streams_of(task_set)
        self.queue = fabric.queue(names.queue, max_deliveries=1_000_000)
        self.replies = fabric.topic(names.replies, REPLY_PARTITIONS, retention=REPLY_RETENTION_S)
        self.results = fabric.table(names.results)
        self.control = fabric.table(names.control)
        self._client = secrets.token_bytes(8)
        self._partition = reply_partition(self._client)
        self._number = 0
        self._offset = 0
        self._codec = Codec(lambda _: True)
        self.outcomes: dict[bytes, TaskOutcome] = {}
        self.counts: Counter[bytes] = Counter()

    def submit(self, function: str, *args: Any, **terms: Any) -> bytes:
        """One task; its id."""
        return self.submit_all(function, [args], **terms)[0]

    def submit_all(
        self, function: str, calls: Iterable[tuple[Any, ...]], **terms: Any
    ) -> list[bytes]:
        """Many; their ids."""
        tasks: list[bytes] = []
        values: list[bytes] = []
        for args in calls:
            self._number += 1
            tasks.append(task_id_of(self._client, self._number))
            arguments, _ = self._codec.pack_call(args, {})
            name = f"work_functions:{function}"
            call = TaskCall(name, arguments, tasks[-1], self._partition, **terms)
            values.append(encode(call))
        self.queue.push_many(values)
        return tasks

    def collect(self, tasks: Iterable[bytes], timeout: float = LONG_S) -> list[TaskOutcome]:
        """The outcomes of tasks, in order."""
        wanted = list(tasks)
        ends_s = time.monotonic() + timeout
        while not all(task in self.outcomes for task in wanted):
            left_s = ends_s - time.monotonic()
            assert left_s > 0, f"{sum(task not in self.outcomes for task in wanted)} are missing"
            self._read(min(left_s, 1.0))
        return [self.outcomes[task] for task in wanted]

    def collect_late(self) -> None:
        """Whatever else has come by now."""
        self._read(0.2)

    def _read(self, idle_s: float) -> None:
        reading = self.replies.read(self._partition, self._offset, True, idle_s)
        with reading:
            for batch in reading:
                self._offset = int(batch.offsets[-1]) + 1
                for key, value in zip(batch.keys, batch.values, strict=True):
                    assert key is not None
                    self.outcomes[key] = read_outcome(value)
                    self.counts[key] += 1
                return

    def value(self, outcome: TaskOutcome) -> Any:
        """What the function returned."""
        assert outcome.status == 0, outcome
        return self._codec.unpack(outcome.result)
