"""Tasks: how many a second, how long one takes, and how busy workers are kept.

Beside them, in the same run, the standard library's pool of processes: no network, no disk, and
nothing is left of a task when a process dies.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock import connect
from penstock.cli.benchmarks.figures import CPU, RATE, RATIO, Figure, Figures, latencies
from penstock.cli.benchmarks.measure import Measurement
from penstock.cli.benchmarks.processes import Child, NodeProcess, cpu_seconds
from penstock.cli.benchmarks.settings import Settings
from penstock.cli.benchmarks.task_functions import nap, null, plain_null
from penstock.tasks.app import TaskApp

FUNCTIONS = "penstock.cli.benchmarks.task_functions"
NULL, SINGLE = "tasks, null", "tasks, single"
POOL_NULL, POOL_SINGLE = "tasks, null in a pool", "tasks, single in a pool"
EFFICIENCY = "tasks, efficiency"
NULL_EXECUTORS = 2
NAP_EXECUTORS = 8
_NAPS_MS = (1, 16, 128)
_NAP_S, _QUICK_NAP_S = 6.0, 0.5  # that a run of naps should take
_MIX_SEED = 11
_MIX_TIMES = 5


class Tasks:
    """A node, and a worker for each measurement; durability `written`."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        self._settings = settings
        self._directory = directory
        self._node = stack.enter_context(NodeProcess(directory / "tasks"))
        self._fabric = stack.enter_context(connect(self._node.url, name="bench"))
        self._round = 0

    def measurements(self) -> Iterator[Measurement]:
        """In the order of a round."""
        yield Measurement(POOL_NULL, self.pool)
        yield Measurement(NULL, self.null)
        yield Measurement(EFFICIENCY, self.efficiency)

    def null(self) -> Figures:
        """Null tasks, their results collected; then single ones, each waited for."""
        count = self._settings.scaled(100_000, 2_000)
        with self._worker(NULL_EXECUTORS) as (app, worker):
            _wait_until_all_work(app, NULL_EXECUTORS)
            _check_all(app.map(null, range(count // 10)), count // 10)
            cpu_s = cpu_seconds(worker.pid), cpu_seconds(self._node.pid)
            begun = time.perf_counter()
            _check_all(app.map(null, range(count)), count)
            seconds = time.perf_counter() - begun
            puller_s = cpu_seconds(worker.pid) - cpu_s[0]
            node_s = cpu_seconds(self._node.pid) - cpu_s[1]
            singles = _round_trips(
                self._settings.singles, lambda: app.submit(null, 1, keep=0).result()
            )
        return {
            NULL: Figure(count / seconds, RATE),
            f"{NULL}/puller": Figure(puller_s / count * 1e6, CPU),
            f"{NULL}/node": Figure(node_s / count * 1e6, CPU),
            **latencies(SINGLE, singles),
        }

    def pool(self) -> Figures:
        """The same in a pool of processes, one task at a time as `map` sends them."""
        count = self._settings.scaled(20_000, 1_000)
        with ProcessPoolExecutor(NULL_EXECUTORS) as pool:
            list(pool.map(plain_null, range(100)))
            begun = time.perf_counter()
            _check_all(pool.map(plain_null, range(count)), count)
            seconds = time.perf_counter() - begun
            singles = _round_trips(
                self._settings.singles, lambda: pool.submit(plain_null, 1).result()
            )
        return {POOL_NULL: Figure(count / seconds, RATE), **latencies(POOL_SINGLE, singles)}

    def efficiency(self) -> Figures:
        """The sum of all naps, of the time that all executors had from first to last."""
        figures: Figures = {}
        whole_s = _QUICK_NAP_S if self._settings.quick else _NAP_S
        with self._worker(NAP_EXECUTORS) as (app, _):
            _wait_until_all_work(app, NAP_EXECUTORS)
            for name, naps in _loads(whole_s * NAP_EXECUTORS):
                begun = time.perf_counter()
                _check_all(app.map(nap, naps), len(naps))
                seconds = time.perf_counter() - begun
                share = sum(naps) / (NAP_EXECUTORS * seconds)
                figures[f"{EFFICIENCY}/{name}"] = Figure(share, RATIO)
        return figures

    @contextmanager
    def _worker(self, executors: int) -> Iterator[tuple[TaskApp, Child]]:
        """A worker, and a task set, of its own."""
        self._round += 1
        task_set = f"bench-{self._round}"
        arguments = (
            "worker", FUNCTIONS, "--tasks", task_set, "--concurrency", str(executors),
            "--url", self._node.url,
        )  # fmt: skip
        with self._fabric.tasks(task_set, durability="written") as app:
            log = self._directory / "worker.log"
            with Child("penstock.cli.app", *arguments, log=log) as worker:
                yield app, worker


def _loads(total_s: float) -> Iterator[tuple[str, list[float]]]:
    for each in _NAPS_MS:
        yield f"{each} ms", [each / 1000] * round(total_s * 1000 / each)
    chance, naps = random.Random(_MIX_SEED), list[float]()
    while sum(naps) < _MIX_TIMES * total_s:  # or one long task at the end would count for much
        naps.append(10 ** chance.uniform(-3, 0))
    yield "1 ms to 1 s", naps


def _wait_until_all_work(app: TaskApp, executors: int) -> None:
    """Executors start one after the other: tasks of a while, until all have some."""
    seen: set[str] = set()
    while len(seen) < executors:
        futures = [app.submit(nap, 0.05, keep=0) for _ in range(2 * executors)]
        app.gather(futures)
        seen |= {each.outcome.worker for each in futures if each.outcome is not None}


def _round_trips(count: int, call: Callable[[], Any]) -> list[int]:
    taken: list[int] = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - begun)
    return taken


def _check_all(results: Any, count: int) -> None:
    found = sum(1 for _ in results)
    if found != count:
        raise RuntimeError(f"{found:,} of {count:,} tasks have a result")
