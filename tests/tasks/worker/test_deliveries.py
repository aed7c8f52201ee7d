"""Deliveries in a worker's hands: whatever happens to one of them, the others keep their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from tests.tasks.worker.making import job

from penstock.client.aio_messages import AsyncDelivery
from penstock.errors import LeaseLostError, LimitError
from penstock.tasks.worker import deliveries as module
from penstock.tasks.worker.deliveries import Deliveries
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.jobs import GiveBack, Job, Retry

LEASE_S = 0.06


class Leased:
    """A delivery of one row. `answers` decides when an extension is answered."""

    def __init__(self, answers: Callable[[], Any] | None = None) -> None:
        self.extended = 0
        self._answers = answers

    def __len__(self) -> int:
        return 1

    def nack(self, delay: float, rows: Sequence[int], counted: bool) -> None:
        raise LimitError("too many settlements wait for their answers")

    def dead(self, rows: Sequence[int]) -> None:
        raise LimitError("too many settlements wait for their answers")

    async def extend(self, seconds: float, rows: Sequence[int]) -> None:
        self.extended += 1
        if self._answers is not None:
            await self._answers()


def add(deliveries: Deliveries, leased: Leased) -> Job:
    """The job of a delivery that has just come."""
    made = job()
    made.delivery = deliveries.add(cast("AsyncDelivery", leased), module.now_us())
    return made


async def at_work(deliveries: Deliveries, until: Callable[[], bool]) -> None:
    """Extends leases until something is so; what ends that early is raised."""
    extending = asyncio.get_running_loop().create_task(deliveries.extend())
    try:
        async with asyncio.timeout(20):
            while not until():
                await asyncio.sleep(LEASE_S / 20)
                if extending.done():
                    extending.result()
    finally:
        extending.cancel()
        with suppress(asyncio.CancelledError):
            await extending


def test_one_that_is_settled_while_its_lease_is_about_to_be_extended() -> None:
    """Its last row may be settled between the look at the leases and the extension."""

    async def settled_in_between() -> None:
        deliveries = Deliveries(LEASE_S, Figures())
        leaving, staying = Leased(), Leased()
        gone = add(deliveries, leaving)
        add(deliveries, staying)
        due, loop = deliveries._leases.due, asyncio.get_running_loop()

        def look(now_us: int) -> list[tuple[int, list[int]]]:
            found = due(now_us)
            if found:
                loop.call_soon(deliveries.settled, [gone])
            return found

        deliveries._leases.due = look  # type: ignore[method-assign]
        await at_work(deliveries, lambda: staying.extended > 2)

    asyncio.run(settled_in_between())


def test_an_owner_that_does_not_answer_keeps_no_other_lease_from_being_extended() -> None:
    async def one_is_silent() -> None:
        deliveries = Deliveries(LEASE_S, Figures())
        silent, other = Leased(asyncio.Event().wait), Leased()
        add(deliveries, silent)
        add(deliveries, other)
        await at_work(deliveries, lambda: other.extended > 5)
        assert silent.extended == 1, "one question at a time"

    asyncio.run(one_is_silent())


def test_what_cannot_be_given_back_now_is_not_kept_for_ever() -> None:
    """Its lease runs out: somebody else gets it then. All others are dealt with as well."""
    deliveries = Deliveries(LEASE_S, Figures())
    jobs = [add(deliveries, Leased()) for _ in range(3)]
    deliveries.give_back([Retry(jobs[0], 0), GiveBack(jobs[1])])
    deliveries.bury(jobs[2].delivery, [0])
    assert deliveries._leases.due(module.now_us() + 10**9) == []


def test_all_rows_whose_leases_are_lost_are_told() -> None:
    async def lose() -> None:
        error = LeaseLostError("over")
        error.rows = (0,)
        raise error

    async def one_is_lost() -> None:
        lost: list[tuple[int, Sequence[int]]] = []
        deliveries = Deliveries(LEASE_S, Figures(), lambda *each: lost.append(each))
        gone, other = Leased(lose), Leased()
        made = add(deliveries, gone)
        add(deliveries, other)
        await at_work(deliveries, lambda: other.extended > 0 and gone.extended > 0)
        assert lost[0] == (made.delivery, (0,))

    asyncio.run(one_is_lost())
