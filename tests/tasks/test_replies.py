"""Listening for outcomes: through outages, past gaps, and not for ever."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.conftest import NodeProcess
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import NotFoundError
from penstock.tasks.envelope import TaskCall
from penstock.tasks.names import REPLY_RETENTION_S, streams_of
from penstock.testing import FakeClock, memory_fabric

WAIT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data")
    process.start()
    yield process
    if process.process is not None:
        process.end()


def test_futures_outlive_the_node(node: NodeProcess) -> None:
    """It is killed while tasks wait, and again while they are worked on."""
    with node.connect(timeout=WAIT_S) as fabric:
        app = fabric.tasks("default", durability="written")
        first = [app.submit(functions.square, each) for each in range(100)]
        app.flush()
        node.end(signal.SIGKILL)
        node.start()
        half_done = threading.Semaphore(0)

        def count(call: TaskCall) -> None:
            half_done.release()

        with TinyWorker(fabric, before=count, most=5):
            for _ in range(50):
                assert half_done.acquire(timeout=WAIT_S)
            node.end(signal.SIGKILL)
            node.start()
            later = [app.submit(functions.square, each) for each in range(100, 200)]
            assert app.gather([*first, *later], WAIT_S) == [each * each for each in range(200)]


def test_outcomes_that_were_dropped_unread_are_looked_for_among_the_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    with memory_fabric(clock, timeout=WAIT_S) as fabric, caplog.at_level(logging.WARNING):
        app = fabric.tasks("default")
        held, stuck = threading.Event(), threading.Event()
        kept = app.submit(functions.square, 3, keep=10 * REPLY_RETENTION_S)
        app.flush()
        app._portal.soon(lambda: (stuck.set(), held.wait()))  # the client sleeps
        assert stuck.wait(WAIT_S)
        with TinyWorker(fabric):
            results = fabric.table(streams_of("default").results, create=False)
            with results.watch() as changes:
                if results.get(kept.id) is None:
                    next(changes)
        replies = fabric.topic(streams_of("default").replies, create=False)
        while any(end > start for start, end in replies.offsets()):
            clock.advance(REPLY_RETENTION_S)
        held.set()
        assert kept.result(WAIT_S) == 9
        assert "dropped" in caplog.text


def test_who_waits_is_told_when_no_outcome_can_come_any_more(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    future = app.submit(functions.square, 3)
    app.flush()
    fabric.delete_topic(streams_of("default").replies)
    with pytest.raises(NotFoundError):
        future.result(WAIT_S)
