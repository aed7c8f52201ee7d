"""Following part of a table: what is told is what stands there, also after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from penstock import aio
from penstock.client.aio_loops import AsyncWatcher
from penstock.errors import DeadlineError
from penstock.tasks.worker import following
from penstock.wire.messages import Entry

SOON_S = 20.0


class Interrupted:
    """A table whose first watch is ended by an outage, as soon as the entries were read;
    `meanwhile` is what others do until the next begins."""

    def __init__(self, table: aio.AsyncTable, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self.name = table.name
        self._table = table
        self._meanwhile = meanwhile
        self._watches = 0

    async def watch(self, prefix: bytes) -> AsyncWatcher:
        self._watches += 1
        if self._watches == 2:
            await self._meanwhile()
        watcher = await self._table.watch(prefix)
        if self._watches == 1:
            watcher._state.subscription.fail(DeadlineError("no connection"))
        return watcher

    def items(self, prefix: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        return self._table.items(prefix)


def test_what_went_during_an_outage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 0.0)
    standing: dict[bytes, bytes] = {}
    changed = asyncio.Event()

    def tell(entry: Entry) -> None:
        if entry.version:
            standing[entry.key] = entry.value
        else:
            standing.pop(entry.key, None)
        changed.set()

    async def until(wanted: dict[bytes, bytes]) -> None:
        while standing != wanted:
            changed.clear()
            await changed.wait()

    async def main() -> None:
        async with aio.open(str(tmp_path)) as fabric, asyncio.timeout(SOON_S):
            table = await fabric.table("control")
            for name in ("removed", "stays", "comes back"):
                await table.put(f"a/{name}", b"1")

            async def meanwhile() -> None:
                assert len(standing) == 3
                await table.delete("a/removed")
                await table.delete("a/comes back")
                await table.put("a/comes back", b"2")
                await table.put("a/new", b"2")

            told = cast("aio.AsyncTable", Interrupted(table, meanwhile))
            task = asyncio.create_task(following.follow(told, b"a/", tell))
            await until({b"a/stays": b"1", b"a/comes back": b"2", b"a/new": b"2"})
            await table.delete("a/stays")
            await until({b"a/comes back": b"2", b"a/new": b"2"})
            task.cancel()

    asyncio.run(main())
