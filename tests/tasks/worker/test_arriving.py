"""Tasks that were cancelled while the queue kept them back come to a worker before their time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.tasks import functions
from tests.tasks.worker.in_thread import InThread
from tests.tasks.worker.making import job

import penstock
from penstock.client.aio import AsyncFabric
from penstock.tasks.envelope import Status, TaskOutcome, encode
from penstock.tasks.errors import TaskCancelledError
from penstock.tasks.names import cancel_key
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.arriving import Arrivals
from penstock.tasks.worker.jobs import Job

PARENT = bytes(16)
WAIT_S = 60.0


class Table:
    """Entries, and what was asked for."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []

    async def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return self.entries.get(key)


@pytest.fixture
def results() -> Table:
    return Table()


@pytest.fixture
def control() -> Table:
    return Table()


def prepared(each: Job, results: Table, control: Table) -> Job:
    streams = cast(OpenStreams, SimpleNamespace(results=results, control=control))
    arrivals = Arrivals(cast(AsyncFabric, SimpleNamespace(_routes=None)), streams)
    asyncio.run(arrivals.prepare([each]))
    arrivals.mark_cancelled([each])
    return each


@pytest.mark.parametrize("terms", [{"delay_ms": 1000}, {"after": [PARENT]}])
def test_who_has_not_heard_of_it_yet_asks(
    terms: dict[str, Any], results: Table, control: Table
) -> None:
    wanted, unwanted = job(**terms), job(**terms)
    control.entries[cancel_key(unwanted.call.task)] = b""
    assert not prepared(wanted, results, control).cancelled
    assert prepared(unwanted, results, control).cancelled


@pytest.mark.parametrize("status", Status)
def test_nobody_is_asked_about_tasks_whose_parents_succeeded(
    status: Status, results: Table, control: Table
) -> None:
    results.entries[PARENT] = encode(TaskOutcome(status, b""))
    prepared(job(after=[PARENT]), results, control)
    assert bool(control.asked) == (status is not Status.DONE)


def test_a_worker_ends_what_was_cancelled_before_its_time(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with InThread(fabric, functions.__name__, concurrency=1):
        for _ in range(5):  # it may hear of the task before it hears of its end, or after
            later = app.submit(functions.square, 1, delay=3600)
            held = app.submit(functions.square, later)
            app.flush()
            for future in (held, later):
                future.cancel()
                with pytest.raises(TaskCancelledError):
                    future.result(WAIT_S)
