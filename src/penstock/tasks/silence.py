"""Nothing ends for a while: whether anybody is there who could run the tasks."""

from __future__ import annotations

import asyncio
import logging

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.tasks.waiting import Waiting
from penstock.tasks.watching.reports import WORKER_PREFIX

SILENT_S = 5.0  # without an outcome, until it is asked for workers; doubles
MAX_SILENT_S = 60.0

_log = logging.getLogger("penstock.tasks")


class Silence:
    """Says once that no worker serves the task set, if somebody waits and nothing comes. As long as
    outcomes come, it asks nobody. Of one event loop."""

    def __init__(self, waiting: Waiting, control: AsyncTable, task_set: str) -> None:
        self._waiting = waiting
        self._control = control
        self._task_set = task_set
        self._told = False
        self._listening = False

    @property
    def idle(self) -> bool:
        """Whether `listen` has to be called when somebody waits."""
        return not self._told and not self._listening

    async def listen(self) -> None:
        """Ends when nobody waits any more, or when it was said."""
        self._listening, silent_s = True, SILENT_S
        try:
            while len(self._waiting) and not self._told:
                ended = self._waiting.counts.ended
                await asyncio.sleep(silent_s)
                if not len(self._waiting) or self._waiting.counts.ended > ended:
                    silent_s = SILENT_S
                elif await self._served():
                    silent_s = min(2 * silent_s, MAX_SILENT_S)
                else:
                    self._tell()
        finally:
            self._listening = False

    async def _served(self) -> bool:
        """Whether a worker has announced itself; True as well if that cannot be found out."""
        try:
            async for _ in self._control.items(WORKER_PREFIX):
                return True
        except PenstockError:
            return True
        return False

    def _tell(self) -> None:
        self._told = True
        which = "" if self._task_set == "default" else f" --tasks {self._task_set}"
        _log.warning(
            'no worker serves task set "%s"; start one with: penstock worker MODULE%s',
            self._task_set,
            which,
        )
