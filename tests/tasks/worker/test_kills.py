"""Executors and whole workers killed with SIGKILL under load: every task has one outcome."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.worker.harness import Caller, WorkerProcess, kill

from penstock.tasks.envelope import Status

StartWorker = Callable[..., WorkerProcess]
LEASE = "2s"
WHOLE_RUN_S = 240.0
KILL_WORKER = 0.1  # instead of one of its executors


def run_with_kills(
    caller: Caller, workers: list[WorkerProcess], tasks: list[bytes], seed: int, kills: int
) -> int:
    """Kills something whenever some more outcomes have come; how many workers it were."""
    chance = random.Random(seed)
    ends_s = time.monotonic() + WHOLE_RUN_S
    killed_workers = 0
    done = 0
    while len(caller.outcomes) < len(tasks):
        assert time.monotonic() < ends_s, f"{len(caller.outcomes)} of {len(tasks)} so far"
        caller.collect_late()
        if kills and len(caller.outcomes) > done:
            done = len(caller.outcomes)
            kills -= 1
            worker = chance.choice(workers)
            if chance.random() < KILL_WORKER:
                worker.kill()
                worker.start()
                killed_workers += 1
            elif executors := worker.executors():
                kill(chance.choice(executors))
    return killed_workers


def check(caller: Caller, tasks: list[bytes]) -> None:
    caller.collect_late()
    assert set(caller.outcomes) == set(tasks)
    assert set(caller.counts.values()) == {1}, "an outcome came twice"
    assert all(each.status == Status.DONE for each in caller.outcomes.values())
    figures = caller.queue.stats()
    assert (figures["messages"], figures["dead"]) == (0, 0)


@pytest.mark.timeout(2 * WHOLE_RUN_S)
@pytest.mark.parametrize("seed", [1, *[pytest.param(n, marks=pytest.mark.slow) for n in (2, 3)]])
def test_every_task_has_one_outcome(caller: Caller, start_worker: StartWorker, seed: int):
    workers = [start_worker("--concurrency", "2", "--lease", LEASE) for _ in range(2)]
    longer = caller.submit_all("nap", [(0.05,)] * 200)
    short = caller.submit_all("double", [(n,) for n in range(800)])
    run_with_kills(caller, workers, [*short, *longer], seed, kills=12)
    check(caller, [*short, *longer])
    assert [caller.value(caller.outcomes[task]) for task in short] == [2 * n for n in range(800)]
    assert max(each.attempt for each in caller.outcomes.values()) > 1, "something was run again"


def test_a_worker_that_was_taken_for_dead_is_refused(
    caller: Caller, start_worker: StartWorker, tmp_path: Path
):
    """It is stopped for longer than its lease; another one runs the task meanwhile."""
    slow = start_worker("--concurrency", "1", "--lease", LEASE)
    go, begun = tmp_path / "go", tmp_path / "begun"
    task = caller.submit("wait_for", str(go), str(begun))
    while not begun.exists():
        caller.collect_late()
    slow.signal(signal.SIGSTOP)
    go.touch()  # its executor ends the task, and nobody hears of it
    start_worker("--concurrency", "1", "--lease", LEASE)
    (found,) = caller.collect([task])
    slow.signal(signal.SIGCONT)
    slow.signal(signal.SIGTERM)
    figures = slow.wait()
    caller.collect_late()
    assert caller.counts[task] == 1
    assert found.attempt == 2
    assert (figures["done"], figures["refused"]) == (0, 1)
