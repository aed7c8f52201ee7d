"""A member of a group at work on an event loop: what its claims decide is carried out here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from penstock.client.aio import AsyncFabric
from penstock.consumers import claim_events as e
from penstock.consumers.claims import Claims
from penstock.consumers.explain import Explanation, explain
from penstock.consumers.prefetch import FetchRoom
from penstock.consumers.roster import MEMBERS_TABLE, Keys, Roster, new_entry
from penstock.consumers.settings import Settings
from penstock.consumers.shared import Places, Shared, log, wall_us
from penstock.consumers.status import Rates, member_figures
from penstock.consumers.worker import Worker
from penstock.errors import ClosedError, PenstockError

STATES_TABLE = "penstock.states"
FIGURES_SECONDS = 2.0
LEAVE_SECONDS = 15.0  # for handing over, and again as long for giving up what is left
QUICK_SECONDS = 5.0  # the same when the task is cancelled
RESERVE_SECONDS = 10.0  # for who is to have a partition next
CHECK_SECONDS = 1.0  # between looks at whether the fabric is still open
_IDLE_CHECK_SECONDS = 0.05


def now_us() -> int:
    """The member's own clock, which never goes back."""
    return time.monotonic_ns() // 1000


class GroupMember:
    """One life of one member. `run` once; `stop` and `drain` end it sooner or later."""

    def __init__(self, settings: Settings) -> None:
        label = settings.name or "member"
        self.id = f"{label[:100]}-{secrets.token_hex(6)}"
        self.settings = settings
        self.claims = Claims(self.id, settings.rules)
        self.shared: Shared
        self.started_us = wall_us()
        self.entry = new_entry(
            settings.weight, sorted(settings.pins), settings.name, self.started_us
        )
        self.rates = Rates()
        self._roster: Roster | None = None
        self._workers: dict[int, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._releasing: set[tuple[int, int]] = set()
        self._poke = asyncio.Event()
        self._leaving = False
        self._left = False
        self._leave_by_s = 0.0
        self._failure: BaseException | None = None

    # --- the whole of it -----------------------------------------------------------------------

    async def run(
        self, fabric: AsyncFabric, until_idle: float | None = None,
        joined: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Works until it was stopped and has left. What stopped it is raised once it has left."""
        await self._open(fabric)
        assert self._roster is not None
        services = [self._roster.watch_members(), self._roster.watch_notes(), self._tell_figures()]
        running = [asyncio.create_task(each) for each in services]
        try:
            await self._roster.join()
            if self.settings.drain is not None:
                self.drain(self.settings.drain)
            if joined is not None:
                joined()
            await self._go_on(until_idle)
        except asyncio.CancelledError:
            self._begin_leaving(QUICK_SECONDS)
            await self._go_on(None)
            raise
        finally:
            await self._close(running)
        if self._failure is not None:
            raise self._failure

    async def _open(self, fabric: AsyncFabric) -> None:
        settings = self.settings
        topic = await fabric.topic(settings.topic, create=False)
        members = await fabric.table(MEMBERS_TABLE)
        states = await fabric.table(STATES_TABLE)
        places = Places(settings)
        await places.open(fabric)
        self.shared = Shared(
            self.id, settings, fabric, topic, states, places, self._may_process,
            self._may_deliver, self._failed, self._lost, self._grown,
            FetchRoom(settings.prefetch_bytes),
        )  # fmt: skip
        self._roster = Roster(
            fabric, members, Keys(settings.group, settings.topic), self.id, self.entry,
            settings.rules.lease_us / 1e6, self._handle,
        )  # fmt: skip

    async def _go_on(self, until_idle: float | None) -> None:
        """Gives the claims their time, until they have left. ClosedError if the fabric is closed
        before that: then nothing more can be done, and claims run out."""
        while not self._left:
            if self.shared.fabric._connection.closed:
                raise ClosedError("the fabric was closed while a member of a group used it")
            self._handle(e.Tick())
            self._watch_over(until_idle)
            wait_s = max(0.0, (self.claims.wake_us - now_us()) / 1e6)
            often = until_idle is not None or self._leaving
            wait_s = min(wait_s, _IDLE_CHECK_SECONDS if often else CHECK_SECONDS)
            self._poke.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._poke.wait()

    def _watch_over(self, until_idle: float | None) -> None:
        if until_idle is not None and not self._leaving:
            if not self._is_idle():
                self.shared.busy_s = time.monotonic()
            elif time.monotonic() >= self.shared.busy_s + until_idle:
                self.stop()
        if not self._leaving:
            return
        over = time.monotonic() >= self._leave_by_s
        if self.claims.leaving:
            if over:
                log.warning("%s leaves without an answer; its claims run out", self.id)
                self._left = True
        elif over or not self._others_stay():  # meanwhile they may have begun to leave, too
            self._leave_by_s = time.monotonic() + LEAVE_SECONDS
            self._handle(e.Leave())

    def _is_idle(self) -> bool:
        """Whether this member has its share, and all of that is done."""
        seen, todo = self.claims.seen, self.claims.intentions
        if seen is None or self.id not in seen.members or self.claims.claiming or todo.wanted:
            return False
        return not todo.awaited and all(worker.idle for worker in self._workers.values())

    async def _close(self, running: list[asyncio.Task[None]]) -> None:
        for task in [*running, *self._tasks]:
            task.cancel()
        for worker in list(self._workers.values()):  # one may lose its claim meanwhile
            await worker.discard()
        await asyncio.gather(*running, *self._tasks, return_exceptions=True)
        if self._roster is not None:
            await self._roster.leave()

    async def _tell_figures(self) -> None:
        assert self._roster is not None
        while True:
            await asyncio.sleep(FIGURES_SECONDS)
            with suppress(PenstockError):  # the next ones come soon
                await self._roster.publish(self.status())

    # --- what others ask of it -------------------------------------------------------------------

    def stop(self) -> None:
        """Hands everything over to those who stay, or commits it, and leaves."""
        self._begin_leaving(LEAVE_SECONDS)

    def drain(self, seconds: float) -> None:
        """Gives partitions away little by little over so many seconds, and leaves."""
        self.entry.drain = wall_us(), max(0, round(seconds * 1e6))
        self._spawn(self._rejoin())

    def _begin_leaving(self, seconds: float) -> None:
        if self._leaving:
            return
        self._leaving = True
        self._leave_by_s = time.monotonic() + seconds
        if self._workers and self._others_stay():
            self.drain(0.0)
        else:
            self._handle(e.Leave())
        self._poke.set()

    def _others_stay(self) -> bool:
        """Whether there is somebody to hand over to, as far as is known."""
        seen = self.claims.seen
        return seen is not None and any(
            member.id != self.id and member.drain is None for member in seen.members.values()
        )

    async def _rejoin(self) -> None:
        assert self._roster is not None
        with suppress(PenstockError):  # a look finds out, and asks for it again
            await self._roster.join()
        self._handle(e.MembersChanged())

    def status(self) -> dict[str, Any]:
        """Figures of this member, as plain data."""
        return member_figures(self, self._workers)

    def explain(self, partition: int) -> Explanation:
        """Why a partition is where it is, as this member sees it."""
        return explain(self.claims, partition, now_us())

    # --- for the workers -------------------------------------------------------------------------

    def _may_process(self, partition: int, token: int) -> bool:
        held = self.claims.holdings.get(partition, token)
        return held is not None and self.claims.may_process(partition, now_us())

    def _may_deliver(self, partition: int, token: int) -> bool:
        held = self.claims.holdings.get(partition, token)
        return held is not None and now_us() < held.until_us

    def _failed(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            log.error("%s leaves: %s", self.id, error)
        self.stop()

    def _lost(self, partition: int, token: int) -> None:
        self._handle(e.RenewalRefused(((partition, token),)))

    def _grown(self) -> None:
        """Others have to look, too: they may be the ones who should have the new partitions."""
        self._handle(e.MembersChanged())
        for id in self.claims.seen.members if self.claims.seen is not None else ():
            if id != self.id:
                self._spawn(self._answer(e.Nudge(id)))

    # --- actions -----------------------------------------------------------------------------

    def _handle(self, event: e.Event) -> None:
        for action in self.claims.handle(event, now_us()):
            self._carry_out(action)
        for partition, worker in list(self._workers.items()):
            if self.claims.holdings.get(partition, worker.token) is None:
                del self._workers[partition]
                self._spawn(worker.discard())
        self._poke.set()

    def _carry_out(self, action: e.Action) -> None:
        if isinstance(action, e.Start):
            self._start(action)
        elif isinstance(action, e.Stop):
            worker = self._workers.get(action.partition)
            if worker is not None and worker.token == action.token:
                worker.stop()
        elif isinstance(action, e.Left):
            self._left = True
        else:
            self._spawn(self._answer(action))

    def _start(self, action: e.Start) -> None:
        worker = self._workers.get(action.partition)
        if worker is None or worker.token != action.token:
            if worker is not None:
                self._spawn(worker.discard())
            worker = self._workers[action.partition] = Worker(
                self.shared, action.partition, action.token
            )
        worker.start()

    async def _answer(self, action: e.Action) -> None:
        """Does what takes time. No answer rather than a wrong one: all is asked for again."""
        with suppress(PenstockError, TimeoutError):
            if isinstance(action, e.HandOver):
                await self._hand_over(action)
            elif isinstance(action, e.Release):
                await self._release(action)
            else:
                async with asyncio.timeout(self.settings.rules.answer_us / 1e6):
                    await self._ask(action)

    async def _ask(self, action: e.Action) -> None:
        assert self._roster is not None
        if isinstance(action, e.Look):
            await self._look(action)
        elif isinstance(action, e.Claim):
            await self._claim(action)
        elif isinstance(action, e.Renew):
            await self._renew(action)
        elif isinstance(action, e.Offer):
            await self._roster.send(action.to, action.partition)
        elif isinstance(action, e.Nudge):
            await self._roster.send(action.to)
        else:
            await self._roster.join()

    async def _look(self, action: e.Look) -> None:
        assert self._roster is not None
        rules, topic = self.settings.rules, self.shared.topic
        await topic.refresh()
        members, found, figures = await asyncio.gather(
            self._roster.members(),
            topic.claims(self.settings.group, within=rules.answer_us / 2e6),
            self._roster.figures() if rules.by_load else _nothing(),
        )
        claims = {
            partition: e.Claimed(each.owner, each.token, each.left_ms * 1000)
            for partition, each in found.items()
        }
        # A child is begun when the owner of its parent has come to the split.
        parents, loads = topic._layout.parents, _loads(figures)
        partitions = frozenset(
            number for number in range(topic.partitions)
            if parents[number] is None or (number in found and found[number].offset is not None)
        )  # fmt: skip
        self._handle(e.Looked(members, partitions, claims, wall_us(), action.asked_us, loads))

    async def _claim(self, action: e.Claim) -> None:
        partition, group = action.partition, self.settings.group
        told = await self.shared.topic.claim(partition, group, self.id, action.lease_us / 1e6)
        if told.token:
            self._handle(e.Granted(partition, told.token, action.asked_us))
        else:
            self._handle(e.Refused(partition, told.owner, action.asked_us))

    async def _renew(self, action: e.Renew) -> None:
        told = await self.shared.topic.renew(
            self.settings.group, self.id, dict(action.claims),
            within=self.settings.rules.answer_us / 2e6,
        )  # fmt: skip
        answered = [claim for claim in action.claims if claim[0] in told]
        kept = tuple(claim for claim in answered if told[claim[0]])
        over = tuple(claim for claim in answered if not told[claim[0]])
        if kept:
            self._handle(e.Renewed(kept, action.asked_us))
        if over:
            self._handle(e.RenewalRefused(over))

    async def _hand_over(self, action: e.HandOver) -> None:
        worker = self._workers.get(action.partition)
        if worker is not None and worker.token == action.token:
            async with asyncio.timeout(self.settings.rules.handover_us / 1e6):
                await worker.finish(action.to)
        self._handle(e.HandedOver(action.partition, action.token))

    async def _release(self, action: e.Release) -> None:
        claim = action.partition, action.token
        if claim in self._releasing:
            return  # the one that was asked for before answers for both
        self._releasing.add(claim)
        try:
            held = self.claims.holdings.get(*claim)
            heir = "" if held is None else held.heir
            worker = self._workers.get(action.partition)
            if worker is not None and worker.token == action.token:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.rules.answer_us / 1e6):
                        await worker.finish(heir)
            await self.shared.topic.unclaim(
                *(action.partition, self.settings.group, action.token),
                to=heir or None, reserve=RESERVE_SECONDS,
            )  # fmt: skip
        finally:
            self._releasing.discard(claim)
        self._handle(e.Released(*claim))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


async def _nothing() -> dict[str, dict[str, Any]]:
    return {}


def _loads(figures: dict[str, dict[str, Any]]) -> dict[int, float]:
    """Messages a second of each partition, as their owners say."""
    return {
        int(partition): float(each.get("rate", 0.0))
        for told in figures.values()
        for partition, each in told.get("partitions", {}).items()
    }
