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
    """Tells of the entries that are there, then of every change (version 0: it is gone), for ever;
    after an outage, also of those that went meanwhile. An entry may be told more than once. Raises
    only what does not pass."""
    known: set[bytes] = set()  # keys of entries that were told, and not yet that they are gone

    def heard(entry: Entry) -> None:
        (known.add if entry.version else known.discard)(entry.key)
        tell(entry)

    while True:
        try:
            async with await table.watch(prefix) as changes:
                gone = set(known)  # a new watch tells nothing of what was removed before it
                async for key, value in table.items(prefix):
                    gone.discard(key)
                    heard(Entry(key, value, 1))
                for key in sorted(gone):
                    heard(Entry(key, b"", 0))
                async for entry in changes:
                    heard(entry)
        except PenstockError as error:
            if not error.retriable:
                raise
            _log.warning("changes to %s are not heard now: %s", table.name, error)
            await asyncio.sleep(PAUSE_S)
