"""Deliveries in this worker's hands: their leases are extended until every row is settled."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.client.aio_messages import AsyncDelivery
from penstock.errors import ConflictError, LeaseLostError, PenstockError
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.jobs import GiveBack, Job, Retry
from penstock.tasks.worker.leases import Leases

_LOOKS = 12  # at all leases, in the time of one

_log = logging.getLogger("penstock.worker")


def now_us() -> int:
    """The clock of dispatch and leases: the same in all processes of a machine."""
    return time.monotonic_ns() // 1000


class Deliveries:
    """What was leased, by number. A delivery is forgotten with its last row."""

    def __init__(
        self, lease_s: float, figures: Figures,
        lost: Callable[[int, Sequence[int]], None] = lambda _, rows: None,
    ) -> None:  # fmt: skip
        """`lost` is told of rows, and their delivery, whose leases are lost."""
        self._lost = lost
        self._lease_s = lease_s
        self._figures = figures
        self._leases = Leases(int(lease_s * 1e6))
        self._numbers = itertools.count(1)
        self._held: dict[int, AsyncDelivery] = {}
        self._extending: set[int] = set()

    def add(self, delivery: AsyncDelivery, since_us: int) -> int:
        """Takes in a delivery whose leases began then, or later; its number."""
        number = next(self._numbers)
        self._held[number] = delivery
        self._leases.add(number, len(delivery), since_us)
        return number

    def of(self, job: Job) -> AsyncDelivery:
        """The delivery that a job came with."""
        return self._held[job.delivery]

    def settled(self, jobs: Sequence[Job]) -> None:
        """Jobs need their leases no more."""
        rows: dict[int, list[int]] = {}
        for job in jobs:
            rows.setdefault(job.delivery, []).append(job.row)
        for number, own in rows.items():
            self._release(number, own)

    def give_back(self, back: Sequence[Retry | GiveBack]) -> None:
        """Sends rows back, those with the same terms together. Only retries count as attempts."""
        rows: dict[tuple[int, int, bool], list[int]] = {}
        for each in back:
            counted = isinstance(each, Retry)
            rows.setdefault((each.job.delivery, each.delay_ms, counted), []).append(each.job.row)
            self._figures.retried += counted
            self._figures.given_back += not counted
        for (number, delay_ms, counted), own in rows.items():
            with self._or_lease_ends():
                self._held[number].nack(delay_ms / 1000, own, counted)
            self._release(number, own)

    def bury(self, number: int, rows: Sequence[int]) -> None:
        """Rows that are no tasks: nobody can be told, but they are not lost."""
        _log.error("%d messages cannot be read as tasks; they are dead letters now", len(rows))
        with self._or_lease_ends():
            self._held[number].dead(rows)
        self._release(number, rows)

    @contextmanager
    def _or_lease_ends(self) -> Iterator[None]:
        """What cannot be sent now need not be: nobody extends the lease any more."""
        try:
            yield
        except PenstockError as error:
            _log.warning("tasks are given back when their lease ends: %s", error)

    async def extend(self) -> None:
        """Extends leases for as long as their rows are not settled; for ever. One whose owner does
        not answer holds up none of the others."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._lease_s / _LOOKS)
                for number, rows in self._leases.due(now_us()):
                    if number in self._extending:
                        self._leases.failed(number)
                    else:
                        self._extending.add(number)
                        group.create_task(self._extend(number, self._held[number], rows))

    async def _extend(self, number: int, delivery: AsyncDelivery, rows: list[int]) -> None:
        try:
            await delivery.extend(self._lease_s, rows)
        except LeaseLostError as error:
            self._lost(number, error.rows)  # those that were settled meanwhile among them
        except ConflictError as error:
            _log.warning("leases were not extended: %s", error)
        except PenstockError as error:
            _log.warning("leases were not extended: %s", error)
            self._leases.failed(number)
        finally:
            self._extending.discard(number)

    def _release(self, number: int, rows: Sequence[int]) -> None:
        if self._leases.settled(number, rows):
            del self._held[number]
