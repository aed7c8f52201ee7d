"""Tasks that are submitted and waited for one by one: on the caller's own thread."""

from __future__ import annotations

import concurrent.futures
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import ClosedError, LimitError
from penstock.node.clock import Clock
from penstock.tasks import direct
from penstock.tasks.envelope import TaskCall
from penstock.tasks.errors import TaskCancelledError, TaskFailedError
from penstock.tasks.names import streams_of
from penstock.testing import memory_fabric

WAIT_S = 60.0


@pytest.fixture
def fabric(node: NodeProcess) -> Iterator[penstock.Fabric]:
    with node.connect(timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def beside(node: NodeProcess) -> Iterator[penstock.Fabric]:
    """For workers: who shares a connection gets no turns."""
    with node.connect(timeout=WAIT_S) as made:
        yield made


@pytest.fixture
def gate() -> threading.Event:
    """Tasks run while it is open."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def worker(
    beside: penstock.Fabric, app: penstock.TaskApp, gate: threading.Event
) -> Iterator[TinyWorker]:
    with TinyWorker(beside, before=lambda call: _pass(gate)) as working:
        yield working
        gate.set()


def _pass(gate: threading.Event) -> None:
    assert gate.wait(WAIT_S)


def warm_up(app: penstock.TaskApp) -> None:
    """One task after the other, until they are waited for in turns."""
    until(lambda: app.submit(functions.square, 3).result(WAIT_S) == 9 and app._direct.taken)


def until(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_s


def test_who_waits_for_each_task_gets_turns(app: penstock.TaskApp, worker: TinyWorker) -> None:
    futures = [app.submit(functions.square, each) for each in range(100)]
    assert app.gather(futures) == [each * each for each in range(100)]
    assert not app._direct.taken, "those that are submitted together go together"
    warm_up(app)
    taken, ran = app._direct.taken, len(worker.ran)
    for each in range(100):
        assert app.submit(functions.square, each).result(WAIT_S) == each * each
    assert app._direct.taken - taken > 50
    assert len(worker.ran) - ran == 100, "each ran once"
    assert app._link.waiting.counts.ended == app._link.waiting.counts.submitted
    with pytest.raises(TaskFailedError, match="no luck"):
        app.submit(functions.fail, "no luck").result(WAIT_S)
    assert app._link.waiting.counts.failed == 1
    app.flush()


def test_a_second_submission_ends_the_turn(app: penstock.TaskApp, worker: TinyWorker) -> None:
    warm_up(app)
    for _ in range(20):
        for _ in range(direct.ALONE):
            app.submit(functions.square, 3).result(WAIT_S)
        first, second = (app.submit(functions.square, each) for each in (4, 5))
        assert (second.result(WAIT_S), first.result(WAIT_S)) == (25, 16)


def test_a_turn_that_nobody_waits_in_ends(app: penstock.TaskApp, worker: TinyWorker) -> None:
    warm_up(app)
    taken = app._direct.taken
    future = app.submit(functions.square, 4)
    assert app._direct.taken > taken
    done, _ = concurrent.futures.wait([future], WAIT_S)
    assert done == {future}
    assert future.result() == 16
    until(lambda: app._direct._turn is None)
    app.submit(functions.square, 3).result(WAIT_S)
    assert app._direct._alone < 0, "who waits otherwise gets no turns for a while"


def test_callbacks_are_called(app: penstock.TaskApp, worker: TinyWorker) -> None:
    warm_up(app)
    called = threading.Event()
    app.submit(functions.square, 4).add_done_callback(lambda _: called.set())
    assert called.wait(WAIT_S)


@pytest.mark.parametrize("wait", [1, 2, 3])
def test_other_ways_to_wait(app: penstock.TaskApp, worker: TinyWorker, wait: int) -> None:
    warm_up(app)
    future = app.submit(functions.square, 4)
    if wait == 1:
        assert app.gather([future], WAIT_S) == [16]
    elif wait == 2:
        assert app.wait([future], WAIT_S)[0] == {future}
    else:
        assert [each.result() for each in app.as_completed([future], WAIT_S)] == [16]


def test_what_takes_longer_is_waited_for_by_the_loop(
    app: penstock.TaskApp, worker: TinyWorker, gate: threading.Event
) -> None:
    warm_up(app)
    gate.clear()
    future = app.submit(functions.square, 4)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="has not ended within"):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0.2)
    assert 0.2 <= time.monotonic() - began < WAIT_S
    assert app._direct._turn is None
    gate.set()
    assert future.result(WAIT_S) == 16


def test_two_threads_wait_for_one_future(
    app: penstock.TaskApp, worker: TinyWorker, gate: threading.Event
) -> None:
    warm_up(app)
    gate.clear()
    future = app.submit(functions.square, 4)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(future.result, WAIT_S) for _ in range(3)]
        gate.set()
        assert [each.result() for each in waiting] == [16] * 3


def test_threads_share_the_turns(app: penstock.TaskApp, worker: TinyWorker) -> None:
    def work(number: int) -> list[int]:
        return [app.submit(functions.square, number + each).result(WAIT_S) for each in range(50)]

    warm_up(app)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert found == [[(n + each) ** 2 for each in range(50)] for n in range(4)]
    counts = app._link.waiting.counts
    assert (counts.ended, counts.failed) == (counts.submitted, 0)


def test_a_large_result_is_read_by_the_loop(app: penstock.TaskApp, tmp_path: Path) -> None:
    with app.worker(kind="thread", concurrency=1):
        warm_up(app)
        taken = app._direct.taken
        (got,), _ = app.submit(functions.echo, 7).result(WAIT_S)
        large = app.submit(functions.zeros, 3 << 20).result(WAIT_S)
        assert (got, len(large)) == (7, 3 << 20)
        assert app._direct.taken == taken + 2


def test_a_refusal_is_told(fabric: penstock.Fabric, beside: penstock.Fabric) -> None:
    """The queue is full: the task was not stored, and the future says so."""
    queue = fabric.queue(streams_of("small").queue, max_deliveries=1_000_000, max_messages=1)
    app = fabric.tasks("small")
    with TinyWorker(beside, "small"):
        warm_up(app)
    queue.push(b"no task, but in the way")
    taken = app._direct.taken
    refused = app.submit(functions.square, 2)
    assert app._direct.taken == taken + 1
    with pytest.raises(LimitError, match="no room"):
        refused.result(WAIT_S)
    assert refused.state == "lost"
    app.flush()


def test_an_interrupted_wait_goes_on_elsewhere(
    app: penstock.TaskApp, worker: TinyWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up(app)
    future = app.submit(functions.square, 4)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(app._direct, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            future.result(WAIT_S)
    assert future.result(WAIT_S) == 16


def test_cancelling_in_a_turn(
    app: penstock.TaskApp, worker: TinyWorker, gate: threading.Event
) -> None:
    warm_up(app)
    gate.clear()
    future = app.submit(functions.square, 4)
    assert app._direct._turn is not None
    assert not future.cancel()
    gate.set()
    with pytest.raises(TaskCancelledError):
        future.result(WAIT_S)


def test_closing_in_a_turn(
    fabric: penstock.Fabric, app: penstock.TaskApp, worker: TinyWorker, gate: threading.Event
) -> None:
    warm_up(app)
    gate.clear()
    future = app.submit(functions.square, 4)
    app.close()
    with pytest.raises(ClosedError):
        future.result(WAIT_S)
    gate.set()
    until(lambda: worker.ran and not fabric.queue("tasks.default").stats()["messages"])


def test_the_node_dies_in_a_turn(
    node: NodeProcess, app: penstock.TaskApp, beside: penstock.Fabric
) -> None:
    dies = threading.Event()

    def die(call: TaskCall) -> None:
        if dies.is_set():
            dies.clear()
            node.end(signal.SIGKILL)
            node.start()

    with TinyWorker(beside, before=die):
        warm_up(app)
        dies.set()
        assert app.submit(functions.square, 4).result(WAIT_S) == 16
        assert not dies.is_set()
        assert app.submit(functions.square, 5).result(WAIT_S) == 25


def test_there_are_no_turns_where_others_would_be_in_the_way(
    fabric: penstock.Fabric, app: penstock.TaskApp, worker: TinyWorker
) -> None:
    """Another thread waits on the connection; or the engine is in this very process."""
    empty = fabric.queue("empty")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        popping = pool.submit(empty.pop, timeout=WAIT_S)
        until(lambda: not fabric._connection.idle)
        for each in range(3 * direct.ALONE):
            assert app.submit(functions.square, each).result(WAIT_S) == each * each
        assert not app._direct.taken
        empty.push(b"it may end")
        assert popping.result() is not None
    with memory_fabric(Clock()) as own:
        inside = own.tasks("inside")
        with TinyWorker(own, "inside"):
            for each in range(3 * direct.ALONE):
                assert inside.submit(functions.square, each).result(WAIT_S) == each * each
        assert not inside._direct.taken


def test_a_timeout_that_is_none_of_them_leaves_the_turn_alone(
    app: penstock.TaskApp, worker: TinyWorker
) -> None:
    warm_up(app)
    future, wrong = app.submit(functions.square, 4), cast(float, "5")
    with pytest.raises(TypeError):
        future.result(wrong)
    assert future.result(WAIT_S) == 16
    app.flush()


@pytest.mark.parametrize("where", ["_tell", "_end", "_hand_over", "_clear"])
def test_a_signal_at_any_point_of_a_turn_leaves_nothing_behind(
    app: penstock.TaskApp, worker: TinyWorker, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    warm_up(app)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    future = app.submit(functions.square, 4)
    with monkeypatch.context() as patch:
        patch.setattr(app._direct, where, interrupted)
        if where == "_hand_over":
            patch.setattr(direct, "PATIENCE_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            future.result(WAIT_S)
    assert future.result(WAIT_S) == 16
    app.flush()
    until(lambda: app._direct._turn is None)
    assert app.submit(functions.square, 5).result(WAIT_S) == 25


def test_a_program_that_ends_in_a_turn_has_submitted(
    node: NodeProcess, fabric: penstock.Fabric, app: penstock.TaskApp, worker: TinyWorker
) -> None:
    """And says nothing else of it: its outcome is that of the worker."""
    ended = subprocess.run(
        [sys.executable, "-c", _ENDING, node.url], capture_output=True, text=True, timeout=WAIT_S
    )
    assert ended.returncode == 0, ended.stderr
    task = bytes.fromhex(ended.stdout.strip())
    assert app.future(task).result(WAIT_S) == 36
    assert not ended.stderr


_ENDING = """
import sys
import penstock
from penstock.tasks import direct
from tests.tasks import functions

app = penstock.connect(sys.argv[1]).tasks("default")
while not app._direct.taken:
    app.submit(functions.square, 2).result(60)
print(app.submit(functions.square, 6).id.hex())
"""
