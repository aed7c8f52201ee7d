"""Outcomes that are kept: found whatever happens on the way, and however many others are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from penstock.client.aio_streams import AsyncTable
from penstock.errors import NotFoundError, PenstockError, UnavailableError
from penstock.tasks import lookups
from penstock.tasks.envelope import Status, TaskOutcome, encode
from penstock.tasks.lookups import Lookups
from penstock.tasks.waiting import Waiting
from penstock.wire.buffers import Buffer

DONE = encode(TaskOutcome(Status.DONE, b"\x09"))


def task(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Results:
    """A table; the first questions are answered with errors."""

    def __init__(self, *errors: PenstockError) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.watched_all = asyncio.Event()
        self._watches = 0
        self._errors = [*errors]

    async def get(self, key: bytes) -> bytes | None:
        await asyncio.sleep(0)
        if self._errors:
            raise self._errors.pop(0)
        return self.kept.get(key)

    async def watch(self, prefix: bytes) -> Any:
        self._watches += 1
        if self._watches == lookups.AT_ONCE:
            self.watched_all.set()

        async def nothing_happens() -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

        @asynccontextmanager
        async def changes() -> AsyncIterator[AsyncIterator[None]]:
            yield nothing_happens()

        return changes()


class Told:
    """Somebody who waits."""

    reads_later = False

    def __init__(self) -> None:
        self.outcomes: list[TaskOutcome] = []
        self.errors: list[PenstockError] = []

    def settle(self, task: bytes, outcome: TaskOutcome, large: Sequence[Buffer] = ()) -> bool:
        self.outcomes.append(outcome)
        return False

    def settled(self) -> None: ...

    def fail(self, task: bytes, error: PenstockError) -> None:
        self.errors.append(error)


def looking(results: Results, *tasks: bytes) -> tuple[Lookups, Told]:
    waiting, told = Waiting(bytes(8)), Told()
    waiting.add(tasks, told)
    return Lookups(cast("AsyncTable", results), waiting), told


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "PAUSE_S", 0.001)


@pytest.mark.parametrize("of_all", [False, True])
def test_an_error_that_passes_is_nobodys_outcome(of_all: bool) -> None:
    results = Results(UnavailableError("not now"), UnavailableError("nor now"))
    results.kept[task(1)] = DONE

    async def look() -> None:
        looks, told = looking(results, task(1))
        await (looks.run_all() if of_all else looks.run(task(1)))
        assert (len(told.outcomes), told.errors) == (1, [])

    asyncio.run(look())


@pytest.mark.parametrize("of_all", [False, True])
def test_an_error_that_does_not_pass_ends_it(of_all: bool) -> None:
    """If all were looked for, the outcome may still come as a reply."""

    async def look() -> None:
        looks, told = looking(Results(NotFoundError("no table")), task(1))
        await (looks.run_all() if of_all else looks.run(task(1)))
        assert (told.outcomes, len(told.errors)) == ([], 0 if of_all else 1)

    asyncio.run(look())


def test_what_is_there_is_found_though_others_are_waited_for() -> None:
    """As many as are watched at a time may take hours; another is there already, or comes."""
    results = Results()

    async def look() -> None:
        tasks = [task(number) for number in range(lookups.AT_ONCE + 2)]
        looks, told = looking(results, *tasks)
        running = [asyncio.create_task(looks.run(each)) for each in tasks]
        await results.watched_all.wait()
        results.kept[tasks[-1]] = DONE
        async with asyncio.timeout(20):
            await running[-1]
        assert len(told.outcomes) == 1
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(look())
