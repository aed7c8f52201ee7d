"""One worker's part in one attempt of a gang: its session, what it hears and says, its lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.client.aio import AsyncFabric, AsyncSession
from penstock.client.aio_loops import AsyncWatcher
from penstock.client.aio_messages import AsyncMessage
from penstock.client.aio_streams import AsyncTable
from penstock.client.gangs import GangSeat
from penstock.errors import (
    ConflictError,
    DeadlineError,
    PenstockError,
    TooLargeError,
)
from penstock.tasks.gangs.errors import GangOverError
from penstock.tasks.gangs.names import HERE, OVER, GangNames
from penstock.tasks.gangs.parts import (
    Effect,
    End,
    Ending,
    EndKind,
    ManagerPart,
    MemberPart,
    Met,
    Put,
    pack_over,
    part_of,
)

MAX_MEETING_BYTES = 900_000  # of all members' values: they must fit one entry of a table
OVER_S = 60.0  # that the last word of a gang stays
_log = logging.getLogger("penstock.worker")
Body = Callable[["GangMember"], Awaitable[bytes]]
Settle = Callable[[Ending], Awaitable[object]]


class GangTimes(NamedTuple):
    """How soon a member that is gone is missed."""

    session_s: float
    """A member that is silent for so long is gone; it is missed within twice that."""
    lease_s: float
    """Of the gang's message; extended by the manager."""


class GangMember:
    """Use with `async with`; then `run`, then `conclude`. Of one event loop."""

    def __init__(
        self, fabric: AsyncFabric, control: AsyncTable, seat: GangSeat[AsyncMessage], gang: str,
        times: GangTimes,
    ) -> None:  # fmt: skip
        """`gang` names the gang in the control table."""
        self.seat = seat
        self._fabric = fabric
        self._table = control
        self._times = times
        self._names = GangNames.of(gang, seat.attempt, seat.lease)
        self._watched = self._names.up if seat.manager else self._names.down
        self._part = part_of(seat.rank, seat.size, _now_us() + int(2e6 * times.session_s))
        self._session: AsyncSession
        self._watcher: AsyncWatcher
        self._puts: asyncio.Queue[Put] = asyncio.Queue()
        self._meeting: asyncio.Future[list[bytes]] | None = None
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._duties: list[asyncio.Task[None]] = []

    # --- from beginning to end -------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Joins: the others see this member from now on. If it cannot, the gang is given back."""
        try:
            self._session = await self._fabric.session(self._times.session_s)
            try:
                self._watcher = await self._table.watch(self._watched)
            except BaseException:
                await self._session.close()
                raise
        except PenstockError:
            await self.seat.message.nack()
            raise
        duties = [self._write(), self._hear(), self._keep()]
        if self.seat.manager:
            duties.append(self._extend())
        for duty in duties:
            self._begin(duty)
        self._puts.put_nowait(Put(HERE, self.seat.addresses[self.seat.rank].encode()))
        return self

    async def run(self, body: Body) -> Ending:
        """Runs this member's part and waits for the end of the gang; how that was. `body` returns
        what this member has to say, or raises MemberFailedError with that; it is cancelled if the
        gang ends before."""
        work = asyncio.get_running_loop().create_task(self._do(body))
        try:
            return await asyncio.shield(self._ending)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _do(self, body: Body) -> None:
        try:
            outcome, well = await body(self), True
        except MemberFailedError as error:
            outcome, well = error.outcome, False
        except Exception as error:
            if not isinstance(error, MemberLostError):
                _log.exception("a member's function was not run")
            self._lost(self.seat.rank, f"member {self.seat.rank} is gone: {error}")
            return
        self._part.finish(well, outcome)
        self._act()

    async def meet(self, value: bytes, timeout: float | None = None) -> list[bytes]:  # noqa: ASYNC109
        """Everybody's value, by rank, once all have come. See `Gang`."""
        if len(value) * self.seat.size > MAX_MEETING_BYTES:
            raise TooLargeError(
                f"{self.seat.size} members with {len(value):,} bytes each: a meeting has room for "
                f"{MAX_MEETING_BYTES:,}",
                advice="Keep large values in a table or a file, and tell the others where.",
            )
        if self._part.ended is not None:
            raise GangOverError(self._part.ended.reason)
        self._part.meet(value)
        self._meeting = asyncio.get_running_loop().create_future()
        self._act()
        try:
            async with asyncio.timeout(timeout):
                return await self._meeting
        except TimeoutError:
            raise DeadlineError(f"not all members have come within {timeout} s") from None

    def give_up(self, reason: str, outcome: bytes) -> None:
        """The manager ends the attempt as one that failed, for a reason of its own."""
        assert isinstance(self._part, ManagerPart)
        self._part.give_up(reason, outcome)
        self._act()

    async def conclude(self, ending: Ending, settle: Settle) -> None:
        """The manager has the gang settled, and lets the others go: after it, if all is done; if
        not, before it, so that no two attempts run at the same time, unless a member does not hear.
        Of the others, each makes sure that a gang without its manager is granted again."""
        if not self.seat.manager:
            if ending.kind == EndKind.LOST and not ending.rank:
                await self.seat.message.nack()
            return
        if ending.kind == EndKind.DONE:
            try:
                await settle(ending)
            except ConflictError:
                await self._say(Ending(EndKind.LOST, reason="the gang's lease was lost"))
                raise
            await self._say(ending)
            return
        await self._say(ending)
        await self._others_leave()
        await settle(ending)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves: what it wrote is gone, but for the gang's last word."""
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        if self._meeting is not None:
            self._meeting.cancel()
        with suppress(PenstockError):
            await self._watcher.close()
        with suppress(PenstockError):
            await self._session.close()

    async def _say(self, ending: Ending) -> None:
        await self._table.put(self._names.of_manager(OVER), pack_over(ending), ttl=OVER_S)

    async def _others_leave(self) -> None:
        assert isinstance(self._part, ManagerPart)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._times.session_s):
                while self._part.present:
                    self._changed.clear()
                    await self._changed.wait()

    # --- duties ----------------------------------------------------------------------------

    def _begin(self, duty: Coroutine[Any, Any, None]) -> None:
        self._duties.append(asyncio.get_running_loop().create_task(self._dutiful(duty)))

    async def _dutiful(self, duty: Coroutine[Any, Any, None]) -> None:
        """A member that cannot hear or speak any more is gone, whatever the others think."""
        try:
            await duty
        except Exception as error:
            if not isinstance(error, PenstockError):
                _log.exception("a member of a gang cannot go on")
            self._lost(self.seat.rank, f"member {self.seat.rank} is cut off: {error}")

    async def _hear(self) -> None:
        """What is there, and what changes."""
        async for key, value in self._table.items(self._watched):
            self._part.changed(key.removeprefix(self._watched), value)
        self._act()
        async for entry in self._watcher:
            word = entry.key.removeprefix(self._watched)
            self._part.changed(word, entry.value if entry.version else None)
            self._changed.set()
            self._act()

    async def _write(self) -> None:
        while True:
            put = await self._puts.get()
            rank, names = self.seat.rank, self._names
            key = names.of_member(rank, put.word) if rank else names.of_manager(put.word)
            await self._table.put(key, put.value, session=self._session)

    async def _keep(self) -> None:
        """A member whose session has ended is gone for the others: it must go, too."""
        while self._session.alive:
            await asyncio.sleep(self._times.session_s / 4)
            self._part.tick(_now_us())
            self._act()
        self._lost(self.seat.rank, "this member's session has ended")

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._times.lease_s / 3)
            try:
                await self.seat.message.extend(self._times.lease_s)
            except ConflictError:
                self._lost(-1, "the gang's lease was lost")
                return
            except PenstockError:
                continue  # it is tried again, as long as the lease may last

    def _lost(self, rank: int, reason: str) -> None:
        self._part.lost(rank, reason)
        self._act()

    # --- effects ---------------------------------------------------------------------------

    def _act(self) -> None:
        for effect in self._part.take():
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        meeting = self._meeting
        if isinstance(effect, Put):
            self._puts.put_nowait(effect)
        elif isinstance(effect, Met):
            if meeting is not None and not meeting.done():
                meeting.set_result(effect.values)
        elif isinstance(effect, End):
            self._ending.set_result(effect.ending)
            if meeting is not None and not meeting.done():
                meeting.set_exception(GangOverError(effect.ending.reason))
        else:
            self._begin(self._look())

    async def _look(self) -> None:
        """The manager is gone: it has said why, or it has died."""
        assert isinstance(self._part, MemberPart)
        said = await self._table.get(self._names.of_manager(OVER))
        if said is None:
            self._part.manager_lost()
        else:
            self._part.changed(OVER, said)
        self._act()


class MemberFailedError(Exception):
    """A member's function has raised: what the gang's caller is told about it."""

    def __init__(self, outcome: bytes) -> None:
        super().__init__("a member's function has raised")
        self.outcome = outcome


class MemberLostError(Exception):
    """A member's function has died with its process, and left no word."""


def _now_us() -> int:
    return time.monotonic_ns() // 1000
