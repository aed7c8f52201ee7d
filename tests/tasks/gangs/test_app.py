"""`app.gang`, from the call to the results, with a worker as users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks.gangs import functions

import penstock
from penstock.errors import InvalidError
from penstock.tasks.errors import TaskFailedError

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 300.0  # starting processes takes long on a busy machine


@pytest.fixture(scope="module")
def app(node: NodeProcess) -> Iterator[penstock.TaskApp]:
    with node.connect() as fabric, fabric.tasks() as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(node: NodeProcess) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "penstock.cli.app", "worker"]
    command += ["tests.tasks.gangs.functions", "--url", node.url, "--concurrency", "1"]
    command += ["--gangs", "3", "--address", "here", "--drain", "10s"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_a_gang_has_the_results_of_all_members(app, worker):
    first = app.gang(functions.share, size=3)
    second = app.gang(functions.share_async, size=2, task_id="once")
    again = app.gang(functions.share_async, size=2, task_id="once")
    rows = first.result(timeout=PATIENCE_S)
    assert [row[0] for row in rows] == [0, 1, 2]
    assert rows[0][3] == {"from": 0, "to": ["here"] * 3}
    assert second.result(timeout=PATIENCE_S) == again.result(timeout=PATIENCE_S)


def test_a_gang_that_fails_says_why(app, worker):
    with pytest.raises(TaskFailedError, match="on purpose"):
        app.gang(functions.fail, size=2).result(timeout=PATIENCE_S)


def test_large_arguments_and_results_of_members(app, worker):
    gang = app.gang(functions.large, bytes(3 << 20), size=2)
    whole = app.submit(functions.lengths, gang)
    assert [each[-1] for each in gang.result(timeout=PATIENCE_S)] == [0, 1]
    assert whole.result(timeout=PATIENCE_S) == [1 << 20, 1 << 20]
    assert len(gang.outcome.blobs) == 2


def test_failure_of_a_gang_travels_along_edges(app, worker):
    failed = app.gang(functions.fail, size=2)
    with pytest.raises(TaskFailedError, match="depends on failed"):
        app.submit(functions.lengths, failed).result(timeout=PATIENCE_S)


def test_what_is_refused(app, worker):
    for size in (0, 1001, True):
        with pytest.raises(InvalidError):
            app.gang(functions.share, size=size)
    with pytest.raises(InvalidError):
        app.gang(functions.share, size=2, on_loss="maybe")
    parent = app.submit(functions.plain)
    with pytest.raises(InvalidError, match="depend"):
        app.gang(functions.large, parent, size=2)
    assert parent.result(timeout=PATIENCE_S) == "plain"


def test_the_worker_ends_in_order(app, worker):
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
