"""Workers of several hosts, all on this machine: tasks run where their data is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.tasks.worker.harness import LONG_S, Caller, WorkerProcess

StartWorker = Callable[..., WorkerProcess]


def pids(caller: Caller, tasks: list[bytes]) -> set[int]:
    """The workers that have run these tasks."""
    found = [each.worker for each in caller.collect(tasks)]
    return {int(worker.rpartition(":")[2].partition("/")[0]) for worker in found}


def run_until_all_are_at(worker: WorkerProcess, caller: Caller) -> None:
    """What a worker says of its data is known to others a moment later."""
    ends_s = time.monotonic() + LONG_S
    ran: set[int] = set()
    while ran != {worker.process.pid}:
        assert time.monotonic() < ends_s, ran
        ran = pids(caller, caller.submit_all("double", [(1,)] * 20, block="x"))


def test_tasks_run_where_their_data_is(caller: Caller, start_worker: StartWorker) -> None:
    there = start_worker("--host", "there", "--block", "x", "--concurrency", "1")
    start_worker("--host", "here", "--concurrency", "1")
    run_until_all_are_at(there, caller)
    assert pids(caller, caller.submit_all("double", [(1,)] * 3, block="nobody has it"))
    assert pids(caller, caller.submit_all("double", [(1,)] * 3))
    assert caller.queue.stats()["messages"] == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_was_sent_to_a_host_that_died_is_run_by_others(
    caller: Caller, start_worker: StartWorker
) -> None:
    there = start_worker("--host", "there", "--block", "x", "--concurrency", "1", "--lease", "2s")
    here = start_worker("--host", "here", "--concurrency", "1", "--lease", "2s")
    run_until_all_are_at(there, caller)
    tasks = caller.submit_all("nap", [(0.1,)] * 30, block="x")
    there.kill()
    assert here.process.pid in pids(caller, tasks)
    caller.collect_late()
    assert max(caller.counts.values()) == 1
