"""Members of a gang on one event loop: how they meet, and what each hears when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import aio
from penstock.client.gangs import GangSeat
from penstock.errors import DeadlineError, InvalidError, TooLargeError
from penstock.tasks.gangs import GangMember, GangOverError, GangTimes, MemberFailedError
from penstock.tasks.gangs.parts import Ending, EndKind

TIMES = GangTimes(session_s=2.0, lease_s=30.0)
Body = Callable[[GangMember], Awaitable[bytes]]


class Bench:
    """A queue with one gang, and its members."""

    def __init__(self, fabric: aio.AsyncFabric, queue: aio.AsyncQueue, table: aio.AsyncTable):
        self.fabric = fabric
        self.queue = queue
        self.table = table
        self.settled: list[Ending] = []

    async def seats(self, size: int) -> list[GangSeat[aio.AsyncMessage]]:
        """Of a new gang, by rank."""
        await self.queue.push_gang(b"gang", size)
        return await self.parked(size)

    async def parked(self, size: int) -> list[GangSeat[aio.AsyncMessage]]:
        parks = [self.queue.park(f"w{number}", "", 10.0) for number in range(size)]
        found = [seat for seat in await asyncio.gather(*parks) if seat is not None]
        assert len(found) == size
        return sorted(found, key=lambda seat: seat.rank)

    async def take_part(self, seat: GangSeat[aio.AsyncMessage], body: Body) -> Ending:
        async def settle(ending: Ending) -> None:
            self.settled.append(ending)
            if ending.kind == EndKind.DONE:
                await seat.message.ack(wait=True)
            else:
                await seat.message.nack()

        async with GangMember(self.fabric, self.table, seat, "test", TIMES) as member:
            ending = await member.run(body)
            await member.conclude(ending, settle)
            return ending


def run(folder: Path, script: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await aio.open(str(folder)) as fabric:
            queue = await fabric.queue("gangs", gangs=True)
            await script(Bench(fabric, queue, await fabric.table("control")))

    asyncio.run(asyncio.wait_for(main(), 60))


async def waits(member: GangMember) -> bytes:
    await member.meet(b"")
    return b""


def test_members_meet_and_end(tmp_path):
    async def meets(member: GangMember) -> bytes:
        for number in range(3):
            found = await member.meet(b"%d.%d" % (member.seat.rank, number))
            assert found == [b"%d.%d" % (rank, number) for rank in range(3)]
        return b"out %d" % member.seat.rank

    async def script(bench: Bench) -> None:
        seats = await bench.seats(3)
        endings = await asyncio.gather(*[bench.take_part(seat, meets) for seat in seats])
        assert [ending.kind for ending in endings] == [EndKind.DONE] * 3
        assert bench.settled[0].outcomes == [b"out 0", b"out 1", b"out 2"]
        assert (await bench.queue.stats())["messages"] == 0

    run(tmp_path, script)


def test_a_gang_of_one(tmp_path):
    async def script(bench: Bench) -> None:
        (seat,) = await bench.seats(1)
        assert (await bench.take_part(seat, waits)).kind == EndKind.DONE

    run(tmp_path, script)


def test_who_fails_fails_all_and_who_waits_is_told(tmp_path):
    async def fails(member: GangMember) -> bytes:
        if member.seat.rank == 1:
            raise MemberFailedError(b"why")
        with pytest.raises(GangOverError):
            await member.meet(b"")
        raise AssertionError("it is over, and this is not heard")

    async def script(bench: Bench) -> None:
        seats = await bench.seats(3)
        endings = await asyncio.gather(*[bench.take_part(seat, fails) for seat in seats])
        assert {(ending.kind, ending.rank) for ending in endings} == {(EndKind.FAILED, 1)}
        assert bench.settled[0].outcomes == [b"why"]

    run(tmp_path, script)


@pytest.mark.parametrize("leaver", [0, 1], ids=["manager", "member"])
def test_who_leaves_is_missed_at_once_and_the_gang_granted_again(tmp_path, leaver):
    async def script(bench: Bench) -> None:
        seats = await bench.seats(3)
        parts = [asyncio.create_task(bench.take_part(seat, waits_for_ever)) for seat in seats]
        await until(bench, 3)
        parts[leaver].cancel()
        others = [part for part in parts if part is not parts[leaver]]
        endings = await asyncio.wait_for(asyncio.gather(*others), TIMES.session_s)
        assert {(ending.kind, ending.rank) for ending in endings} == {(EndKind.LOST, leaver)}
        again = await bench.parked(3)
        assert {seat.attempt for seat in again} == {2}

    async def waits_for_ever(member: GangMember) -> bytes:
        await asyncio.Event().wait()
        return b""

    run(tmp_path, script)


async def until(bench: Bench, members: int) -> None:
    """So many members have joined."""
    for _ in range(500):
        keys = [key async for key in bench.table.keys(b"gang/")]
        if sum(key.endswith(b"/here") for key in keys) == members:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("they do not join")


def test_a_lease_that_is_lost_ends_the_gang(tmp_path):
    async def script(bench: Bench) -> None:
        (seat,) = await bench.seats(1)
        await seat.message.nack()
        hurried = GangTimes(2.0, 0.3)

        async with GangMember(bench.fabric, bench.table, seat, "test", hurried) as member:
            ending = await member.run(for_ever)
        assert (ending.kind, ending.rank) == (EndKind.LOST, -1)

    async def for_ever(member: GangMember) -> bytes:
        await asyncio.Event().wait()
        return b""

    run(tmp_path, script)


def test_what_a_meeting_refuses(tmp_path):
    async def strange(member: GangMember) -> bytes:
        if member.seat.manager:
            with pytest.raises(TooLargeError):
                await member.meet(bytes(450_001))
            with pytest.raises(DeadlineError):
                await member.meet(b"", 0.05)
            with pytest.raises(InvalidError):
                await member.meet(b"")
            raise MemberFailedError(b"")
        await asyncio.Event().wait()
        return b""

    async def script(bench: Bench) -> None:
        seats = await bench.seats(2)
        endings: list[Any] = await asyncio.gather(
            *[bench.take_part(seat, strange) for seat in seats]
        )
        assert {ending.kind for ending in endings} == {EndKind.FAILED}

    run(tmp_path, script)


def test_a_body_that_breaks_is_a_member_that_is_gone(tmp_path):
    async def breaks(member: GangMember) -> bytes:
        if member.seat.rank == 1:
            raise RuntimeError("a defect of the worker")
        return await waits(member)

    async def script(bench: Bench) -> None:
        seats = await bench.seats(2)
        endings = await asyncio.gather(*[bench.take_part(seat, breaks) for seat in seats])
        assert {(ending.kind, ending.rank) for ending in endings} == {(EndKind.LOST, 1)}

    run(tmp_path, script)
