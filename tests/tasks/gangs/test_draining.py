"""A worker of gangs that is told to take no more, whatever it is doing then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from penstock import aio
from penstock.tasks.gangs.envelope import GangCall
from penstock.tasks.gangs.member import GangMember
from penstock.tasks.gangs.settling import Settling
from penstock.tasks.gangs.streams import open_gangs
from penstock.tasks.gangs.worker import GangWorker

SOON_S = 20.0


class SlowMembers:
    """Whose preparation is as slow as the start of a process may be."""

    def __init__(self) -> None:
        self.preparing = asyncio.Event()
        self.prepared = asyncio.Event()
        self.closed = False

    async def prepare(self) -> None:
        self.preparing.set()
        await self.prepared.wait()

    async def run(self, member: GangMember, gang: GangCall) -> bytes:
        raise AssertionError("no gang is begun here")

    async def close(self) -> None:
        self.closed = True


def test_who_is_told_while_it_prepares_waits_for_no_gang(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.open(str(tmp_path)) as fabric:
            streams, members = await open_gangs(fabric, "default"), SlowMembers()
            await streams.gangs.push_gang(b"gang", 1)
            worker = GangWorker(fabric, streams, members, cast("Settling", None), "worker")
            running = asyncio.create_task(worker.run())
            await members.preparing.wait()
            worker.drain()
            members.prepared.set()
            await running
            assert members.closed
            stats = await streams.gangs.stats()
            assert (stats["ready"], stats["dead"]) == (1, 0), "it is left to others"

    asyncio.run(asyncio.wait_for(main(), SOON_S))
