"""A worker of gangs: parks, takes part, settles, parks again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncMessage
from penstock.client.gangs import GangSeat
from penstock.errors import ConflictError, PenstockError, ProtocolError
from penstock.tasks.envelope import Failure, encode
from penstock.tasks.errors import TaskTimeoutError
from penstock.tasks.gangs.envelope import GangCall, read_gang
from penstock.tasks.gangs.member import GangMember, GangTimes
from penstock.tasks.gangs.settling import Settling
from penstock.tasks.gangs.streams import GangStreams
from penstock.tasks.importing import path_of

SESSION_S = 5.0
PARK_S = 60.0  # that a worker waits at the node before it asks anew
PAUSE_S = 0.1  # after an error that may pass; doubles
MAX_PAUSE_S = 5.0

_log = logging.getLogger("penstock.worker")


class Members(Protocol):
    """Whoever runs a member's function."""

    async def prepare(self) -> None:
        """Called before the worker parks; what it raises ends the worker."""

    async def run(self, member: GangMember, gang: GangCall) -> bytes:
        """The packed outcome of this member; MemberFailedError if its function raised. Cancelled
        when the gang is over before: it returns when the function has ended."""

    async def close(self) -> None:
        """The worker has ended."""


class GangWorker:
    """Takes part in one gang at a time, under a name that no other worker has."""

    def __init__(
        self, fabric: AsyncFabric, streams: GangStreams, members: Members, settling: Settling,
        name: str, address: str = "", session_s: float = SESSION_S,
    ) -> None:  # fmt: skip
        """`address` is told to the other members of its gangs. Who is silent for `session_s` is
        gone, and missed within twice that."""
        self.gangs_done = 0  # attempts that it took part in, however they ended
        self.busy = False  # whether it is a member of a gang now
        self._fabric = fabric
        self._streams = streams
        self._members = members
        self._settling = settling
        self._name = name
        self._address = address
        self._times = GangTimes(session_s, streams.lease_s)
        self._parking: asyncio.Task[GangSeat[AsyncMessage] | None] | None = None
        self._draining = False

    async def run(self) -> None:
        """Works until `drain`, or an error that does not pass. Cancelled while it is a member, it
        leaves its gang, which is granted anew."""
        try:
            await self._work_on()
        finally:
            await self._members.close()

    def drain(self) -> None:
        """Waits for no more gangs; one that it is a member of may end."""
        self._draining = True
        if self._parking is not None:
            self._parking.cancel()

    async def _work_on(self) -> None:
        pause_s = PAUSE_S
        while not self._draining:
            try:
                await self.work(PARK_S)
                pause_s = PAUSE_S
            except ConflictError as error:
                _log.warning("a gang was lost: %s", error)
            except PenstockError as error:
                if not error.retriable:
                    raise
                _log.warning("no gangs now: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def work(self, wait_s: float) -> bool:
        """Waits so long for a gang, and takes part in it; whether there was one."""
        await self._members.prepare()
        seat = await self._parked(wait_s)
        if seat is None:
            return False
        try:
            gang = read_gang(seat.message.value)
        except ProtocolError:
            _log.exception("a gang that cannot be read is a dead letter now")
            await seat.message.dead()
            return True
        self.busy = True
        try:
            await self._take_part(seat, gang)
        finally:
            self.busy = False
        self.gangs_done += 1
        return True

    async def _parked(self, wait_s: float) -> GangSeat[AsyncMessage] | None:
        """None also once nothing more should be begun."""
        if self._draining:  # since it began to prepare
            return None
        park = self._streams.gangs.park(self._name, self._address, wait_s)
        self._parking = asyncio.get_running_loop().create_task(park)
        try:
            return await self._parking
        except asyncio.CancelledError:
            if not self._draining:
                raise
            return None
        finally:
            self._parking = None

    async def _take_part(self, seat: GangSeat[AsyncMessage], gang: GangCall) -> None:
        control, times = self._streams.others.control, self._times
        async with GangMember(self._fabric, control, seat, gang.name, times) as member:
            with self._limited(member, gang):
                ending = await member.run(lambda here: self._members.run(here, gang))
            await member.conclude(ending, lambda end: self._settling.settle(seat, gang, end))

    @contextmanager
    def _limited(self, member: GangMember, gang: GangCall) -> Iterator[None]:
        """The manager ends an attempt that reaches the task's time limit."""
        limit_ms, attempt = gang.call.timeout_ms, member.seat.attempt
        if not limit_ms or not member.seat.manager:
            yield
            return
        text = f"it took longer than {limit_ms / 1000:g} s and was ended"
        failure = Failure(path_of(TaskTimeoutError).replace(":", "."), text)
        outcome = encode(self._settling.failure(gang, attempt, failure))
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit_ms / 1000, member.give_up, text, outcome)
        try:
            yield
        finally:
            timer.cancel()
