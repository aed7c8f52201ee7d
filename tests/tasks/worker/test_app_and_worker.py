"""The client's app and the worker together: results, graphs, failures along edges, an Executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks.worker.harness import LONG_S, WorkerProcess, functions

import penstock
from penstock.tasks.app import TaskApp
from penstock.tasks.errors import (
    TaskCancelledError,
    TaskFailedError,
    TaskOutcomeError,
    TaskTimeoutError,
)

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def app(node: NodeProcess, start_worker: StartWorker) -> Iterator[TaskApp]:
    start_worker("--concurrency", "2")
    with penstock.connect(node.url, timeout=20) as fabric, fabric.tasks() as app:
        yield app


def test_single_tasks_and_many(app: TaskApp):
    tasks = functions()
    assert app.submit(tasks.double, 21).result(LONG_S) == 42
    assert list(app.map(tasks.double, range(3_000)).results(LONG_S)) == [*range(0, 6_000, 2)]


def test_a_graph(app: TaskApp):
    tasks = functions()
    leaves = [app.submit(tasks.double, number) for number in range(10)]
    left = app.submit(tasks.add, *leaves[:5])
    right = app.submit(tasks.add, *leaves[5:])
    whole = app.submit(tasks.add, left, right, 1)
    assert whole.result(LONG_S) == 2 * sum(range(10)) + 1


def test_failure_travels_along_edges(app: TaskApp):
    tasks = functions()
    parent = app.submit(tasks.fail, "no luck")
    child = app.submit(tasks.add, parent, 1)
    grandchild = app.submit(tasks.add, child, 1)
    with pytest.raises(TaskFailedError, match="no luck") as raised:
        parent.result(LONG_S)
    assert raised.value.remote_type == "ValueError"
    for each in (child, grandchild):
        with pytest.raises(TaskOutcomeError):
            each.result(LONG_S)


def test_limits_and_cancelling(app: TaskApp, tmp_path: Path):
    tasks = functions()
    with pytest.raises(TaskTimeoutError):
        app.submit(tasks.nap, 3600, timeout=0.3).result(LONG_S)
    begun = tmp_path / "begun"
    running = app.submit(tasks.wait_for, str(tmp_path / "never"), str(begun))
    while not begun.exists():
        assert not running.done()
    running.cancel()
    with pytest.raises(TaskCancelledError):
        running.result(LONG_S)
    assert app.submit(tasks.double, 1).result(LONG_S) == 2
