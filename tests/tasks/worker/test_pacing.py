"""Rates and schedules with real workers, several of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.node.conftest import NodeProcess
from tests.tasks.worker.harness import LONG_S, Caller, WorkerProcess, functions

from penstock.tasks.envelope import read_outcome
from penstock.tasks.schedules.schedule import run_id

StartWorker = Callable[..., WorkerProcess]


def test_workers_share_a_rate_and_waiting_costs_no_attempt(
    caller: Caller, start_worker: StartWorker
):
    for _ in range(2):
        start_worker("--concurrency", "2")
    tasks = caller.submit_all("limited", [(n,) for n in range(60)])
    free = caller.submit_all("double", [(n,) for n in range(100)])
    caller.collect(free)
    found = caller.collect(tasks)
    assert [caller.value(each) for each in found] == list(range(60))
    assert {each.attempt for each in found} == {1}
    started = sorted(each.started_us for each in found)
    # A start may be late, the next one is not: so many and a few in any second.
    for at, first in enumerate(started):
        assert sum(each < first + 1_000_000 for each in started[at:]) <= 20 + 8
    assert started[-1] - started[0] >= 2_900_000 - 100_000


def test_a_schedule_is_run_by_any_worker_and_once(
    node: NodeProcess, caller: Caller, start_worker: StartWorker
):
    for _ in range(2):
        start_worker("--concurrency", "1")
    with node.connect() as fabric, fabric.tasks() as app:
        app.schedules.add("often", functions().double, [21], every=0.5, keep=3600)
        schedule = app.schedules.all()["often"]
        runs = [schedule.begins_us + each * 500_000 for each in range(1, 5)]
        ends_s = time.monotonic() + LONG_S
        for run in runs:
            task = run_id("often", run)
            while (kept := caller.results.get(task)) is None:
                assert time.monotonic() < ends_s, "a run is missing"
                caller.collect_late()
            assert caller.value(read_outcome(kept)) == 42
        assert app.schedules.remove("often")
        assert app.schedules.all() == {}
        assert not app.schedules.remove("often")
    pushed = caller.queue.stats()["pushed"]
    elapsed_runs = (time.time() * 1e6 - schedule.begins_us) / 500_000
    assert 4 <= pushed <= elapsed_runs + 1, "a run is one task, whoever submits it"
