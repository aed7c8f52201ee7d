"""Results and arguments that are too large for a message: by reference, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tasks.worker import large_functions as functions
from tests.tasks.worker.in_thread import InThread

import penstock
from penstock.errors import NotFoundError, TooLargeError
from penstock.node.clock import Clock
from penstock.tasks.blobs import blob as blobs
from penstock.tasks.blobs.blob import PIECE_BYTES
from penstock.tasks.blobs.carrier import CarriedAside, Carrier
from penstock.tasks.blobs.pieces import PatientPieces, Pieces
from penstock.tasks.envelope import read_call
from penstock.tasks.errors import TaskError, TaskFailedError
from penstock.tasks.names import streams_of
from penstock.tasks.portal import Portal
from penstock.testing import FakeClock, memory_fabric

WAIT_S = 60.0
MODULE = functions.__name__
NAMES = streams_of("default")


@pytest.fixture
def fabric() -> Iterator[penstock.Fabric]:
    with memory_fabric(Clock(), timeout=WAIT_S) as made:
        yield made


def expected(megabytes: int, seed: int = 1) -> Any:
    return functions.noise.function(megabytes, seed)


def pieces_in(fabric: penstock.Fabric) -> list[bytes]:
    try:
        return list(fabric.table(NAMES.blobs, create=False).keys())
    except NotFoundError:
        return []


def until_gone(fabric: penstock.Fabric) -> None:
    """Pieces are removed beside everything else, soon after the last one who needs them."""
    table = fabric.table(NAMES.blobs)
    with table.watch() as changes:
        while pieces_in(fabric):
            next(iter(changes))


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_large_result_and_its_children(fabric: penstock.Fabric, kind: str) -> None:
    with InThread(fabric, MODULE, kind=kind, concurrency=2), fabric.tasks() as app:
        parent = app.submit(functions.noise, 20)
        children = [app.submit(functions.total, parent), app.submit(functions.doubled, parent)]
        array = expected(20)
        assert np.array_equal(parent.result(WAIT_S), array)
        assert children[0].result(WAIT_S) == array.sum(dtype=np.int64)
        assert np.array_equal(children[1].result(WAIT_S), array * np.uint8(2))
        kept = app.future(parent.id).result(WAIT_S)
        assert np.array_equal(kept, array), "others find it, too"
        assert not kept.flags.writeable
        assert parent.outcome is not None
        assert len(parent.outcome.blobs) == 1
        assert len(pieces_in(fabric)) == 2 * -(-20_000_100 // PIECE_BYTES)


def test_large_arguments_are_removed_with_their_task(fabric: penstock.Fabric) -> None:
    array = expected(3)
    with fabric.tasks() as app, InThread(fabric, MODULE):
        assert app.submit(functions.total, array).result(WAIT_S) == array.sum(dtype=np.int64)
        until_gone(fabric)
        posted = app.post(functions.doubled, array)
        assert app.submit(functions.total, posted).result(WAIT_S) == (array * np.uint8(2)).sum(
            dtype=np.int64
        )


def test_what_nobody_else_can_ask_for_is_removed_when_it_was_read(
    fabric: penstock.Fabric,
) -> None:
    with fabric.tasks() as app, InThread(fabric, MODULE):
        fleeting = app.submit(functions.noise, 1, keep=0)
        assert np.array_equal(fleeting.result(WAIT_S), expected(1))
        until_gone(fabric)
        mapped = app.map(functions.noise, [1, 2, 1], [7, 8, 9]).results(WAIT_S)
        for megabytes, seed in ((1, 7), (2, 8), (1, 9)):
            assert np.array_equal(next(mapped), expected(megabytes, seed))
        until_gone(fabric)


def test_on_an_event_loop(fabric: penstock.Fabric) -> None:
    async def main() -> None:
        async with fabric._asynchronous() as twin:
            app = await twin.tasks()
            parent = await app.submit(functions.noise, 20)
            children = [await app.submit(functions.total, parent) for _ in range(2)]
            array = expected(20)
            assert np.array_equal(await parent.result(WAIT_S), array)
            for child in children:
                assert await child.result(WAIT_S) == array.sum(dtype=np.int64)
            doubled = [each async for each in app.map(functions.doubled, [array] * 2)]
            assert all(np.array_equal(each, array * np.uint8(2)) for each in doubled)

    with InThread(fabric, MODULE):
        asyncio.run(main())


def test_pieces_expire_with_the_outcome() -> None:
    clock = FakeClock()
    with (
        memory_fabric(clock, timeout=WAIT_S) as fabric,
        InThread(fabric, MODULE),
        fabric.tasks() as app,
    ):
        made = app.submit(functions.noise, 2, keep=7200)
        made.result(WAIT_S)
        results = fabric.table(NAMES.results)
        clock.advance(7100)
        assert len(pieces_in(fabric)) == 4
        assert results.get(made.id) is not None
        clock.advance(200)
        assert results.get(made.id) is None
        clock.advance(600)
        assert not pieces_in(fabric)


def test_a_value_that_is_gone_says_so(fabric: penstock.Fabric) -> None:
    with InThread(fabric, MODULE), fabric.tasks() as app:
        made = app.submit(functions.noise, 1)
        made.result(WAIT_S)
        table = fabric.table(NAMES.blobs)
        table.delete(pieces_in(fabric)[0])
        with pytest.raises(TaskError, match="is not kept any more"):
            app.future(made.id).result(WAIT_S)
        with pytest.raises(TaskFailedError, match="is not kept any more"):
            app.submit(functions.total, made).result(WAIT_S)


def test_a_worker_that_dies_between_pieces_and_completion() -> None:
    """Its pieces are nobody's; the task is run again, and only that result counts."""
    clock = FakeClock()
    with memory_fabric(clock, timeout=WAIT_S) as fabric, fabric.tasks() as app:
        future = app.submit(functions.noise, 2, keep=60)
        app.flush()
        _write_and_die(fabric)
        orphans = pieces_in(fabric)
        assert orphans
        clock.advance(31)
        with InThread(fabric, MODULE):
            assert np.array_equal(future.result(WAIT_S), expected(2))
        assert future.outcome is not None
        assert future.outcome.attempt == 2
        assert set(future.outcome.blobs[0].keys).isdisjoint(orphans)
        clock.advance(5000)
        assert not pieces_in(fabric)


def _write_and_die(fabric: penstock.Fabric) -> None:
    """What a worker does with the first task, but for the end."""
    message = fabric.queue(NAMES.queue, create=False).pop()
    assert message is not None
    task = read_call(message.value).task
    portal = Portal("dying")

    async def connected() -> tuple[Any, CarriedAside]:
        twin = await fabric._asynchronous()
        return twin, CarriedAside(PatientPieces(Pieces(twin, "default", None)))

    twin, aside = portal.call(connected())
    Carrier(aside.ask, aside.answer).write(task, bytes(2_000_000), 60.0, once=False)
    portal.call(twin.close())
    portal.close()


def test_very_large_values_need_a_directory(
    fabric: penstock.Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_TABLE_BYTES", 1_500_000)
    array = expected(2)
    with fabric.tasks() as app, InThread(fabric, MODULE):
        with pytest.raises(TooLargeError, match="the limit is 1,500,000"):
            app.submit(functions.total, array)
        with pytest.raises(TaskFailedError, match="the limit is 1,500,000"):
            app.submit(functions.noise, 2).result(WAIT_S)
    with (
        fabric.tasks(directory=tmp_path) as app,
        InThread(fabric, MODULE, directory=str(tmp_path)),
    ):
        assert app.submit(functions.total, array).result(WAIT_S) == array.sum(dtype=np.int64)
        made = app.submit(functions.noise, 2)
        assert np.array_equal(made.result(WAIT_S), array)
        assert app.submit(functions.total, made).result(WAIT_S) == array.sum(dtype=np.int64)
    assert not pieces_in(fabric)
    assert len(list(tmp_path.iterdir())) == 1, "the arguments are gone, the kept result is not"
