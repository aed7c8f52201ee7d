"""Calling a member's function, in whatever thread or process that is."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection
from typing import Any

import msgspec

from penstock.tasks.blobs.carrier import Carrier
from penstock.tasks.codec import Codec
from penstock.tasks.declare import Registry
from penstock.tasks.envelope import TaskCall, encode
from penstock.tasks.gangs.envelope import GangCall
from penstock.tasks.gangs.gang import AsyncGang, Gang, Meet
from penstock.tasks.gangs.member import MAX_MEETING_BYTES, GangMember
from penstock.tasks.worker.jobs import Ended
from penstock.tasks.worker.protocol import Work
from penstock.tasks.worker.running import Arguments, OwnLoop, Runner, wall_us


class MemberWork(msgspec.Struct, array_like=True, tag=True):
    """What a member has to do, and its place in the gang."""

    packed: bytes
    """The `TaskCall`."""
    rank: int
    addresses: list[str]
    attempt: int
    granted_us: int

    @classmethod
    def of(cls, member: GangMember, gang: GangCall) -> MemberWork:
        """Of a member that has just joined."""
        seat = member.seat
        return cls(encode(gang.call), seat.rank, seat.addresses, seat.attempt, wall_us())


class MemberRunner(Runner):
    """Calls functions as a `Runner` does, with their gang before the other arguments."""

    def __init__(
        self,
        registry: Registry,
        codec: Codec,
        worker: str,
        allowed: Collection[str],
        carrier: Carrier,
    ) -> None:
        super().__init__(registry, codec, worker, allowed, carrier)
        self._own_loop = OwnLoop()
        self._work: MemberWork
        self._meet: Meet

    def perform(self, work: MemberWork, meet: Meet) -> Ended:
        """Runs it here and now, one at a time; `meet` waits for the other members. Never raises."""
        self._work, self._meet = work, meet
        plain = Work(0, work.packed, work.attempt, work.granted_us, [])
        return self.run(plain, self._own_loop.wait)

    def _called(self, call: TaskCall, arguments: Arguments) -> Any:
        function = self._function(call.function)
        gang = self._async_gang() if inspect.iscoroutinefunction(function) else self._gang()
        args, kwargs = arguments
        return function(gang, *args, **kwargs)

    def _gang(self) -> Gang:
        work = self._work
        return Gang(work.rank, work.addresses, work.attempt, self._codec, self._meet)

    def _async_gang(self) -> AsyncGang:
        work, meet_others = self._work, self._meet

        async def meet(value: bytes, timeout: float | None) -> list[bytes]:  # noqa: ASYNC109
            return await asyncio.to_thread(meet_others, value, timeout)

        return AsyncGang(work.rank, work.addresses, work.attempt, self._codec, meet)

    def _inline_bytes(self) -> int:
        """What a member's result may have: those of all must fit one entry of a table."""
        return min(super()._inline_bytes(), MAX_MEETING_BYTES // len(self._work.addresses))
