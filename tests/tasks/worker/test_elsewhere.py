"""Tasks of functions that a worker does not have: who gets them, how soon, and when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.tasks.envelope import Failure, Status, TaskCall, TaskOutcome, encode
from penstock.tasks.errors import UnknownFunctionError
from penstock.tasks.watching.reports import WorkerReport, pack_report
from penstock.tasks.worker import elsewhere as module
from penstock.tasks.worker.elsewhere import Elsewhere
from penstock.tasks.worker.jobs import Ended, Job


class Control:
    """The entries of workers, as a table gives them."""

    def __init__(self) -> None:
        self.reports: dict[bytes, bytes] = {}

    def say(self, worker: str, functions: list[str], allowed: list[str] | None = None) -> None:
        report = WorkerReport(worker, "process", 1, 1, 1, functions=functions)
        report.allowed = allowed or []
        self.reports[worker.encode()] = pack_report(report)

    async def items(self, prefix: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        for item in self.reports.items():
            yield item


class Scene:
    """A worker that has lived for a while, with packages that it allows."""

    def __init__(self, *allowed: str) -> None:
        self.now_us = 0
        self.control = Control()
        self.control.say("me", ["mine:f"], list(allowed))
        control: Any = self.control
        self.own = Elsewhere(
            control, lambda report: report.worker == "me", allowed, lambda: self.now_us
        )
        self.now_us = module.GRACE_US

    def ask(self) -> None:
        asyncio.run(self.own._ask())

    def instead(self, function: str, moved: bool = False) -> int | None:
        """How long the task is kept back; None: it fails."""
        job = Job(1, 1, 0, TaskCall(function, b"", b"t" * 16), b"", 1, 0, moved=moved)
        given = self.own.instead(job, failed(function, UnknownFunctionError("no such task")))
        return None if given is None else given.delay_ms


def failed(function: str, error: Exception) -> Ended:
    outcome = TaskOutcome(Status.FAILED, encode(Failure.of(error, "")), 1, "me", 1, 1, 1, function)
    return Ended(1, Status.FAILED, encode(outcome), 1)


def test_what_another_declares_is_left_to_it_for_longer_each_time() -> None:
    scene = Scene()
    scene.control.say("other", ["theirs:f"])
    assert scene.instead("theirs:f") == module.ASK_DELAY_MS, "nobody was asked yet"
    scene.ask()
    delays = [scene.instead("theirs:f") for _ in range(20)]
    assert delays[:5] == [500, 1000, 2000, 4000, 8000]
    assert set(delays[5:]) == {module.MAX_DELAY_MS}
    assert scene.instead("nobodys:f") is None
    assert scene.instead("theirs:f", moved=True) is None, "it would come here again"


def test_a_worker_that_is_gone_may_come_back() -> None:
    scene = Scene()
    scene.control.say("other", ["theirs:f"])
    scene.ask()
    del scene.control.reports[b"other"]
    scene.now_us += module.GONE_US // 2
    scene.ask()
    assert scene.instead("theirs:f") == module.LEAVE_DELAY_MS
    scene.now_us += module.GONE_US
    scene.ask()
    assert scene.instead("theirs:f") is None


@pytest.mark.parametrize("here", [True, False])
def test_a_package_that_others_allow_is_a_doubt(here: bool) -> None:
    """Two workers that allow it, and both lack the function, must not pass it on for ever."""
    scene = Scene("package") if here else Scene()
    scene.control.say("other", [], ["package"])
    scene.ask()
    left = 0
    while scene.instead("package.module:f") is not None:
        left += 1
    assert left == (0 if here else module.DOUBTS)


def test_just_after_the_start_others_may_start_too() -> None:
    scene = Scene()
    scene.now_us = 0
    scene.ask()
    assert scene.instead("theirs:f") == module.LEAVE_DELAY_MS
    scene.now_us = module.GRACE_US
    scene.ask()
    assert scene.instead("theirs:f") is None


def test_other_failures_are_the_tasks_own() -> None:
    scene = Scene()
    job = Job(1, 1, 0, TaskCall("theirs:f", b"", b"t" * 16), b"", 1, 0)
    assert scene.own.instead(job, failed("theirs:f", ValueError("no luck"))) is None
    assert scene.own.instead(job, Ended(1, Status.FAILED, b"?", 1)) is None
