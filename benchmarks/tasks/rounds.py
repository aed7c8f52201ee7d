"""Rounds over all task systems, and how their report is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.interleaved import Interleaved, Rules, Tell, chosen
from benchmarks.report import Layout
from benchmarks.tasks.system import TaskSystem
from benchmarks.tasks.systems import BASE
from benchmarks.tasks.workloads import FEW, MANY, WORKLOADS, Amounts, started

LAYOUT = Layout(
    "Tasks of Penstock and its peers",
    "tasks",
    BASE,
    "once submitted, a task is",
    {
        f"Null tasks, {FEW} workers, all results collected (tasks/s, more is better)": [
            "null tasks", "null tasks, bundled",
        ],
        f"A single null task there and back, {FEW} workers (us, less is better)": [
            "round trip/p50", "round trip/p90", "round trip/p99",
        ],
        f"Efficiency: part of the time of {MANY} workers that tasks have slept (%)": [
            "1 ms tasks", "16 ms tasks", "128 ms tasks", "1 ms-1 s tasks",
        ],
    },
)  # fmt: skip


def choose_workloads(text: str) -> list[str]:
    """Names separated by commas, or all; ValueError if one is unknown."""
    return chosen(text, WORKLOADS) or list(WORKLOADS)


class TaskRounds(Interleaved[TaskSystem]):
    """Workloads with the same number of workers share them."""

    def __init__(self, amounts: Amounts, rules: Rules, tell: Tell) -> None:
        super().__init__(rules, tell)
        self._amounts = amounts

    def round(self, system: TaskSystem, workloads: Sequence[str]) -> None:
        for workers in (FEW, MANY):
            names = [name for name in workloads if WORKLOADS[name][0] == workers]
            names = [name for name in names if system.bundles or name != "bundled"]
            if names:
                self._with_workers(system, workers, names)

    def _with_workers(self, system: TaskSystem, workers: int, names: Sequence[str]) -> None:
        try:
            with started(system, workers) as process:
                for name in names:
                    measure = partial(WORKLOADS[name][1], process, self._amounts)
                    self.measure(system.name, name, measure)
        except Exception as error:
            self.failed(system.name, f"start of {workers} workers", error)
