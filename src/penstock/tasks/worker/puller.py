"""The puller: leases tasks, hands them to executors, and settles what comes of them.

It runs no function itself, so that nothing that a task does can keep it from extending leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncDelivery
from penstock.client.aio_streams import AsyncQueue
from penstock.errors import InvalidError, PenstockError
from penstock.tasks.blobs.carrier import GetPiece, PutPiece
from penstock.tasks.envelope import Status
from penstock.tasks.locality.placing import Placing
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.announcing import Announcing
from penstock.tasks.worker.arriving import Arrivals
from penstock.tasks.worker.completing import Completer, Over
from penstock.tasks.worker.crew import Crew
from penstock.tasks.worker.deliveries import Deliveries, now_us
from penstock.tasks.worker.dispatch import Dispatch
from penstock.tasks.worker.elsewhere import Elsewhere
from penstock.tasks.worker.executors import AnyExecutor
from penstock.tasks.worker.failures import FailureLog
from penstock.tasks.worker.figures import Figures
from penstock.tasks.worker.jobs import (
    Effect,
    Finish,
    GiveBack,
    Job,
    Kill,
    Retry,
    Send,
    TakeBack,
)
from penstock.tasks.worker.large import LargeValues
from penstock.tasks.worker.neighbours import Neighbours
from penstock.tasks.worker.outcomes import broken_outcome
from penstock.tasks.worker.pacing import Pacing
from penstock.tasks.worker.protocol import Results, Returned, ToPuller
from penstock.tasks.worker.running import wall_us
from penstock.tasks.worker.scheduling import Scheduling
from penstock.tasks.worker.settings import WorkerSettings

POP_S = 60.0  # that a pop waits at the node
PAUSE_S = 0.1  # after an error that may pass; doubles
MAX_PAUSE_S = 5.0
PREPARE_DELAY_MS = 1_000  # until a task is looked at again whose parents could not be read
FINISH_S = 10.0  # for outcomes that are on their way when the worker ends

_log = logging.getLogger("penstock.worker")


class Puller:
    """One worker: `start`, then `run`, which works until `drain`, or `stop`."""

    def __init__(
        self, fabric: AsyncFabric, streams: OpenStreams, settings: WorkerSettings, name: str
    ) -> None:
        self.figures = Figures()
        self.dispatch = Dispatch(random.random)
        self._streams = streams
        self._settings = settings
        self._name = name
        self._failures = FailureLog(now_us)
        self._deliveries = Deliveries(settings.lease_s, self.figures, self._lease_lost)
        self._arrivals = Arrivals(fabric, streams)
        self._large = LargeValues(fabric, settings)
        self._completer = Completer(
            fabric, streams, self.figures, self._deliveries.settled, self._large.arguments_over
        )
        self._pacing = Pacing(streams.control, self._ready, self._deliveries.give_back)
        self._crew = Crew(settings, name, self._heard, self._lost)
        self._announcing = Announcing(
            fabric, streams.control, settings, name, self.figures, self.dispatch, self._pacing,
            self._crew,
        )  # fmt: skip
        is_own, allowed = self._announcing.is_own, settings.allowed
        self._elsewhere = Elsewhere(streams.control, is_own, allowed, now_us)
        self.dispatch.elsewhere = self._elsewhere.instead
        self._room = asyncio.Event()
        self._over = asyncio.Event()
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_s = 0.0  # when that is due, by the loop's clock
        self._work: list[asyncio.Task[None]] = []
        self._popping: set[asyncio.Task[Any]] = set()  # those of `_work` that ask for tasks now
        self._planning = False
        self._closing = False
        self._neighbours: Neighbours | None = None
        if settings.host:
            placing: Placing[Job] = Placing(
                fabric, streams.control, settings.task_set, settings.host, name
            )
            self._neighbours = Neighbours(placing, settings.blocks, self._deliveries)

    # --- from beginning to end -------------------------------------------------------------

    async def start(self) -> None:
        """Starts executors; returns when the first is ready. UnavailableError, with the reason, if
        none can be; InvalidError if they have no task to run: this worker would fail them all.
        `run` has to follow in any case, or `close`."""
        await self._crew.start()
        modules = self._settings.modules
        if modules and not (self._crew.functions or self._settings.allowed):
            raise InvalidError(
                f"there is no task in {', '.join(modules)}",
                advice="Decorate functions with @penstock.task, or say --allow for others.",
            )
        if self._neighbours is not None:
            await self._neighbours.open()

    async def run(self) -> None:
        """Works until it is told to end and everything is settled or given back. An error that
        does not pass ends it, too; executors are gone in any case."""
        loop = asyncio.get_running_loop()
        try:
            duties: list[Coroutine[Any, Any, None]] = [
                self._pull(self._streams.queue),
                self._deliveries.extend(),
                self._arrivals.watch_cancels(self._cancelled),
                Scheduling(self._streams.queue, self._streams.control).run(),
                self._crew.failed(),
                self._large.sweep(),
                self._announcing.run(),
                self._elsewhere.run(),
            ]
            if self._neighbours is not None:
                duties.append(self._pull(self._neighbours.queue, moved=True))
                duties.append(self._neighbours.adopt(self._adopt))
            self._work = [loop.create_task(each) for each in duties]
            over = loop.create_task(self._over.wait())
            await asyncio.wait([over, *self._work], return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            for task in self._work:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends everything: what is over is settled, what is not is given back."""
        self.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._completer.finish(), FINISH_S)
        self._closing = True
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._ticking is not None:
            self._ticking.cancel()
        await self._pacing.close()
        await self._large.close()
        await self._crew.close()
        await self._announcing.close()
        self._failures.close()
        if self._neighbours is not None:
            with suppress(PenstockError):
                await self._neighbours.close()
        with suppress(PenstockError):
            await self._streams.queue.flush()

    def drain(self) -> None:
        """Begins nothing more: what nobody has begun goes back at once; what runs may end within
        the settings' time."""
        if self.dispatch.draining:
            return
        self.dispatch.drain()
        self._crew.shrink()
        self._pacing.drain()
        if self._neighbours is not None:
            self._neighbours.drain()
        for asking in self._popping:
            asking.cancel()
        self._act()
        asyncio.get_running_loop().call_later(self._settings.drain_s, self.stop)

    def stop(self) -> None:
        """Ends now: what runs is killed, and given back."""
        self.dispatch.drain()
        self._crew.shrink()
        for executor in self._crew.all():
            executor.kill()
            running = executor.running()
            at = None if running is None else running.number
            self.dispatch.left(executor.number, at, now_us())
        self._act()

    # --- pulling ---------------------------------------------------------------------------

    async def _pull(self, queue: AsyncQueue, moved: bool = False) -> None:
        """Pulls from a queue for ever. `moved`: what is there was sent by other hosts."""
        pause_s = PAUSE_S
        while True:
            wanted = self.dispatch.wanted(now_us())
            if not wanted:
                self._room.clear()
                await self._room.wait()
                continue
            if self._neighbours is not None and self._neighbours.waiting:
                await self._begin(await self._neighbours.due(wanted))
                continue
            asked_us = now_us()
            try:
                delivery = await self._pop(queue, wanted)
            except PenstockError as error:
                if not error.retriable:
                    raise
                _log.warning("no tasks now: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            pause_s = PAUSE_S
            if delivery is not None:
                # The lease began after the pop was asked for, unless it waited: then just now.
                await self._arrived(delivery, max(asked_us, now_us() - 1_000_000), moved)

    async def _pop(self, queue: AsyncQueue, wanted: int) -> AsyncDelivery | None:
        """None also if it is called off, as nothing more should be begun."""
        asking = asyncio.current_task()
        assert asking is not None
        self._popping.add(asking)
        try:
            return await queue.pop_batch(wanted, POP_S, self._settings.lease_s)
        except asyncio.CancelledError:
            if self._closing or not self.dispatch.draining:
                raise
            asking.uncancel()
            return None
        finally:
            self._popping.discard(asking)

    async def _adopt(self, queue: AsyncQueue) -> None:
        """Takes some of what was sent to a host that has no worker any more."""
        wanted, asked_us = self.dispatch.wanted(now_us()), now_us()
        if wanted:
            delivery = await queue.pop_batch(wanted, lease=self._settings.lease_s)
            if delivery is not None:
                await self._arrived(delivery, asked_us, moved=True)

    async def _arrived(
        self, delivery: AsyncDelivery, since_us: int, moved: bool = False
    ) -> None:
        number = self._deliveries.add(delivery, since_us)
        jobs, unreadable = self._arrivals.jobs_of(delivery, number, wall_us())
        if unreadable:
            self._deliveries.bury(number, unreadable)
        if self._neighbours is not None:
            jobs = self._neighbours.take(jobs, delivery, moved)
            jobs += await self._neighbours.due(self.dispatch.wanted(now_us()) - len(jobs))
        await self._begin(jobs)

    async def _begin(self, jobs: Sequence[Job]) -> None:
        plain = [job for job in jobs if not job.waited]
        self._ready(self._pacing.take(plain))
        if len(plain) < len(jobs):
            await self._prepare([job for job in jobs if job.waited])

    async def _prepare(self, jobs: list[Job]) -> None:
        """Jobs that were kept back, and may need what came of others."""
        try:
            await self._arrivals.prepare(jobs)
        except BaseException as error:
            self._deliveries.give_back([GiveBack(job, PREPARE_DELAY_MS) for job in jobs])
            if not isinstance(error, PenstockError):
                raise
            _log.warning("what tasks depend on cannot be read now: %s", error)
        else:
            self._ready(self._pacing.take(jobs))

    def _ready(self, jobs: Sequence[Job]) -> None:
        self._arrivals.mark_cancelled(jobs)
        self.dispatch.delivered(jobs, now_us())
        self._act()

    # --- what executors say ----------------------------------------------------------------

    def _heard(self, executor: AnyExecutor, message: ToPuller) -> None:
        if isinstance(message, PutPiece | GetPiece):
            self._large.carry(executor, message)
            return
        if isinstance(message, Results):
            self.figures.busy_us += sum([each.took_us for each in message.ended])
            self.dispatch.ended(executor.number, message.ended, now_us())
        elif isinstance(message, Returned):
            self.dispatch.returned(executor.number, message.numbers, now_us())
        else:
            self._pacing.rates = self._crew.rates
            self.dispatch.joined(executor.number, now_us())
        self._act()

    def _lost(self, executor: AnyExecutor) -> None:
        running = executor.running()
        self.figures.executors_lost += not self.dispatch.draining
        self.dispatch.left(executor.number, None if running is None else running.number, now_us())
        self._act()

    def _cancelled(self, task: bytes) -> None:
        self.dispatch.cancel(task, now_us())
        self._act()

    def _lease_lost(self, delivery: int, rows: Sequence[int]) -> None:
        self.dispatch.lose(delivery, frozenset(rows))
        self._act()

    # --- effects ---------------------------------------------------------------------------

    def _act(self) -> None:
        """Carries out what dispatch has decided."""
        finished: list[Over] = []
        back: list[Retry | GiveBack] = []
        while effects := self.dispatch.taken():
            for effect in effects:
                self._carry_out(effect, finished, back)
        if back:
            self._deliveries.give_back(back)
        if finished:
            self._completer.add(finished)
        if self.dispatch.draining and not self.dispatch.jobs:
            self._over.set()
        if not self._planning:
            self._planning = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        """Sees to what comes next, once for all that has just happened: whoever waits for what was
        decided need not wait for this."""
        self._planning = False
        if self._closing:
            return
        if self.dispatch.wanted(now_us()):
            self._room.set()
        self._schedule_tick()

    def _carry_out(
        self, effect: Effect, finished: list[Over], back: list[Retry | GiveBack]
    ) -> None:
        if isinstance(effect, Send):
            self._crew.get(effect.executor).send(effect.jobs)
        elif isinstance(effect, Finish):
            finished.append(self._finished(effect))
        elif isinstance(effect, Retry):
            self._failures.add(effect)
            back.append(effect)
        elif isinstance(effect, GiveBack):
            back.append(effect)
        elif isinstance(effect, TakeBack):
            self._crew.get(effect.executor).take_back(effect.jobs)
        else:
            self._kill(effect)

    def _finished(self, finish: Finish) -> Over:
        job, status, outcome, cause = finish
        if status is Status.FAILED:
            self._failures.add(finish)
        if outcome is None:
            assert cause is not None
            outcome = broken_outcome(job, cause, self._name, wall_us())
        return Over(job, self._deliveries.of(job), status, outcome)

    def _kill(self, kill: Kill) -> None:
        executor = self._crew.get(kill.executor)
        running = executor.running()
        if running is not None and running.number == kill.number:
            executor.kill()
        else:
            self.dispatch.spared(kill.executor)

    # --- time ------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        after_us = self.dispatch.tick_us(now_us())
        if after_us is None:
            return
        loop = asyncio.get_running_loop()
        due_s = loop.time() + after_us / 1e6
        if self._ticking is not None:
            if self._tick_s <= due_s:
                return
            self._ticking.cancel()
        self._tick_s = due_s
        self._ticking = loop.call_later(after_us / 1e6, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        running = {each.number: each.running() for each in self._crew.all()}
        self.dispatch.tick(running, now_us())
        self._act()
