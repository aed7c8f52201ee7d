"""The table that pieces of large values lie in, on an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.tasks.names import streams_of

_PAUSE_S = 0.1  # after an error that may pass; doubles
_MAX_PAUSE_S = 5.0
_REMOVED_AT_ONCE = 32

T = TypeVar("T")
log = logging.getLogger("penstock.tasks")


class Pieces:
    """One task set's. The table is made when the first large value comes: most sets have none."""

    def __init__(self, fabric: AsyncFabric, task_set: str, durability: str | None) -> None:
        self._fabric = fabric
        self._name = streams_of(task_set).blobs
        self._options: dict[str, Any] = {} if durability is None else {"durability": durability}
        self._table: AsyncTable | None = None
        self._opening = asyncio.Lock()

    async def put(self, key: bytes, piece: bytes, ttl_s: float) -> None:
        """Durable when it returns."""
        await (await self._opened()).put(key, piece, ttl=ttl_s)

    async def get(self, key: bytes) -> bytes | None:
        """None if it is not there any more."""
        return await (await self._opened()).get(key)

    async def remove(self, keys: Iterable[bytes]) -> None:
        """Gives their room back early. What cannot be removed now will expire."""
        chosen = list(keys)
        try:
            table = await self._opened()
            for at in range(0, len(chosen), _REMOVED_AT_ONCE):
                await asyncio.gather(*map(table.delete, chosen[at : at + _REMOVED_AT_ONCE]))
        except PenstockError as error:
            log.info("pieces of a large value stay until they expire: %s", error)

    async def _opened(self) -> AsyncTable:
        async with self._opening:
            if self._table is None:
                self._table = await self._fabric.table(self._name, **self._options)
            return self._table


class PatientPieces:
    """Serves those who run functions: an error that may pass is not theirs to hear of."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    async def put(self, key: bytes, piece: bytes, ttl_s: float) -> None:
        """Durable when it returns, however long that takes."""
        await self._patiently(lambda: self._pieces.put(key, piece, ttl_s))

    async def get(self, key: bytes) -> bytes | None:
        """None if it is not there any more."""
        return await self._patiently(lambda: self._pieces.get(key))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        pause_s = _PAUSE_S
        while True:
            try:
                return await work()
            except PenstockError as error:
                if not error.retriable or self._pieces._fabric._connection.closed:
                    raise
                log.warning("a piece of a large value must wait: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
