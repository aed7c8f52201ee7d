"""The Executor: code that was written for pools of processes or threads."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.tasks.errors import TaskCancelledError, TaskFailedError

WAIT_S = 60.0


def test_existing_code_runs_on_it(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric), penstock.TaskExecutor(app) as pool:
        assert isinstance(pool, concurrent.futures.Executor)
        assert pool.submit(pow, 2, 10).result(WAIT_S) == 1024
        assert list(pool.map(functions.square, range(50), timeout=WAIT_S, chunksize=7)) == [
            each * each for each in range(50)
        ]
        futures = [pool.submit(functions.square, each) for each in range(10)]
        done = concurrent.futures.as_completed(futures, WAIT_S)
        assert sorted(each.result() for each in done) == [each * each for each in range(10)]


def test_arguments_with_names_of_options_reach_the_function(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric), penstock.TaskExecutor(app) as pool:
        got = pool.submit(functions.echo, timeout=1, task_id="x", priority=3).result(WAIT_S)
        assert got == [[], {"timeout": 1, "task_id": "x", "priority": 3}]


def test_it_serves_event_loops(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, functions.square, 12)

    with TinyWorker(fabric), penstock.TaskExecutor(app) as pool:
        assert asyncio.run(main()) == 144


def test_errors_are_those_of_tasks(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric), penstock.TaskExecutor(app) as pool:
        assert isinstance(pool.submit(functions.fail, "x").exception(WAIT_S), TaskFailedError)


def test_after_shutdown_nothing_is_taken(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    pool = penstock.TaskExecutor(app)
    waiting = pool.submit(functions.square, 2)
    app.flush()
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(functions.square, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(functions.square, [1])
    with TinyWorker(fabric):
        pool.shutdown()
    assert isinstance(waiting.exception(0), TaskCancelledError)
