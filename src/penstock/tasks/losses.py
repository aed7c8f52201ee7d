"""Tasks that will never run, as they could not be sent: those who depend on them are told so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from penstock.client.aio_streams import AsyncTable
from penstock.errors import ConflictError, PenstockError
from penstock.tasks.envelope import Failure, Status, TaskOutcome, encode, mark_of
from penstock.tasks.outbox import Outbox, Parcel
from penstock.tasks.waiting import Waiting

MOST_LOST = 100_000  # that are to be told of; beyond that, the oldest are forgotten
FINISH_S = 5.0
_AT_ONCE = 256
_PAUSE_S = 0.2  # after an error that may pass; doubles
_MAX_PAUSE_S = 10.0

log = logging.getLogger("penstock.tasks")


class _Lost(NamedTuple):
    task: bytes
    outcome: TaskOutcome
    keep_s: float


class Losses:
    """What becomes of the children of a lost task: the same as if it had failed.

    Those that were not sent end here. Those that the queue holds end as soon as the outcome of the
    lost task is in the table, where others find it, too. Of one event loop.
    """

    def __init__(self, outbox: Outbox, waiting: Waiting, results: AsyncTable) -> None:
        self._outbox = outbox
        self._waiting = waiting
        self._results = results
        self._untold: dict[bytes, _Lost] = {}
        self._telling: asyncio.Task[None] | None = None

    def unsent(self, parcels: Iterable[Parcel], error: PenstockError) -> None:
        """These could not be sent."""
        self._add(parcels, TaskOutcome(Status.FAILED, encode(Failure.of(error)), attempt=0))

    def withdrawn(self, parcel: Parcel) -> None:
        """This one was cancelled before it was sent."""
        self._add([parcel], TaskOutcome(Status.CANCELLED, b"", attempt=0))

    def _add(self, parcels: Iterable[Parcel], outcome: TaskOutcome) -> None:
        kept = [parcel for parcel in parcels if parcel.keep_ms]
        lost = [_Lost(task, outcome, each.keep_ms / 1000) for each in kept for task in each.tasks]
        for parcel in self._outbox.take_dependents([each.task for each in lost]):
            assert parcel.dependence is not None
            (task,), fallback = parcel.tasks, parcel.dependence.fallback
            self._waiting.settle(task, fallback)
            if parcel.keep_ms:
                lost.append(_Lost(task, fallback, parcel.keep_ms / 1000))
        self._untold |= {each.task: each for each in lost}
        while len(self._untold) > MOST_LOST:
            del self._untold[next(iter(self._untold))]
        if self._untold and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def finish(self) -> None:
        """Tries to tell what is untold, and gives up soon."""
        telling = self._telling
        if telling is not None:
            await asyncio.wait([telling], timeout=FINISH_S)
            telling.cancel()
        if self._untold:
            log.warning("%d lost tasks: those who depend on them do not know", len(self._untold))

    async def _tell(self) -> None:
        """Writes outcomes until all are written; an outage is waited for."""
        pause_s = _PAUSE_S
        try:
            while self._untold:
                some = list(self._untold.values())[:_AT_ONCE]
                told = await asyncio.gather(*map(self._write, some))
                if all(told):
                    pause_s = _PAUSE_S
                    continue
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        finally:
            self._telling = None

    async def _write(self, lost: _Lost) -> bool:
        """Whether there is nothing more to do for this one. An outcome that is there stays: sending
        had only seemed to fail, and the task was run."""
        value, mark = encode(lost.outcome), mark_of(lost.outcome.status)
        try:
            await self._results.put(lost.task, value, if_version=0, ttl=lost.keep_s, mark=mark)
        except ConflictError:
            pass
        except PenstockError as error:
            if error.retriable:
                return False
            log.warning("those who depend on a lost task cannot be told: %s", error)
        self._untold.pop(lost.task, None)
        return True
