"""Submitting and waiting on an event loop: the same names, the same meaning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock import aio
from penstock.errors import ClosedError, InvalidError
from penstock.tasks.errors import SerialisationError, TaskCancelledError, TaskFailedError

WAIT_S = 60.0
SOON_S = 10.0
Script = Callable[[aio.AsyncTaskApp], Coroutine[Any, Any, None]]


def run(fabric: penstock.Fabric, script: Script, worker: bool = True) -> None:
    """Runs a script with an app on the twin of a blocking fabric, whose worker it uses."""

    async def main() -> None:
        async with opened(fabric) as app:
            if not worker:
                return await script(app)
            with TinyWorker(fabric):
                await script(app)

    asyncio.run(main())


@asynccontextmanager
async def opened(fabric: penstock.Fabric) -> AsyncIterator[aio.AsyncTaskApp]:
    async with fabric._asynchronous() as twin:
        yield await twin.tasks("default")


def test_a_result_comes_back(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        future = await app.submit(functions.square, 7)
        assert await future == 49
        assert await future.result(WAIT_S) == 49
        assert (future.done(), future.state, await future.exception()) == (True, "done", None)

    run(fabric, script)


def test_errors_are_raised_and_returned(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        future = await app.submit(functions.fail, "no")
        with pytest.raises(TaskFailedError, match="no"):
            await future
        assert isinstance(await future.exception(), TaskFailedError)
        with pytest.raises(SerialisationError):
            await app.submit(functions.echo, object())

    run(fabric, script)


def test_submissions_of_one_turn_of_the_loop_travel_together(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        taken: list[int] = []
        take = app._link.outbox.take

        def counting():
            shipment = take()
            taken.append(len(shipment.tasks) if shipment else 0)
            return shipment

        app._link.outbox.take = counting  # type: ignore[method-assign]
        futures = [await app.submit(functions.square, each) for each in range(100)]
        assert await app.gather(futures, WAIT_S) == [each * each for each in range(100)]
        assert taken[:2] == [100, 0]

    run(fabric, script)


def test_submit_waits_when_too_much_is_unsent(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        app._link.outbox._most_tasks = 2
        futures = [await app.submit(functions.square, each) for each in range(9)]
        assert not app._link.outbox.full
        assert await app.gather(futures, WAIT_S) == [each * each for each in range(9)]

    run(fabric, script)


def test_map_on_an_event_loop(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        results = app.map(functions.square, range(1200), batch=100)
        assert [each async for each in results] == [each * each for each in range(1200)]
        assert (results.submitted, results.done, results.failed) == (1200, 1200, 0)
        pairs = [each async for each in app.map(functions.square, range(50)).as_completed(WAIT_S)]
        assert dict(pairs) == {each: each * each for each in range(50)}
        failed = app.map(functions.fail, "ab").results(WAIT_S, return_exceptions=True)
        assert [type(each) async for each in failed] == [TaskFailedError] * 2

    run(fabric, script)


def test_a_map_over_nothing_ends_at_once(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        async with asyncio.timeout(SOON_S):
            assert [each async for each in app.map(functions.square, [])] == []
            nothing = app.map(functions.square, iter(()))
            assert [each async for each in nothing.as_completed()] == []
        assert (nothing.submitted, nothing.done, nothing.failed) == (0, 0, 0)

    run(fabric, script, worker=False)


def test_whoever_stops_waiting_does_not_stop_the_task(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        future = await app.submit(functions.square, 3)
        with pytest.raises(TimeoutError):
            await future.result(0.01)
        waiting = asyncio.create_task(future.result())
        await asyncio.sleep(0)
        waiting.cancel()
        done, others = await app.wait([future], 0.01)
        assert (done, others) == (set(), {future})
        with pytest.raises(TimeoutError):
            await anext(app.as_completed([future], 0.01))
        with pytest.raises(TimeoutError):
            await anext(app.map(functions.square, [1]).results(0.01))
        assert not future.done()
        with TinyWorker(fabric):
            assert await future.result(WAIT_S) == 9

    run(fabric, script, worker=False)


def test_callbacks_and_completion(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        futures = [await app.submit(functions.square, each) for each in range(5)]
        called: list[str] = []
        futures[0].add_done_callback(lambda future: called.append(future.state))
        completed = [each async for each in app.as_completed(futures, WAIT_S)]
        assert set(completed) == set(futures)
        assert (await app.wait(futures, WAIT_S))[1] == set()
        assert called == ["done"]
        late = asyncio.Event()
        futures[0].add_done_callback(lambda _: late.set())
        await asyncio.wait_for(late.wait(), WAIT_S)

    run(fabric, script)


def test_cancelling(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        unsent = await app.submit(functions.square, 1)
        assert await unsent.cancel(), "the loop had no turn to send it"
        with pytest.raises(TaskCancelledError):
            await unsent
        assert unsent.cancelled()
        sent = await app.submit(functions.square, 2)
        await app.flush()
        assert not await sent.cancel()
        with TinyWorker(fabric), pytest.raises(TaskCancelledError):
            await sent.result(WAIT_S)

    run(fabric, script, worker=False)


def test_names_and_references(fabric: penstock.Fabric) -> None:
    async def script(app: aio.AsyncTaskApp) -> None:
        assert await (await app.submit(functions.square, 3, task_id="nightly")) == 9
        assert await app.future("nightly") == 9
        posted = await app.post(functions.square, 4)
        assert await app.future(posted).result(WAIT_S) == 16

    run(fabric, script)


def test_closing_ends_what_waits(fabric: penstock.Fabric) -> None:
    futures: list[aio.AsyncTaskFuture[Any]] = []

    async def script(app: aio.AsyncTaskApp) -> None:
        futures.append(await app.submit(functions.square, 3))
        async with app:
            pass
        with pytest.raises(ClosedError):
            await futures[0]
        with pytest.raises(ClosedError):
            await app.submit(functions.square, 3)

    run(fabric, script, worker=False)


def test_what_cannot_work_is_refused_at_once(fabric: penstock.Fabric) -> None:
    other = fabric.tasks("other")

    async def script(app: aio.AsyncTaskApp) -> None:
        with pytest.raises(InvalidError, match="'x'"):
            await app.submit(functions.square)
        with pytest.raises(InvalidError, match="too many"):
            app.map(functions.square, [1], [2])
        with pytest.raises(SerialisationError, match="default/other"):
            await app.submit(functions.square, other.post(functions.square, 1))

    run(fabric, script, worker=False)
