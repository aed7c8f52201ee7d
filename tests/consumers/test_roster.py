"""A member's entry among the others, when its sessions end sooner than it can use them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import aio
from penstock.client import ops_fabric
from penstock.client.aio import AsyncFabric, AsyncSession
from penstock.consumers.roster import MAX_SESSIONS, MEMBERS_TABLE, Keys, Roster, new_entry
from penstock.errors import NotFoundError


class Slow(AsyncFabric):
    """Stands still for longer than a session lives, after it has opened one, `times` times."""

    def __init__(self, fabric: AsyncFabric, times: int) -> None:
        self._fabric, self.times = fabric, times

    async def session(self, ttl: float = 10.0) -> AsyncSession:
        opened = await self._fabric.session(ttl)
        if self.times:
            self.times -= 1
            await self._fabric._run(ops_fabric.close_session(opened.id))
        return opened


async def joined(folder: Path, times: int) -> list[str]:
    """Who is there after a member has joined."""
    async with aio.open(str(folder)) as fabric:
        table = await fabric.table(MEMBERS_TABLE)
        entry = new_entry(1.0, [], "", 0)
        roster = Roster(
            Slow(fabric, times), table, Keys("g", "t"), "me", entry, 10.0, lambda _: None
        )
        try:
            await roster.join()
            return list(await roster.members())
        finally:
            await roster.leave()


@pytest.mark.parametrize("times", [0, 1, MAX_SESSIONS - 1])
def test_a_member_whose_session_is_over_joins_with_another(tmp_path: Path, times: int):
    assert asyncio.run(joined(tmp_path, times)) == ["me"]


def test_a_member_that_never_gets_there_in_time_says_so(tmp_path: Path):
    with pytest.raises(NotFoundError, match="has ended"):
        asyncio.run(joined(tmp_path, MAX_SESSIONS))
