"""Whoever waits for tasks that no worker could run is told so, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.tasks import functions
from tests.tasks.test_aio_app import opened

import penstock
from penstock.client.aio_streams import AsyncTable
from penstock.errors import UnavailableError
from penstock.tasks import silence
from penstock.tasks.outbox import Sink
from penstock.tasks.silence import Silence
from penstock.tasks.waiting import Waiting, cancelled_error

TASK = bytes(16)


class Future:
    reads_later = False

    def fail(self, task: bytes, error: Exception) -> None: ...


class Control:
    """A table with so many workers."""

    def __init__(self, workers: int = 0, error: Exception | None = None) -> None:
        self.workers = workers
        self.error = error
        self.asked = 0
        self.was_asked = asyncio.Event()

    async def items(self, prefix: bytes) -> Any:
        self.asked += 1
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        for each in range(self.workers):
            yield b"worker/%d" % each, b""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 0.01)
    monkeypatch.setattr(silence, "MAX_SILENT_S", 0.01)


@asynccontextmanager
async def listening(control: Control) -> Any:
    waiting = Waiting(bytes(8))
    waiting.add([TASK], cast(Sink, Future()))
    it = Silence(waiting, cast(AsyncTable, control), "nightly")
    task = asyncio.get_running_loop().create_task(it.listen())
    yield it, waiting
    async with asyncio.timeout(30):
        await task


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        async with listening(Control()) as (it, waiting):
            pass
        assert len(waiting) == 1, "the task is waited for on"
        assert not it.idle, "nothing is left to say"
        await it.listen()

    asyncio.run(script())
    assert caplog.messages == [
        'no worker serves task set "nightly"; start one with: penstock worker MODULE '
        "--tasks nightly"
    ]


@pytest.mark.parametrize("error", [None, UnavailableError("not now")])
def test_nothing_is_said_if_there_is_one_or_nobody_knows(
    caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    async def script() -> None:
        control = Control(1, error)
        async with listening(control) as (it, waiting):
            while control.asked < 3:
                control.was_asked.clear()
                await control.was_asked.wait()
            waiting.fail([TASK], cancelled_error(TASK))
        assert it.idle, "the next one who waits has it listen again"

    asyncio.run(script())
    assert not caplog.records


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[threading.Event]:
    """Set when something is."""
    event = threading.Event()

    def heard(record: Any) -> bool:
        event.set()
        return True

    caplog.handler.addFilter(heard)
    yield event
    caplog.handler.removeFilter(heard)


def test_programs_that_block_are_told(
    app: penstock.TaskApp, said: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    app.submit(functions.square, 1)
    assert said.wait(30)
    assert caplog.messages == [
        'no worker serves task set "default"; start one with: penstock worker MODULE'
    ]


def test_event_loops_are_told(
    fabric: penstock.Fabric, said: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def script() -> None:
        async with opened(fabric) as app:
            results = asyncio.ensure_future(anext(app.map(functions.square, [1]).results()))
            assert await asyncio.to_thread(said.wait, 30)
            results.cancel()

    asyncio.run(script())
    assert "no worker serves" in caplog.text


def test_a_kept_outcome_is_waited_for_as_well(
    app: penstock.TaskApp, said: threading.Event
) -> None:
    app.future("nobody has this name")
    assert said.wait(30)
