"""A worker's log tells of attempts that failed, and stays readable if all of them do."""

from __future__ import annotations

import logging

import pytest
from tests.tasks import functions
from tests.tasks.worker.in_thread import InThread
from tests.tasks.worker.making import job

import penstock
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode
from penstock.tasks.errors import TaskFailedError
from penstock.tasks.names import shown
from penstock.tasks.worker.failures import MAX_LINE, MOST_TOLD, PERIOD_US, FailureLog
from penstock.tasks.worker.jobs import Cause, Finish, Retry


class Clock:
    now_us = PERIOD_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> FailureLog:
    return FailureLog(clock)


def failed(text: str) -> bytes:
    failure = Failure("ValueError", text, "a traceback")
    return encode(TaskOutcome(Status.FAILED, encode(failure)))


def test_every_failure_is_a_line(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    each = job("app:f", attempt=2)
    log.add(Retry(each, 100, failed("no luck\nat all")))
    log.add(Finish(each, Status.FAILED, failed("")))
    log.add(Finish(each, Status.FAILED, None, Cause.TIMEOUT))
    log.add(Finish(each, Status.FAILED, b"?"))
    log.add(Retry(each, 0, failed("x" * 10_000)))
    about = f"task {shown(each.call.task)} (app:f) failed, attempt 2"
    assert caplog.messages[:4] == [
        f"{about}, to be tried again: ValueError: no luck",
        f"{about}: ValueError",
        f"{about}: it took too long, and was ended",
        f"{about}: (what it says cannot be read)",
    ]
    assert len(caplog.messages[4]) < MAX_LINE + 200
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_did_not_fail_is_not_told(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.add(Finish(job(), Status.DONE, b""))
    log.add(Finish(job(), Status.CANCELLED, None, Cause.CANCELLED))
    log.add(Retry(job(), 0))  # it was ended with its worker
    log.close()
    assert not caplog.records


def test_many_failures_are_counted(
    log: FailureLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MOST_TOLD + 5):
        log.add(Finish(job(), Status.FAILED, failed("no")))
    assert len(caplog.records) == MOST_TOLD
    clock.now_us += PERIOD_US
    log.add(Finish(job(), Status.FAILED, failed("again")))
    assert caplog.messages[MOST_TOLD:][0] == "5 more attempts failed"
    assert "again" in caplog.messages[-1]
    for _ in range(MOST_TOLD):
        log.add(Finish(job(), Status.FAILED, failed("no")))
    log.close()
    assert caplog.messages[-1] == "1 more attempts failed"


def test_a_worker_tells(
    fabric: penstock.Fabric, app: penstock.TaskApp, caplog: pytest.LogCaptureFixture
) -> None:
    with InThread(fabric, functions.__name__, concurrency=1):
        future = app.submit(functions.fail, "no luck")
        with pytest.raises(TaskFailedError):
            future.result(60)
    (told,) = [each for each in caplog.messages if "failed" in each]
    assert told == f"task {shown(future.id)} ({functions.fail.name}) failed, attempt 1: " + (
        "ValueError: no luck"
    )
