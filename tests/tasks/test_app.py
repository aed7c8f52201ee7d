"""Submitting and waiting in programs that block, with the smallest worker there can be."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from itertools import count

import pytest
from tests.tasks import functions
from tests.tasks.shapes import Pickled, Point
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import (
    ClosedError,
    ConflictError,
    ExistsError,
    InvalidError,
    NotFoundError,
    TooLargeError,
)
from penstock.tasks.envelope import TaskCall, read_call
from penstock.tasks.errors import (
    SerialisationError,
    TaskCancelledError,
    TaskFailedError,
    TaskSkippedError,
)
from penstock.tasks.names import streams_of
from penstock.tasks.outbox import Shipment

WAIT_S = 60.0
KEY = b"sixteen bytes or more"


def waiting_calls(fabric: penstock.Fabric, task_set: str = "default") -> list[TaskCall]:
    queue = fabric.queue(streams_of(task_set).queue, create=False)
    return [read_call(message.value) for message in queue.peek(1000)]


def test_a_result_comes_back(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric):
        future = app.submit(functions.square, 7)
        assert future.result(WAIT_S) == 49
        assert (future.done(), future.state, future.exception()) == (True, "done", None)
        assert future.outcome is not None
        assert (future.outcome.worker, future.outcome.attempt) == ("tiny", 1)
        assert future.function == "tests.tasks.functions:square"
        assert app.submit(functions.later, 1).result(WAIT_S) == 2


def test_arguments_of_all_kinds_arrive(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric):
        got = app.submit(functions.echo, (1, {2}), Point(3, None), key=b"x").result(WAIT_S)
        assert got == [[(1, {2}), Point(3, None)], {"key": b"x"}]


def test_what_a_task_raises_is_told(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    with TinyWorker(fabric):
        future = app.submit(functions.fail, "no such luck")
        with pytest.raises(TaskFailedError, match="no such luck") as caught:
            future.result(WAIT_S)
        assert caught.value.remote_type == "ValueError"
        assert "in fail" in caught.value.remote_traceback
        assert future.state == "failed"
        unknown = app.submit(len, "x")
        assert unknown.result(WAIT_S) == 1, "the tiny worker allows all that is loaded"


def test_what_cannot_be_sent_is_told_at_once(app: penstock.TaskApp) -> None:
    with pytest.raises(SerialisationError, match=r"arguments\[0\]\['x'\]"):
        app.submit(functions.echo, {"x": object()})
    with pytest.raises(TooLargeError, match=r"the arguments of .*the limit is 67,"):
        app.submit(functions.echo, bytes(64 << 20))
    with pytest.raises(InvalidError, match="lambda"):
        app.submit(lambda: None)
    with pytest.raises(InvalidError, match="priority"):
        app.submit(functions.square, 1, priority=99)


def test_pickles_with_a_key_on_both_sides(fabric: penstock.Fabric) -> None:
    app = fabric.tasks("signed", pickle_key=KEY)
    with TinyWorker(fabric, "signed", pickle_key=KEY):
        (got,), _ = app.submit(functions.echo, Pickled(3)).result(WAIT_S)
        assert got == Pickled(3)
    with TinyWorker(fabric, "signed"), pytest.raises(TaskFailedError, match="turned off"):
        app.submit(functions.echo, Pickled(3)).result(WAIT_S)


def test_terms_travel_with_the_call(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    app.submit(functions.careful, 1)
    app.submit(functions.careful, 2, retries=0, timeout=1.5, keep=0)
    app.post(functions.square, 3)
    app.flush()
    calls = {call.arguments: call for call in waiting_calls(fabric)}
    declared, said, posted = (calls[b"\x92\x91" + bytes([each]) + b"\x80"] for each in (1, 2, 3))
    assert (declared.retries, declared.backoff_ms, declared.timeout_ms) == (3, 500, 30_000)
    assert (declared.keep_ms, declared.reply >= 0) == (60_000, True)
    assert (said.retries, said.timeout_ms, said.keep_ms) == (0, 1500, 0)
    assert (posted.keep_ms, posted.reply) == (3_600_000, -1)


def test_a_name_of_another_functions_task_is_told(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric) as worker:
        assert app.submit(functions.square, 3, task_id="nightly").result(WAIT_S) == 9
        other = app.submit(functions.total, [1], task_id="nightly")
        with pytest.raises(ConflictError, match=r"called .*:square, not .*:total"):
            other.result(WAIT_S)
        assert len(worker.ran) == 1


def test_priorities_and_delays_are_the_queues(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    app.submit(functions.square, 1, delay=3600)
    app.submit(functions.square, 2, priority=7)
    app.flush()
    figures = fabric.queue(streams_of("default").queue, create=False).stats()
    assert (figures["delayed"], figures["ready"]) == (1, 1)


def test_submissions_made_while_others_are_sent_travel_together(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    taken: list[int] = []
    take = app._link.outbox.take

    def counting():
        shipment = take()
        if shipment is not None:
            taken.append(len(shipment.tasks))
        return shipment

    app._link.outbox.take = counting  # type: ignore[method-assign]
    held = threading.Event()
    app._portal.soon(held.wait)  # the sender is busy
    futures = [app.submit(functions.square, each) for each in range(100)]
    held.set()
    app.flush()
    assert sum(taken) == 100
    assert len(taken) <= 2
    with TinyWorker(fabric):
        assert app.gather(futures, WAIT_S) == [each * each for each in range(100)]


def test_submit_blocks_when_too_much_is_unsent(app: penstock.TaskApp) -> None:
    outbox = app._link.outbox
    outbox._most_tasks = 3
    held, submitted = threading.Event(), threading.Semaphore(0)
    app._portal.soon(held.wait)

    def submit() -> None:
        for each in range(5):
            app.submit(functions.square, each)
            submitted.release()

    thread = threading.Thread(target=submit)
    thread.start()
    for _ in range(3):
        assert submitted.acquire(timeout=WAIT_S)
    assert outbox.full
    assert not submitted.acquire(blocking=False)
    held.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_the_same_name_is_the_same_task(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    other = fabric.tasks("default")
    with TinyWorker(fabric) as worker:
        first = app.submit(functions.square, 3, task_id="nightly")
        assert first.result(WAIT_S) == 9
        again = other.submit(functions.square, 4, task_id="nightly")
        assert again.result(WAIT_S) == 9, "the outcome of the first submission"
        assert other.future("nightly").result(WAIT_S) == 9
        assert other.future(first.id).result(WAIT_S) == 9
        twice = [app.submit(functions.square, 5, task_id="twice") for _ in range(2)]
        assert [*app.gather(twice, WAIT_S), app.future("twice").result(WAIT_S)] == [25] * 3
        assert len(worker.ran) == 2


def test_a_future_of_another_clients_task_waits_for_its_outcome(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    reference = app.post(functions.square, 5)
    future = fabric.tasks("default").future(reference)
    app.flush()
    assert not future.done()
    with TinyWorker(fabric):
        assert future.result(WAIT_S) == 25
    with pytest.raises(InvalidError, match="neither a task"):
        app.future(b"short")


def test_what_was_not_sent_is_cancelled_for_certain(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    held = threading.Event()
    app._portal.soon(held.wait)
    future = app.submit(functions.square, 1)
    kept = app.submit(functions.square, 2)
    assert future.cancel()
    assert (future.cancelled(), future.state) == (True, "cancelled")
    assert not future.cancel(), "it is over"
    held.set()
    with pytest.raises(TaskCancelledError):
        future.result(WAIT_S)
    with TinyWorker(fabric) as worker:
        assert kept.result(WAIT_S) == 4
        assert len(worker.ran) == 1


def test_workers_are_told_to_drop_what_was_sent(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    future = app.submit(functions.square, 1)
    app.flush()
    assert not future.cancel(), "only the future itself will say"
    with TinyWorker(fabric), pytest.raises(TaskCancelledError):
        future.result(WAIT_S)
    assert future.cancelled()


def test_what_the_queue_keeps_back_is_cancelled_at_once(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    """A delayed task, and one that is held for it; children go by their policy."""
    later = app.submit(functions.square, 1, delay=3600)
    held = app.submit(functions.square, later)
    skipped = app.submit(functions.square, held, on_failure="skip")
    run = app.submit(functions.combine, 1, [held], on_failure="run")
    app.flush()  # what is not sent yet is taken back, and needs no worker
    with TinyWorker(fabric):
        assert not held.cancel()
        with pytest.raises(TaskCancelledError):
            held.result(WAIT_S)
        with pytest.raises(TaskSkippedError):
            skipped.result(WAIT_S)
        assert run.result(WAIT_S) == 1
        assert not later.done(), "it was not asked for"
        app.cancel(later.id)
        with pytest.raises(TaskCancelledError):
            later.result(WAIT_S)
    assert (later.state, held.state, skipped.state) == ("cancelled", "cancelled", "skipped")


def test_what_is_on_its_way_to_the_queue_is_cancelled_when_it_is_there(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    link, go = app._link, asyncio.Event()
    push = link._push

    async def push_later(shipment: Shipment) -> None:
        await go.wait()
        await push(shipment)

    link._push = push_later  # type: ignore[method-assign]
    future = app.submit(functions.square, 1, delay=3600)
    app._portal.call(asyncio.sleep(0))  # it is taken out of the outbox
    assert not future.cancel()
    app._portal.soon(go.set)
    with TinyWorker(fabric), pytest.raises(TaskCancelledError):
        future.result(WAIT_S)


def test_delayed_tasks_are_sent_together(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    futures = [app.submit(functions.square, each, delay=0.01) for each in range(20)]
    with TinyWorker(fabric):
        assert app.gather(futures, WAIT_S) == [each * each for each in range(20)]


def test_futures_are_those_of_the_standard_library(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric):
        futures = [app.submit(functions.square, each) for each in range(20)]
        called: list[int] = []
        futures[0].add_done_callback(lambda future: called.append(future.result()))
        done, others = concurrent.futures.wait(futures, WAIT_S)
        assert (len(done), len(others)) == (20, 0)
        assert called == [0]
        assert app.gather(futures, WAIT_S) == [each * each for each in range(20)]
        assert {future.result() for future in app.as_completed(futures, WAIT_S)} == {
            each * each for each in range(20)
        }
        assert app.wait(futures, WAIT_S)[1] == set()


def test_waiting_ends_in_time_and_the_task_goes_on(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    future = app.submit(functions.square, 3)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        app.gather([future], 0.01)
    with TinyWorker(fabric):
        assert future.result(WAIT_S) == 9


def test_callbacks_may_submit_and_cancel(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    followed: concurrent.futures.Future[object] = concurrent.futures.Future()

    def follow(future: concurrent.futures.Future[int]) -> None:
        try:
            unwanted = app.submit(functions.square, 0, delay=3600)
            unwanted.cancel()
            followed.set_result(app.submit(functions.square, future.result()))
        except BaseException as error:
            followed.set_exception(error)

    with TinyWorker(fabric):
        app.submit(functions.square, 3).add_done_callback(follow)
        assert followed.result(WAIT_S).result(WAIT_S) == 81  # type: ignore[attr-defined]


def test_map_gives_results_in_order_and_as_they_come(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric):
        results = app.map(functions.square, range(2500), batch=100)
        assert list(results.results(WAIT_S)) == [each * each for each in range(2500)]
        assert (results.submitted, results.done, results.failed) == (2500, 2500, 0)
        assert list(app.map(functions.echo, [1, 2], "ab")) == [[[1, "a"], {}], [[2, "b"], {}]]
        pairs = dict(app.map(functions.square, range(300), batch=7).as_completed(WAIT_S))
        assert pairs == {each: each * each for each in range(300)}


def test_a_map_over_nothing_ends_at_once(app: penstock.TaskApp) -> None:
    assert list(app.map(functions.square, [])) == []
    nothing = app.map(functions.square, iter(()))
    assert list(nothing.as_completed()) == []
    assert (nothing.submitted, nothing.done, nothing.failed) == (0, 0, 0)


def test_map_takes_endless_iterables(fabric: penstock.Fabric, app: penstock.TaskApp) -> None:
    items = count()
    with TinyWorker(fabric):
        for each, result in zip(range(1000), app.map(functions.square, items), strict=False):
            assert result == each * each
    assert next(items) <= 12_001, "no more than what may be in flight was taken"


def test_map_raises_in_place_or_returns_what_was_raised(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    with TinyWorker(fabric):
        results = app.map(functions.fail, ["a", "b"]).results(WAIT_S)
        with pytest.raises(TaskFailedError, match="a"):
            next(results)
        mixed = app.map(functions.square, [1, "x", object()])
        one, failed, unsent = mixed.results(WAIT_S, return_exceptions=True)
        assert (one, type(failed), type(unsent)) == (1, TaskFailedError, SerialisationError)
        assert mixed.failed == 2
    with pytest.raises(InvalidError, match="at least one iterable"):
        app.map(functions.square)


def test_map_waits_no_longer_than_it_may(app: penstock.TaskApp) -> None:
    with pytest.raises(TimeoutError, match="2 tasks have not ended"):
        list(app.map(functions.square, [1, 2]).results(0.01))


def test_what_cannot_be_stored_fails_its_futures_with_the_reason(
    fabric: penstock.Fabric, app: penstock.TaskApp
) -> None:
    fabric.delete_queue(streams_of("default").queue)
    future = app.submit(functions.square, 1)
    with pytest.raises(NotFoundError) as caught:
        future.result(WAIT_S)
    assert "could not be submitted" in caught.value.__notes__[0]
    assert future.state == "lost"
    app.post(functions.square, 1)
    with pytest.raises(NotFoundError):
        app.flush()
    app.flush()


def test_closing_sends_what_is_left_and_ends_the_futures(fabric: penstock.Fabric) -> None:
    with fabric.tasks("default") as app:
        future = app.submit(functions.square, 6)
    with pytest.raises(ClosedError, match="goes on"):
        future.result(WAIT_S)
    for call in (lambda: app.submit(functions.square, 1), app.flush, lambda: app.future("x")):
        with pytest.raises(ClosedError):
            call()
    app.close()
    other = fabric.tasks("default")
    with TinyWorker(fabric):
        assert other.future(future.id).result(WAIT_S) == 36


def test_streams_with_another_durability_are_refused(fabric: penstock.Fabric) -> None:
    fabric.tasks("fast", durability="written").close()
    fabric.tasks("fast").close()
    with pytest.raises(ExistsError):
        fabric.tasks("fast", durability="synced")

