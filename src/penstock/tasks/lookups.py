"""Outcomes that are kept: read from the results table, now or as soon as they are there."""

from __future__ import annotations

import asyncio

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.tasks.waiting import Waiting

_AT_ONCE = 256  # watches; further lookups wait for one of them to end


class Lookups:
    """Looks for outcomes under their tasks' ids, and tells whoever waits for them."""

    def __init__(self, results: AsyncTable, waiting: Waiting) -> None:
        self._results = results
        self._waiting = waiting
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self, task: bytes) -> None:
        """Ends when the outcome of this task was found, and its future told."""
        try:
            async with self._room:
                value = await self._results.get(task) or await self._watched(task)
        except PenstockError as error:
            self._waiting.fail([task], error)
        else:
            self._waiting.take_in([task], [value])

    async def run_all(self) -> None:
        """Looks once for the outcome of every task that somebody waits for."""
        for task in self._waiting.tasks():
            value = await self._results.get(task)
            if value is not None:
                self._waiting.take_in([task], [value])

    async def _watched(self, task: bytes) -> bytes:
        async with await self._results.watch(task) as changes:
            # It may have been written after the first look, and before the watch began.
            if (value := await self._results.get(task)) is not None:
                return value
            async for entry in changes:
                if entry.key == task and entry.version:
                    return entry.value
        raise AssertionError("a watch ends only with an error")
