"""Worker processes, and a caller that submits gangs to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.node.test_cluster import wait_for

import penstock
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Task, registry
from penstock.tasks.envelope import Status, TaskCall, TaskOutcome, read_failure, read_outcome
from penstock.tasks.gangs import pack_gang
from penstock.tasks.names import named_task_id, streams_of

ROOT = Path(__file__).parents[3]
SESSION_S = 4.0
LEASE_S = 20.0
MAX_DELIVERIES = 1_000_000


class Crew:
    """Workers of gangs, each a process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, count: int, kind: str = "thread") -> None:
        """So many more of them are ready when it returns."""
        program = [sys.executable, "-m", "tests.tasks.gangs.worker_main", self._url]
        command = [*program, kind, str(SESSION_S)]
        begun = [
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        for process in begun:
            self.processes[process.pid] = process
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def only(self, count: int, kind: str = "thread") -> None:
        """So many are there, no more and no fewer."""
        for pid in list(self.processes)[count:]:
            self.kill(pid)
        self.start(count - len(self.processes), kind)

    def kill(self, pid: int) -> None:
        process = self.processes.pop(pid)
        os.kill(pid, signal.SIGKILL)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()

    def end(self) -> None:
        for pid in list(self.processes):
            self.kill(pid)


class Caller:
    """Submits gangs, and reads what came of them in the table of results."""

    def __init__(self, fabric: penstock.Fabric) -> None:
        names = streams_of("default")
        options: dict[str, Any] = {"lease": LEASE_S, "max_deliveries": MAX_DELIVERIES}
        self.gangs = fabric.queue(names.gangs, gangs=True, **options)
        self.control = fabric.table(names.control)
        self.results = fabric.table(names.results)
        self.codec = Codec(registry.has_package)
        self._submitted = 0

    def submit(
        self, function: Task[..., Any], size: int, *args: Any, on_loss: str = "restart"
    ) -> bytes:
        self._submitted += 1
        task, options = named_task_id(f"gang {self._submitted}"), function.options
        arguments, _ = self.codec.pack_call(args, {})
        call = TaskCall(
            function.name, arguments, task, retries=options.retries,
            backoff_ms=options.backoff_ms, timeout_ms=options.timeout_ms, keep_ms=600_000,
        )  # fmt: skip
        self.gangs.push_gang(pack_gang(call, on_loss), size, id=task)
        return task

    def outcome(self, task: bytes, seconds: float = 200.0) -> TaskOutcome:
        assert wait_for(lambda: self.results.get(task) is not None, seconds), "no outcome in time"
        packed = self.results.get(task)
        assert packed is not None
        return read_outcome(packed)

    def result(self, task: bytes, seconds: float = 200.0) -> Any:
        outcome = self.outcome(task, seconds)
        assert outcome.status == Status.DONE, read_failure(outcome.result)
        return self.codec.unpack(outcome.result)

    def failure(self, task: bytes) -> str:
        outcome = self.outcome(task)
        assert outcome.status == Status.FAILED
        failure = read_failure(outcome.result)
        return f"{failure.kind}: {failure.text}"

    def members(self, task: bytes) -> dict[int, int]:
        """The process of each rank of a gang that is running, the manager among them."""
        found: dict[int, int] = {}
        for key, value in self.control.items(b"gang/" + task.hex().encode() + b"/"):
            words = key.split(b"/")
            if words[3:] == [b"down", b"here"]:
                found[0] = int(value)
            elif words[3] == b"up" and words[5:] == [b"here"]:
                found[int(words[4])] = int(value)
        return found
