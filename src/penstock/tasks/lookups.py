"""Outcomes that are kept: read from the results table, now or as soon as they are there."""

from __future__ import annotations

import asyncio
import logging

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.tasks.waiting import Waiting

AT_ONCE = 256  # watches, and questions; further lookups ask again now and then
PAUSE_S = 0.2  # before it is asked again, also after an error that may pass; doubles
MAX_PAUSE_S = 30.0

_log = logging.getLogger("penstock.tasks")


class Lookups:
    """Looks for outcomes under their tasks' ids, and tells whoever waits for them. Errors that may
    pass are waited out."""

    def __init__(self, results: AsyncTable, waiting: Waiting) -> None:
        self._results = results
        self._waiting = waiting
        self._watching = asyncio.Semaphore(AT_ONCE)
        self._asking = asyncio.Semaphore(AT_ONCE)

    async def run(self, task: bytes) -> None:
        """Ends when the outcome of this task was found, and its future told."""
        try:
            value = await self._found(task)
        except PenstockError as error:
            self._waiting.fail([task], error)
        else:
            self._waiting.take_in([task], [value])

    async def run_all(self) -> None:
        """Looks once for the outcome of every task that somebody waits for. If that cannot be, it
        says so: what was not found may still come otherwise."""
        try:
            for task in self._waiting.tasks():
                value = await self._kept(task)
                if value is not None:
                    self._waiting.take_in([task], [value])
        except PenstockError as error:
            _log.warning("kept outcomes cannot be read: %s", error)

    async def _found(self, task: bytes) -> bytes:
        pause_s = PAUSE_S
        while True:
            if (value := await self._kept(task)) is not None:
                return value
            if await self._may_watch(pause_s):
                try:
                    return await self._watched(task)
                except PenstockError as error:
                    if not error.retriable:
                        raise
                    await asyncio.sleep(pause_s)
                finally:
                    self._watching.release()
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _kept(self, task: bytes) -> bytes | None:
        pause_s = PAUSE_S
        while True:
            try:
                async with self._asking:
                    return await self._results.get(task)
            except PenstockError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _may_watch(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await self._watching.acquire()
        except TimeoutError:
            return False

    async def _watched(self, task: bytes) -> bytes:
        async with await self._results.watch(task) as changes:
            # It may have been written after the first look, and before the watch began.
            if (value := await self._results.get(task)) is not None:
                return value
            async for entry in changes:
                if entry.key == task and entry.version:
                    return entry.value
        raise AssertionError("a watch ends only with an error")
