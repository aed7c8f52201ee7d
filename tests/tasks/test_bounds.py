"""What a client holds is bounded: submitting more waits, and says so when it has waited enough."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock
from penstock.errors import InvalidError, LimitError

WAIT_S = 60.0


def test_a_submission_waits_until_an_outcome_has_come(fabric: penstock.Fabric) -> None:
    app = fabric.tasks(outstanding=10)
    futures = [app.submit(functions.square, each) for each in range(10)]
    submitted = threading.Event()

    def one_more() -> None:
        futures.append(app.submit(functions.square, 10))
        submitted.set()

    waiting = threading.Thread(target=one_more)
    waiting.start()
    app.post(functions.square, 3)  # nobody waits for it: it needs no room here
    app.flush()
    assert not submitted.is_set()
    with TinyWorker(fabric):
        assert submitted.wait(WAIT_S)
        waiting.join()
        assert app.gather(futures, WAIT_S) == [each * each for each in range(11)]
    assert len(app._link.waiting) == 0


def test_patience_ends_with_an_error_and_nothing_is_submitted(fabric: penstock.Fabric) -> None:
    app = fabric.tasks(outstanding=1, patience=0.01)
    first = app.submit(functions.square, 3)
    with pytest.raises(LimitError, match="nothing was submitted") as caught:
        app.submit(functions.square, 4)
    assert "outstanding" in caught.value.hint
    with pytest.raises(LimitError):
        app.future("another")
    with pytest.raises(LimitError):
        list(app.map(functions.square, range(3)).results(WAIT_S))
    with TinyWorker(fabric) as worker:
        assert first.result(WAIT_S) == 9
        assert app.submit(functions.square, 5).result(WAIT_S) == 25
        assert list(app.map(functions.square, range(3)).results(WAIT_S)) == [0, 1, 4]
    assert len(worker.ran) == 5


def test_many_more_than_may_be_outstanding(fabric: penstock.Fabric) -> None:
    app = fabric.tasks(outstanding=100)
    most = 0
    with TinyWorker(fabric, most=20):
        for number in range(2_000):
            app.submit(functions.square, number, keep=0)
            most = max(most, len(app._link.waiting))
        assert list(app.map(functions.square, range(5_000)).results(WAIT_S)) == [
            each * each for each in range(5_000)
        ]
    assert most <= 100


def test_on_an_event_loop(fabric: penstock.Fabric) -> None:
    async def main() -> None:
        async with fabric._asynchronous() as twin:
            impatient = await twin.tasks(outstanding=1, patience=0.01)
            first = await impatient.submit(functions.square, 3)
            with pytest.raises(LimitError, match="nothing was submitted"):
                await impatient.submit(functions.square, 4)
            with pytest.raises(LimitError):
                impatient.future("another")
            patient = await twin.tasks(outstanding=5)
            await impatient.flush()

            async def squares() -> list[int]:
                futures = [await patient.submit(functions.square, each) for each in range(50)]
                return [await future for future in futures]

            running = asyncio.create_task(squares())
            with TinyWorker(fabric):
                assert await first.result(WAIT_S) == 9
                assert await running == [each * each for each in range(50)]

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"outstanding": 0}, {"outstanding": True}, {"patience": -1.0}])
def test_limits_are_checked(fabric: penstock.Fabric, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidError):
        fabric.tasks(**wrong)  # type: ignore[arg-type]
