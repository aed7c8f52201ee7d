"""Who is told of which outcome, and what an outcome other than a result is turned into."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import PenstockError, ProtocolError, UnavailableError
from penstock.tasks.blobs.blob import new_blob
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode
from penstock.tasks.errors import (
    TaskCancelledError,
    TaskFailedError,
    TaskSkippedError,
    TaskTimeoutError,
)
from penstock.tasks.names import named_task_id, task_id_of
from penstock.tasks.waiting import Waiting, error_of
from penstock.wire.buffers import Buffer

ME, OTHER = b"m" * 8, b"o" * 8
DONE = encode(TaskOutcome(Status.DONE, b"\x01"))


class Log:
    """A sink that writes down what it is told."""

    reads_later = False

    def __init__(self) -> None:
        self.ended: list[bytes] = []
        self.large: list[Buffer] = []
        self.failed: list[tuple[bytes, type]] = []
        self.batches = 0

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        self.ended.append(task)
        self.large += large
        return True

    def settled(self) -> None:
        self.batches += 1

    def fail(self, task: bytes, error: PenstockError) -> None:
        self.failed.append((task, type(error)))


def ids(*numbers: int, client: bytes = ME) -> list[bytes]:
    return [task_id_of(client, number) for number in numbers]


def test_each_task_is_told_of_once() -> None:
    waiting, log = Waiting(ME), Log()
    waiting.add(ids(1, 2, 3), log)
    assert waiting.take_in(ids(1, 2), [DONE, DONE]) == 2
    assert waiting.take_in(ids(2, 3, 4), [DONE, DONE, DONE]) == 1
    assert log.ended == ids(1, 2, 3)
    assert log.batches == 2, "once for each batch, however many outcomes it has"
    assert len(waiting) == 0


def test_batches_of_other_clients_are_left_unread() -> None:
    waiting, log = Waiting(ME), Log()
    waiting.add(ids(1), log)
    assert waiting.take_in(ids(1, 2, client=OTHER), [b"unread", b"unread"]) == 0
    assert waiting.take_in([None], [b"unread"]) == 0
    assert waiting.take_in([], []) == 0
    assert log.ended == []


def test_a_named_task_is_told_of_though_its_id_is_nobodys() -> None:
    waiting, log = Waiting(ME), Log()
    named = named_task_id("nightly")
    waiting.add([named], log)
    assert waiting.take_in([named], [DONE]) == 1
    assert log.ended == [named]


def test_unreadable_outcomes_fail_their_task_only() -> None:
    waiting, log = Waiting(ME), Log()
    waiting.add(ids(1, 2), log)
    assert waiting.take_in(ids(1, 2), [b"\xff", DONE]) == 2
    assert log.failed == [(ids(1)[0], ProtocolError)]
    assert log.ended == ids(2)


def test_failing_removing_and_giving_up() -> None:
    waiting, log = Waiting(ME), Log()
    waiting.add(ids(1, 2, 3, 4), log)
    waiting.fail([*ids(1), b"unknown"], UnavailableError("x"))
    waiting.leave(ids(2)[0], log)
    waiting.leave(ids(2)[0], log)
    waiting.fail_all(UnavailableError("closed"))
    assert [task for task, _ in log.failed] == ids(1, 3, 4)
    assert len(waiting) == 0


def test_several_may_wait_for_one_task() -> None:
    waiting, first, second, third = Waiting(ME), Log(), Log(), Log()
    for log in (first, second, third):
        waiting.join(ids(1)[0], log)
    waiting.leave(ids(1)[0], second)
    assert waiting.take_in(ids(1), [DONE]) == 1
    assert (first.ended, second.ended, third.ended) == (ids(1), [], ids(1))
    assert first.batches == 1
    waiting.join(ids(2)[0], first)
    waiting.join(ids(2)[0], second)
    waiting.fail(ids(2), UnavailableError("x"))
    assert [len(log.failed) for log in (first, second)] == [1, 1]


def test_counts_are_of_what_was_waited_for() -> None:
    waiting, log = Waiting(ME), Log()
    waiting.add(ids(1, 2, 3, 4), log)
    failed = encode(TaskOutcome(Status.FAILED, b""))
    waiting.take_in(ids(1, 2), [DONE, failed])
    waiting.fail(ids(3), UnavailableError("x"))
    assert waiting.counts == (4, 3, 2)


TIMEOUT = f"{TaskTimeoutError.__module__}.{TaskTimeoutError.__qualname__}"


@pytest.mark.parametrize(
    ("outcome", "kind", "text"),
    [
        (TaskOutcome(Status.CANCELLED, b""), TaskCancelledError, "cancelled"),
        (TaskOutcome(Status.SKIPPED, b""), TaskSkippedError, "depends on"),
        (
            TaskOutcome(Status.FAILED, encode(Failure("KeyError", "x")), 3, "w7", function="m:f"),
            TaskFailedError,
            r"\(m:f\) failed 3 times, the last time on w7: KeyError: x",
        ),
        (TaskOutcome(Status.FAILED, encode(Failure(TIMEOUT, "30 s"))), TaskTimeoutError, "30 s"),
    ],
)
def test_outcomes_without_a_result_say_what_happened(
    outcome: TaskOutcome, kind: type[PenstockError], text: str
) -> None:
    with pytest.raises(kind, match=text):
        raise error_of(ids(1)[0], outcome) or AssertionError


def test_a_failure_carries_what_the_worker_saw() -> None:
    failure = encode(Failure("KeyError", "x", "Traceback: line 3"))
    error = error_of(ids(1)[0], TaskOutcome(Status.FAILED, failure))
    assert isinstance(error, TaskFailedError)
    assert (error.remote_type, error.remote_text) == ("KeyError", "x")
    assert "line 3" in error.remote_traceback
    assert "line 3" in error.__notes__[0]


def test_unknown_statuses_are_errors_of_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="unknown status 9"):
        error_of(ids(1)[0], TaskOutcome(9, b""))


def test_large_values_are_fetched_once_before_anybody_is_told() -> None:
    fetched: list[bytes] = []
    waiting = Waiting(ME, lambda task, _: fetched.append(task))
    log, lazy = Log(), Log()
    lazy.reads_later = True
    waiting.add(ids(1), log)
    waiting.add(ids(2), lazy)
    outcome = TaskOutcome(Status.DONE, b"", blobs=[new_blob(ids(1)[0], 9, 0.0, False, "x")])
    for _ in range(2):
        waiting.take_in(ids(1, 2), [encode(outcome)] * 2)
    assert (fetched, log.ended, lazy.ended) == (ids(1), [], ids(2))
    assert waiting.counts == (2, 1, 0)
    waiting.settle(ids(1)[0], outcome, [b"value"])
    waiting.settle(ids(1)[0], outcome, [b"value"])
    assert (log.ended, log.large, log.batches) == (ids(1), [b"value"], 1)
    assert waiting.counts == (2, 2, 0)


def test_whoever_waits_for_room_is_told_when_there_is_some() -> None:
    waiting, told = Waiting(ME, most=2), list[str]()
    waiting.when_room(lambda: told.append("at once"))
    waiting.add(ids(1, 2, 3), Log())
    assert waiting.full

    def given_up() -> None:
        told.append("given up")

    waiting.when_room(given_up)
    waiting.forget_room(given_up)
    waiting.forget_room(given_up)
    waiting.when_room(lambda: told.append("later"))
    waiting.take_in(ids(1), [DONE])
    assert told == ["at once"], "it is still full"
    waiting.fail(ids(2), UnavailableError())
    assert told == ["at once", "later"]


def test_threads_that_wait_for_one_task_are_all_told() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(200):
            waiting, task = Waiting(ME), task_id_of(ME, number)
            sinks = [Log() for _ in range(8)]
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda sink: waiting.join(task, sink), sinks))  # noqa: B023
            waiting.take_in([task], [DONE])
            assert [len(sink.ended) for sink in sinks] == [1] * 8
    finally:
        sys.setswitchinterval(before)
