"""The bar for people shows what has ended since it was begun."""

from __future__ import annotations

import io

from rich.console import Console
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.tasks.progress import TaskProgress
from penstock.tasks.waiting import Counts


def test_it_counts_from_its_beginning() -> None:
    now = [Counts(5, 3, 1)]
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    with TaskProgress(lambda: now[0], "squares", shown) as progress:
        now[0] = Counts(105, 43, 3)
        progress.refresh()
        (task,) = progress.tasks
        assert (task.total, task.completed, task.fields["failed"]) == (102, 40, "2 failed")
    assert isinstance(shown.file, io.StringIO)
    assert "squares" in shown.file.getvalue()
    assert "40/102" in shown.file.getvalue()


def test_an_app_has_one(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric), app.progress("squares") as progress:
        list(app.map(functions.square, range(10)))
        list(app.map(functions.fail, "ab").results(return_exceptions=True))
        progress.refresh()
        (task,) = progress.tasks
        assert (task.total, task.completed, task.fields["failed"]) == (12, 12, "2 failed")
