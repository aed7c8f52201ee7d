"""Tasks: the same scripts everywhere, with a worker in the program that submits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.tasks import functions

from penstock.errors import ClosedError
from penstock.tasks import TaskFailedError, TaskOutcomeError

WAIT_S = 30.0


@pytest.fixture
def app(fabric: Any) -> Iterator[Any]:
    app = fabric.tasks("t")
    with app.worker(functions.__name__, concurrency=2, kind="thread"):
        yield app
    app.close()


def test_a_single_task_and_a_graph(app):
    assert app.submit(functions.square, 7).result(WAIT_S) == 49
    parts = [app.submit(functions.square, each) for each in range(10)]
    assert app.submit(functions.total, parts).result(WAIT_S) == 285


def test_many_tasks(app):
    futures = [app.submit(functions.square, each) for each in range(300)]
    assert app.gather(futures, WAIT_S) == [each * each for each in range(300)]


def test_what_fails_says_so_and_fails_what_depends_on_it(app):
    parent = app.submit(functions.fail, "no luck")
    child = app.submit(functions.total, [parent])
    with pytest.raises(TaskFailedError, match="no luck"):
        parent.result(WAIT_S)
    with pytest.raises(TaskOutcomeError):
        child.result(WAIT_S)


def test_one_name_is_one_task(app):
    first = app.submit(functions.square, 3, task_id="nightly")
    again = app.submit(functions.square, 3, task_id="nightly")
    assert (first.result(WAIT_S), again.result(WAIT_S)) == (9, 9)


def test_nothing_is_taken_when_the_app_is_closed(fabric):
    app = fabric.tasks("t")
    worker = app.worker(functions.__name__, kind="thread")
    app.close()
    worker.close()
    with pytest.raises(ClosedError):
        app.submit(functions.square, 1)
