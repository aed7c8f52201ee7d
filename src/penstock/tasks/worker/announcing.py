"""A worker says of itself what it is and does: an entry of the control table, in its session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

import msgspec

from penstock.client.aio import AsyncFabric, AsyncSession
from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.tasks.watching.reports import (
    MAX_NAMES_TOLD,
    MAX_TASKS_TOLD,
    Begun,
    WorkerReport,
    pack_report,
    utilisation,
    worker_key,
)
from penstock.tasks.worker.crew import Crew
from penstock.tasks.worker.deliveries import now_us
from penstock.tasks.worker.dispatch import Dispatch
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.pacing import Pacing
from penstock.tasks.worker.running import wall_us
from penstock.tasks.worker.settings import WorkerSettings

ANNOUNCE_S = 1.0  # between reports, while something changes
STILL_S = 3.0  # and while nothing does
SESSION_S = 15.0  # then a worker that is gone is not seen any more

_log = logging.getLogger("penstock.worker")


class Announcing:
    """Writes a report at most once a second. What goes wrong with it is nothing to the tasks."""

    def __init__(
        self, fabric: AsyncFabric, control: AsyncTable, settings: WorkerSettings, name: str,
        figures: Figures, dispatch: Dispatch, pacing: Pacing, crew: Crew,
    ) -> None:  # fmt: skip
        self._fabric = fabric
        self._control = control
        self._settings = settings
        self._name = name
        self._figures = figures
        self._dispatch = dispatch
        self._pacing = pacing
        self._crew = crew
        self._session: AsyncSession | None = None
        self._started_us = wall_us()
        self._last: WorkerReport | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self._announce()
            except PenstockError as error:
                _log.debug("this worker is not seen now: %s", error)
            await asyncio.sleep(ANNOUNCE_S)

    def is_own(self, report: WorkerReport) -> bool:
        """Whether a report is one of this worker."""
        return (report.worker, report.started_us) == (self._name, self._started_us)

    async def close(self) -> None:
        """Nobody sees it any more."""
        if self._session is not None:
            with suppress(PenstockError):
                await self._session.close()

    async def _announce(self) -> None:
        if self._session is None or not self._session.alive:
            self._session, self._last = await self._fabric.session(SESSION_S), None
        report = self.report()
        if self._last is not None and _still(self._last, report):
            return
        self._last = report
        key = worker_key(self._name, self._session.id)
        await self._control.put(key, pack_report(report), session=self._session)

    def report(self) -> WorkerReport:
        """What there is to say now."""
        settings, dispatch, told_us = self._settings, self._dispatch, wall_us()
        running, running_us = self._running(told_us)
        busy_us, at = self._figures.busy_us + running_us, {each.task for each in running}
        before_us, last_us = self._started_us, 0
        if self._last is not None:
            before_us, last_us = self._last.told_us, self._last.busy_us
        return WorkerReport(
            self._name, settings.kind, settings.concurrency, self._started_us, told_us,
            settings.lease_s, dispatch.draining, self._crew.functions[:MAX_NAMES_TOLD],
            list(settings.allowed), self._crew.rates, self._figures.as_dict(),
            len(dispatch.slots), running,
            list(islice((task for task in self._tasks() if task not in at), MAX_TASKS_TOLD)),
            dispatch.jobs, busy_us,
            utilisation(busy_us - last_us, told_us - before_us, settings.concurrency),
            dispatch.passages.told(),
        )  # fmt: skip

    def _tasks(self) -> Iterator[bytes]:
        """Whatever is in this worker's hands."""
        return chain(self._dispatch.tasks(), self._pacing.tasks())

    def _running(self, wall: int) -> tuple[list[Begun], int]:
        """What executors are at, and for how long all together."""
        begun: list[Begun] = []
        whole_us, now = 0, now_us()
        for executor in self._crew.all():
            at, slot = executor.running(), self._dispatch.slots.get(executor.number)
            job = None if at is None or slot is None else slot.given.get(at.number)
            if job is None or at is None:
                continue
            passed_us = max(now - at.began_us, 0)
            whole_us += passed_us
            if len(begun) < MAX_TASKS_TOLD:
                task, function = job.call.task, job.call.function
                began_us, number = wall - passed_us, executor.number
                begun.append(Begun(task, function, job.attempt, number, began_us, job.popped_us))
        return begun, whole_us


def _still(before: WorkerReport, now: WorkerReport) -> bool:
    """Whether a report has nothing new to say, and the one before is not old."""
    if now.told_us - before.told_us >= STILL_S * 1e6 or now.running or before.running:
        return False
    # Passages are counted on in place; whenever they change, figures do.
    same = msgspec.structs.replace(
        now, told_us=before.told_us, utilisation=before.utilisation, passages=before.passages
    )
    return same == before
