"""The workloads: with how many workers, which load, and the figures that come of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.folders import data_folder
from benchmarks.tasks.system import PATIENCE_SECONDS, TaskSystem
from penstock.cli.benchmarks.figures import COUNT, Figure, Figures, latencies
from penstock.cli.benchmarks.processes import Child

TASK_RATE = "tasks/s"
PERCENT = "%"
FEW, MANY = 2, 8  # workers
START_SECONDS = 120.0  # until a client has the result of its first task
_END_SECONDS = 60.0


@dataclass(frozen=True)
class Amounts:
    """How much of everything."""

    first: int = 200  # tasks of the first run, which grows until one takes `seconds`
    most: int = 400_000
    seconds: float = 3.0
    singles: int = 1000
    singles_seconds: float = 10.0
    mix_seconds: float = 20.0  # the end of the longest task weighs less in a longer run


QUICK = Amounts(first=50, most=50, seconds=0.1, singles=20, singles_seconds=5.0, mix_seconds=1.0)


class TaskProcess:
    """A client process with its connection; `run` has it do a load."""

    def __init__(self, child: Child, workers: int, log: str) -> None:
        self._child = child
        self._log = log
        self.workers = workers

    def run(self, load: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the process has found; RuntimeError if it fails."""
        self._child.say(json.dumps([load, arguments]))
        line = self._child.answer(PATIENCE_SECONDS)
        if not line:
            told = (data_folder() / self._log).read_text(errors="replace")
            raise RuntimeError(f"{load} failed: {told[-500:].strip()}")
        outcome: dict[str, Any] = json.loads(line)
        return outcome


@contextmanager
def started(system: TaskSystem, workers: int) -> Iterator[TaskProcess]:
    """A system with so many workers and a client of it, both ended in good order."""
    log = f"client-{system.name}.log"
    inside = ["env", *(f"{name}={value}" for name, value in system.environment().items())]
    try:
        system.start(workers)
        with Child(
            "benchmarks.tasks.client", system.name, system.endpoint, str(workers),
            log=data_folder() / log, patience=START_SECONDS, inside=inside,
        ) as child:  # fmt: skip
            yield TaskProcess(child, workers, log)
            child.hang_up()
            child.wait(_END_SECONDS)
    finally:
        system.stop()


def rate(process: TaskProcess, amounts: Amounts, load: str, name: str) -> Figures:
    """Tasks a second, from the first submission to the last result."""
    given = {"first": amounts.first, "most": amounts.most, "seconds": amounts.seconds}
    found = process.run(load, given)
    return {
        name: Figure(found["n"] / found["seconds"], TASK_RATE),
        f"{name}/tasks": Figure(float(found["n"]), COUNT),
    }


def round_trip(process: TaskProcess, amounts: Amounts) -> Figures:
    """A single task at a time."""
    given = {"n": amounts.singles, "seconds": amounts.singles_seconds}
    return latencies("round trip", process.run("single", given)["ns"])


def efficiency(process: TaskProcess, amounts: Amounts, length_ms: int) -> Figures:
    """The part of the workers' time that tasks of one length have slept."""
    given = {
        "first": 4 * process.workers, "most": amounts.most, "seconds": amounts.seconds,
        "length": length_ms / 1e3,
    }  # fmt: skip
    found = process.run("naps", given)
    return _efficiency(process, found, f"{length_ms} ms tasks")


def mixed_efficiency(process: TaskProcess, amounts: Amounts) -> Figures:
    """The same of tasks of 1 ms to 1 s."""
    found = process.run("mix", {"seconds": amounts.mix_seconds})
    return _efficiency(process, found, "1 ms-1 s tasks")


def _efficiency(process: TaskProcess, found: dict[str, Any], name: str) -> Figures:
    part = found["work"] / (process.workers * found["seconds"])
    return {name: Figure(100 * part, PERCENT), f"{name}/tasks": Figure(float(found["n"]), COUNT)}


Measure = Callable[[TaskProcess, Amounts], Figures]
WORKLOADS: dict[str, tuple[int, Measure]] = {  # workers, and what is measured
    "null": (FEW, partial(rate, load="nulls", name="null tasks")),
    "bundled": (FEW, partial(rate, load="bundled", name="null tasks, bundled")),
    "single": (FEW, round_trip),
    "1ms": (MANY, partial(efficiency, length_ms=1)),
    "16ms": (MANY, partial(efficiency, length_ms=16)),
    "128ms": (MANY, partial(efficiency, length_ms=128)),
    "mix": (MANY, mixed_efficiency),
}
