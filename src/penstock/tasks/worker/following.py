"""Knowing what stands in part of a table, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.client.aio_streams import AsyncTable
from penstock.errors import PenstockError
from penstock.wire.messages import Entry

PAUSE_S = 1.0

_log = logging.getLogger("penstock.worker")


async def follow(table: AsyncTable, prefix: bytes, tell: Callable[[Entry], None]) -> None:
    """Tells of the entries that are there, then of every change (version 0: it is gone), for ever.
    An entry may be told more than once. Raises only what does not pass."""
    while True:
        try:
            async with await table.watch(prefix) as changes:
                async for key, value in table.items(prefix):
                    tell(Entry(key, value, 1))
                async for entry in changes:
                    tell(entry)
        except PenstockError as error:
            if not error.retriable:
                raise
            _log.warning("changes to %s are not heard now: %s", table.name, error)
            await asyncio.sleep(PAUSE_S)
