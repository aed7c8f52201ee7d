"""Tasks of functions that this worker does not have: if another has them, they are left to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError, ProtocolError
from penstock.tasks.envelope import Status, read_failure, read_outcome
from penstock.tasks.errors import UnknownFunctionError
from penstock.tasks.watching.reports import WORKER_PREFIX, WorkerReport, read_report
from penstock.tasks.worker.jobs import Finish, GiveBack, Retry

KNOWN_US = 3_000_000  # so long it counts what the others have said
GRACE_US = 5_000_000  # after the start: others may be about to start as well
GONE_US = 60_000_000  # after one was last seen: it may be about to come back
ASK_DELAY_MS = 100  # until a task is looked at again, while they are asked
LEAVE_DELAY_MS = 500  # and if one of them has its function
_UNKNOWN = f"{UnknownFunctionError.__module__}.{UnknownFunctionError.__qualname__}"

_log = logging.getLogger("penstock.worker")


class Elsewhere:
    """What the other workers of a task set declare, as far as somebody has to know."""

    def __init__(self, control: AsyncTable, name: str, now_us: Callable[[], int]) -> None:
        self._control = control
        self._name = name
        self._now_us = now_us
        self._others: dict[str, tuple[WorkerReport, int]] = {}  # and when each was last seen
        self._started_us = now_us()
        self._asked_us: int | None = None  # when all were asked
        self._asking: asyncio.Task[None] | None = None

    def instead(self, effect: Finish | Retry) -> GiveBack | None:
        """What is to be done with a task that failed because its function is not known here, unless
        nobody has it: it goes back, and that counts for nothing."""
        if not _is_unknown(effect):
            return None
        asked_us, now_us = self._asked_us, self._now_us()
        if asked_us is None or now_us - asked_us > KNOWN_US:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._ask())
            return GiveBack(effect.job, ASK_DELAY_MS)
        function = effect.job.call.function
        young = now_us - self._started_us < GRACE_US
        if young or any(each.declares(function) for each, _ in self._others.values()):
            return GiveBack(effect.job, LEAVE_DELAY_MS)
        return None

    async def close(self) -> None:
        """Asks nobody any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        now_us = self._now_us()
        try:
            async for _, value in self._control.items(WORKER_PREFIX):
                try:
                    report = read_report(value)
                except ProtocolError:
                    continue  # of a release that is newer than this one
                if report.worker != self._name:
                    self._others[report.worker] = report, now_us
            kept = {name: seen for name, seen in self._others.items() if now_us - seen[1] < GONE_US}
            self._others, self._asked_us = kept, now_us
        except PenstockError as error:
            _log.debug("other workers cannot be seen now: %s", error)
        finally:
            self._asking = None


def _is_unknown(effect: Finish | Retry) -> bool:
    failed = isinstance(effect, Retry) or effect.status is Status.FAILED
    if not failed or effect.outcome is None:
        return False
    try:
        return read_failure(read_outcome(effect.outcome).result).kind == _UNKNOWN
    except ProtocolError:
        return False
