"""Tasks of functions that this worker does not have: if another has them, they are left to it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError, ProtocolError
from penstock.tasks.envelope import Status, read_failure, read_outcome
from penstock.tasks.errors import UnknownFunctionError
from penstock.tasks.watching.reports import (
    MAX_NAMES_TOLD,
    WORKER_PREFIX,
    WorkerReport,
    read_report,
)
from penstock.tasks.worker.jobs import Ended, GiveBack, Job

ASK_S = 20.0  # between looks at who is there
KNOWN_US = 3_000_000  # so long it counts what the others have said
GRACE_US = 5_000_000  # after the start: others may be about to start as well
GONE_US = 60_000_000  # after one was last seen: it may be about to come back
ASK_DELAY_MS = 100  # until a task is looked at again, while they are asked
LEAVE_DELAY_MS = 500  # the same if one of them has its function; it doubles each time
MAX_DELAY_MS = 10_000
DOUBTS = 10  # so often a task is left to others of whom it is not certain that they have it
MAX_REMEMBERED = 10_000  # tasks that were left
_UNKNOWN = f"{UnknownFunctionError.__module__}.{UnknownFunctionError.__qualname__}"

_log = logging.getLogger("penstock.worker")


class Elsewhere:
    """What the other workers of a task set declare."""

    def __init__(
        self,
        control: AsyncTable,
        is_own: Callable[[WorkerReport], bool],
        allowed: Collection[str],
        now_us: Callable[[], int],
    ) -> None:
        """`is_own`: whether a report is of this worker. `allowed`: packages whose functions it
        runs: what it does not find there, others will not either."""
        self._control = control
        self._is_own = is_own
        self._allowed = frozenset(allowed)
        self._now_us = now_us
        self._others: dict[bytes, tuple[WorkerReport, int]] = {}  # and when each was last seen
        self._started_us = now_us()
        self._asked_us: int | None = None  # when all were asked
        self._wanted = asyncio.Event()
        self._left: OrderedDict[bytes, int] = OrderedDict()  # how often, by task
        self._told: set[str] = set()  # functions that the log has lines about

    def instead(self, job: Job, ended: Ended) -> GiveBack | None:
        """What is to be done with a task that failed because its function is not known here, unless
        nobody has it: it goes back, and that counts for nothing. What another host has sent here
        would come here again."""
        if job.moved or not _is_unknown(ended):
            return None
        asked_us, now_us = self._asked_us, self._now_us()
        if asked_us is None or now_us - asked_us > KNOWN_US:
            self._wanted.set()
            return GiveBack(job, ASK_DELAY_MS)
        times = self._left.get(job.call.task, 0)
        certain = self._has(job.call.function)
        if certain is None or (not certain and times >= DOUBTS):
            self._left.pop(job.call.task, None)
            return None
        self._remember(job, times + 1)
        return GiveBack(job, min(LEAVE_DELAY_MS << min(times, 10), MAX_DELAY_MS))

    def _has(self, function: str) -> bool | None:
        """Whether another has a function: True, perhaps (False), or no (None)."""
        others = [report for report, _ in self._others.values()]
        if any(function in report.functions for report in others):
            return True
        package = function.partition(":")[0].partition(".")[0]
        open_here = package in self._allowed
        for report in others:
            open_there = package in report.allowed and not open_here
            if open_there or len(report.functions) >= MAX_NAMES_TOLD:
                return False
        return False if self._now_us() - self._started_us < GRACE_US else None

    def _remember(self, job: Job, times: int) -> None:
        self._left[job.call.task] = times
        self._left.move_to_end(job.call.task)
        while len(self._left) > MAX_REMEMBERED:
            self._left.popitem(last=False)
        function = job.call.function
        if function not in self._told and len(self._told) < MAX_NAMES_TOLD:
            self._told.add(function)
            _log.info("tasks of %s are left to other workers: it is not known here", function)

    async def run(self) -> None:
        """Looks who is there, now and then and when it matters; for ever."""
        while True:
            try:
                await self._ask()
            except PenstockError as error:
                _log.debug("other workers cannot be seen now: %s", error)
            self._wanted.clear()
            try:
                await asyncio.wait_for(self._wanted.wait(), ASK_S)
            except TimeoutError:
                continue

    async def _ask(self) -> None:
        now_us = self._now_us()
        async for key, value in self._control.items(WORKER_PREFIX):
            try:
                report = read_report(value)
            except ProtocolError:
                continue  # of a release that is newer than this one
            if not self._is_own(report):
                self._others[key] = report, now_us
        kept = {key: seen for key, seen in self._others.items() if now_us - seen[1] < GONE_US}
        self._others, self._asked_us = kept, now_us


def _is_unknown(ended: Ended) -> bool:
    if ended.status != Status.FAILED:
        return False
    try:
        return read_failure(read_outcome(ended.outcome).result).kind == _UNKNOWN
    except ProtocolError:
        return False
