"""A worker at work, in processes of its own: results, failures, retries, limits, its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks.worker.harness import LONG_S, Caller, WorkerProcess, kill

from penstock.tasks.envelope import Status, read_failure, read_outcome
from penstock.tasks.names import cancel_key
from penstock.wire.batch import checksum_of
from penstock.wire.encode import encode_batch

StartWorker = Callable[..., WorkerProcess]
KINDS = ["process", "thread", "async"]


@pytest.mark.parametrize("kind", KINDS)
def test_many_short_tasks(caller: Caller, start_worker: StartWorker, kind: str):
    count = 500 if kind == "process" else 100
    worker = start_worker("--concurrency", "2", "--kind", kind)
    tasks = caller.submit_all("double", [(number,) for number in range(count)])
    found = caller.collect(tasks)
    assert [caller.value(each) for each in found] == [2 * number for number in range(count)]
    for each in found:
        assert (each.attempt, each.function) == (1, "work_functions:double")
        assert 0 < each.popped_us <= each.started_us <= each.ended_us
    worker.signal(signal.SIGTERM)
    figures = worker.wait()
    assert (figures["done"], figures["failed"], figures["refused"]) == (count, 0, 0)
    assert caller.queue.stats()["messages"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_coroutine_is_awaited(caller: Caller, start_worker: StartWorker, kind: str):
    start_worker("--concurrency", "1", "--kind", kind)
    (found,) = caller.collect([caller.submit("nap_async", 0.01)])
    assert caller.value(found) == 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_told_and_the_task_is_a_dead_letter(
    caller: Caller, start_worker: StartWorker, kind: str
):
    start_worker("--concurrency", "1", "--kind", kind)
    task = caller.submit("fail", "no luck", retries=1, backoff_ms=1, keep_ms=60_000)
    (found,) = caller.collect([task])
    assert (found.status, found.attempt) == (Status.FAILED, 2)
    failure = read_failure(found.result)
    assert (failure.kind, failure.text) == ("ValueError", "no luck")
    assert "in fail" in failure.traceback
    assert "running.py" not in failure.traceback
    kept = caller.results.get(task)
    assert kept is not None
    assert read_outcome(kept) == found
    assert [each.value for each in caller.queue.dead.peek(9)]
    assert caller.queue.dead.redrive() == 1
    del caller.outcomes[task]
    (again,) = caller.collect([task])
    assert again.attempt == 2, "it is sent again as a new task"


def test_what_fails_at_first_is_tried_again(
    caller: Caller, start_worker: StartWorker, tmp_path: Path
):
    start_worker("--concurrency", "2")
    task = caller.submit("fail_until", str(tmp_path / "count"), 3, retries=5, backoff_ms=5)
    (found,) = caller.collect([task])
    assert (caller.value(found), found.attempt) == (3, 3)


def test_unknown_and_undeclared_functions(caller: Caller, start_worker: StartWorker):
    worker = start_worker("--concurrency", "1")
    tasks = [caller.submit("nowhere"), caller.submit("undeclared", 1)]
    for found in caller.collect(tasks):
        assert read_failure(found.result).kind == "penstock.tasks.errors.UnknownFunctionError"
    worker.kill()
    start_worker("--concurrency", "1", "--allow", "work_functions")
    (found,) = caller.collect([caller.submit("undeclared", 1)])
    assert caller.value(found) == 1


def test_a_function_that_another_worker_has_is_left_to_it(
    caller: Caller, start_worker: StartWorker
):
    """It is given back, and that is no attempt; what nobody has fails all the same."""
    start_worker("--concurrency", "2")
    start_worker("--concurrency", "1", "--allow", "work_functions")
    tasks = caller.submit_all("undeclared", [(number,) for number in range(20)], retries=0)
    found = caller.collect(tasks)
    assert [caller.value(each) for each in found] == list(range(20))
    assert {each.attempt for each in found} == {1}
    (unknown,) = caller.collect([caller.submit("nowhere")])
    assert unknown.status == Status.FAILED


def test_a_time_limit_ends_the_attempt_and_nothing_else(
    caller: Caller, start_worker: StartWorker
):
    start_worker("--concurrency", "2")
    endless = caller.submit("nap", 3600, timeout_ms=300)
    others = caller.submit_all("nap", [(0.001,)] * 50, timeout_ms=60_000)
    (found,) = caller.collect([endless])
    assert found.status == Status.FAILED
    assert read_failure(found.result).kind == "penstock.tasks.errors.TaskTimeoutError"
    assert all(each.attempt == 1 for each in caller.collect(others))


def test_an_executor_that_dies_is_replaced_and_its_task_run_again(
    caller: Caller, start_worker: StartWorker, tmp_path: Path
):
    worker = start_worker("--concurrency", "1", "--lease", "60s")
    others = caller.submit_all("nap", [(0.001,)] * 20)
    task = caller.submit("die", str(tmp_path / "marker"))
    (found,) = caller.collect([task], LONG_S / 2)
    assert (caller.value(found), found.attempt) == ("survived", 2)
    caller.collect(others)
    worker.signal(signal.SIGTERM)
    assert worker.wait()["executors_lost"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiting_and_a_running_task_are_cancelled(
    caller: Caller, start_worker: StartWorker, tmp_path: Path, kind: str
):
    start_worker("--concurrency", "1", "--kind", kind)
    begun = tmp_path / "begun"
    running = caller.submit("wait_for", str(tmp_path / "never"), str(begun))
    while not begun.exists():
        caller.collect_late()
    waiting = caller.submit("double", 1)
    for task in (waiting, running):
        caller.control.put(cancel_key(task), b"", ttl=60)
    for found in caller.collect([waiting, running]):
        assert found.status == Status.CANCELLED
    assert caller.value(caller.collect([caller.submit("double", 4)])[0]) == 8


def test_draining_finishes_what_runs_and_gives_back_the_rest(
    caller: Caller, start_worker: StartWorker, tmp_path: Path
):
    worker = start_worker("--concurrency", "1", "--lease", "60s", "--drain", "60s")
    begun, go = tmp_path / "begun", tmp_path / "go"
    running = caller.submit("wait_for", str(go), str(begun))
    while not begun.exists():
        caller.collect_late()
    others = caller.submit_all("double", [(1,), (2,)])
    worker.signal(signal.SIGTERM)
    start_worker("--concurrency", "1")
    assert [caller.value(each) for each in caller.collect(others)] == [2, 4]
    assert running not in caller.outcomes
    go.touch()
    (found,) = caller.collect([running])
    assert found.attempt == 1
    assert worker.wait()["done"] == 1


def test_the_second_signal_ends_it_now(caller: Caller, start_worker: StartWorker, tmp_path: Path):
    worker = start_worker("--concurrency", "1", "--lease", "60s", "--drain", "60s")
    begun = tmp_path / "begun"
    go = tmp_path / "go"
    task = caller.submit("wait_for", str(go), str(begun))
    while not begun.exists():
        caller.collect_late()
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    worker.wait()
    go.touch()
    start_worker("--concurrency", "1")
    assert caller.collect([task], LONG_S / 2)[0].attempt == 2, "at once, not after the lease"


def test_a_lease_is_extended_while_a_task_runs(
    caller: Caller, start_worker: StartWorker, tmp_path: Path
):
    for _ in range(2):
        start_worker("--concurrency", "1", "--lease", "1s")
    task = caller.submit("nap", 4.0)
    (found,) = caller.collect([task])
    assert found.attempt == 1


def test_a_killed_worker_loses_nothing(caller: Caller, start_worker: StartWorker, tmp_path: Path):
    worker = start_worker("--concurrency", "1", "--lease", "2s")
    begun, go = tmp_path / "begun", tmp_path / "go"
    task = caller.submit("wait_for", str(go), str(begun))
    while not begun.exists():
        caller.collect_late()
    (executor,) = worker.executors()
    worker.kill()
    kill(executor)
    go.touch()
    start_worker("--concurrency", "1")
    (found,) = caller.collect([task])
    assert found.attempt == 2


def test_a_batch_that_cannot_be_opened_ends_no_worker(
    caller: Caller, node: NodeProcess, start_worker: StartWorker
):
    """A node does not open what is compressed: whoever may push can put anything there."""
    hostile = encode_batch([b"value" * 99], timestamp_us=1, compression="zstd")
    hostile[-9:] = bytes(9)
    hostile[32:40] = checksum_of(hostile).to_bytes(8, "little")
    with node.connect() as fabric:
        transaction = fabric.transaction()
        transaction.push(caller.queue, b"")
        transaction._transact.pushes[0].batch = bytes(hostile)
        transaction.commit()
    tasks = caller.submit_all("add", [(each, 1) for each in range(20)])
    start_worker()
    assert [each.status for each in caller.collect(tasks)] == [Status.DONE] * 20
    assert caller.queue.stats()["dead"] == 1


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_without_tasks_does_not_start(
    node: NodeProcess, caller: Caller, tmp_path: Path, kind: str
):
    empty = tmp_path / "nothing_to_do.py"
    empty.write_text("def square(x):\n    return x * x\n")
    command = [sys.executable, "-m", "penstock.cli.app", "worker", str(empty), "--kind", kind]
    done = subprocess.run(
        [*command, "--url", node.url], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode != 0
    assert "there is no task in" in done.stderr
    assert "--allow" in done.stderr
