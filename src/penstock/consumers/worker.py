"""One partition at work: read, fold in short turns, deliver, commit, hand over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from penstock.consumers.assembler import Assembler
from penstock.consumers.delivery import Delivery, Seed
from penstock.consumers.fragments import Fragments
from penstock.consumers.moved import Moved
from penstock.consumers.opening import Opened, open_partition
from penstock.consumers.prefetch import Prefetch
from penstock.consumers.saving import Saving
from penstock.consumers.shared import HaltError, Shared, StuckError, log, wall_us
from penstock.consumers.splitting import moved_by, seeds_for
from penstock.consumers.states import Lineage
from penstock.consumers.steps import Step
from penstock.consumers.storage import Storage
from penstock.errors import ClosedError, FencedError, LimitError, PenstockError, UnavailableError

TURN_SECONDS = 0.02  # what a turn should take: others have theirs after that
MIN_ROWS, FIRST_ROWS, MAX_ROWS = 16, 512, 1 << 16
TICK_SECONDS = 0.5  # between looks at the clock, at the end of a partition
SOON_SECONDS = 0.05  # between commits when there is nothing left to read, and results wait
MIN_DELIVERY = 500  # results that are worth a delivery of their own while there is more to read
PAUSE_SECONDS = 0.1  # after a failure; doubles
MAX_PAUSE_SECONDS = 5.0


class Worker:
    """The work on one partition under one claim. `start` and `stop` may come in any order; `finish`
    commits for the next owner. Nothing is done twice at the same time."""

    def __init__(self, shared: Shared, partition: int, token: int) -> None:
        self.partition, self.token = partition, token
        self._shared = shared
        settings = shared.settings
        self._saving = Saving(Storage(shared.states, settings.group, settings.topic, partition))
        self._delivers_first = shared.settings.guarantee == "at-least-once"
        self._wanted = False
        self._over = False
        self._task: asyncio.Task[None] | None = None
        self._one = asyncio.Lock()
        self._news = asyncio.Event()
        self._assembler: Assembler[Any] | None = None
        self._delivery: Delivery
        self._opened: Opened | None = None  # until the gap that it ended is measured
        self._dirty = False
        self._rows = FIRST_ROWS
        self._committed_s = self._ticked_s = 0.0
        self._stopped_us = 0
        self._pause_s = PAUSE_SECONDS
        self.end: int | None = None  # of the partition, once it is known
        self.messages = 0
        self._arrived_us = 0
        self._read_before = 0
        self._began: int | None = None

    # --- started and stopped -------------------------------------------------------------------

    def start(self) -> None:
        """Works from now on."""
        self._wanted = True
        if self._task is None and not self._over:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Works no more after the turn, or the commit, that is under way."""
        self._wanted = False
        self._news.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._over = True
            self._shared.failed(error)
        elif self._wanted:
            self.start()

    async def discard(self) -> None:
        """Leaves everything as it is: the claim is another's."""
        self._over, self._wanted = True, False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        async with self._one:
            while self._wanted:
                try:
                    await self._open()
                    await self._process()
                    self._pause_s = PAUSE_SECONDS
                except FencedError:
                    self._lose()
                except StuckError as error:
                    self._over, self._wanted = True, False
                    self._shared.failed(error.__cause__ or error)
                except ClosedError:
                    self._wanted = False
                except (UnavailableError, LimitError) as error:
                    await self._pause(error)

    def _lose(self) -> None:
        self._over, self._wanted, self._assembler = True, False, None
        self._shared.lost(self.partition, self.token)

    async def _pause(self, error: PenstockError) -> None:
        """After an error nobody knows what was committed: it is read anew, a little later."""
        self._assembler = None
        self._shared.counts.failures += 1
        log.warning("partition %d goes on from its last commit: %s", self.partition, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                while self._wanted:
                    self._news.clear()  # it may have been stopped, and started again
                    await self._news.wait()
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_SECONDS)

    async def _open(self) -> None:
        if self._assembler is not None:
            return
        opened = await open_partition(
            self._shared, self._saving.storage, self.partition, self.token
        )
        self._opened, self._assembler = opened, opened.assembler
        self._delivery = Delivery(
            self._shared, self.partition, self.token, opened.progress, opened.skip, opened.lineage
        )
        self._began = opened.progress.offset if opened.is_new else None
        self._delivery.state_bytes = opened.state_bytes
        self._saving.opened(opened.chunks)
        self._read_before = opened.progress.through
        # A progress may say that time had gone on, and objects were over by that.
        begun = _folded(lambda: opened.assembler.tick(wall_us(), at_end=False))
        self._delivery.collect(begun)
        self._dirty = bool(begun.results)
        self._committed_s = time.monotonic()

    # --- processing --------------------------------------------------------------------------

    async def _process(self) -> None:
        assert self._assembler is not None
        shared = self._shared
        prefetch = Prefetch(
            shared.topic, self.partition, self._assembler.next_offset, shared.room, self._news
        )
        try:
            while self._wanted:
                await asyncio.sleep(0)  # others, and the loop itself, have their turn
                self._news.clear()  # before the look: what comes after that is to be looked at, too
                split = self._next_split(prefetch)
                fragments = prefetch.take(self._rows, None if split is None else split[1])
                self.end = prefetch.end
                if fragments is not None:
                    await self._take(fragments)
                elif split is not None and prefetch.has_passed(split[1]):
                    await self._split(*split)
                else:
                    await self._rest(prefetch)
        except HaltError:  # noted at once: while reading ends, it may be started again
            self._wanted = False
        finally:
            self._stopped_us = wall_us()
            await prefetch.close()

    def _next_split(self, prefetch: Prefetch) -> tuple[int, int] | None:
        """Generation and offset of the first split that is not dealt with."""
        done = self._delivery.lineage.generation
        return next((split for split in prefetch.splits if split[0] > done), None)

    async def _split(self, generation: int, offset: int) -> None:
        """Hands the keys that left to the children, and goes on without them: one transaction."""
        assembler, shared = self._assembler, self._shared
        assert assembler is not None
        self._check_claim()
        self._delivery.collect(_folded(lambda: assembler.passed(offset)))
        moved = await moved_by(shared, self.partition, generation, offset)
        seeds = await seeds_for(
            shared, self.partition, assembler, generation, moved, self._began
        )
        assembler.give_up(Moved(offset, moved[0].low, moved[-1].high))
        lineage = self._delivery.lineage
        gone = (*lineage.moved, Moved(offset, moved[0].low, moved[-1].high))
        self._delivery.lineage = Lineage(lineage.origin, generation, gone)
        try:
            await self._commit(seeds)
        except HaltError:  # what it gave up here is nobody's yet: it goes on from the last commit
            self._assembler = None
            raise
        shared.grown()

    async def _take(self, fragments: Fragments) -> None:
        assembler = self._assembler
        assert assembler is not None
        async with self._shared.gate:
            self._check_claim()
            self._measure_gap(fragments)
            began_s = time.perf_counter()
            step = _folded(lambda: assembler.take(fragments, wall_us()))
            self._took(fragments, time.perf_counter() - began_s)
        self._arrived_us = int(fragments.arrived_us[-1])
        await self._after(step, assembler)

    def _check_claim(self) -> None:
        if not self._wanted or not self._shared.may_process(self.partition, self.token):
            raise HaltError

    def _took(self, fragments: Fragments, seconds: float) -> None:
        """Turns grow and shrink towards the time that they should take."""
        shared, counts, rows = self._shared, self._shared.counts, len(fragments)
        counts.messages += rows
        self.messages += rows
        counts.read_again += int(np.searchsorted(fragments.offsets, self._read_before))
        shared.busy_s = time.monotonic()
        factor = min(2.0, max(0.25, TURN_SECONDS / max(seconds, 1e-6)))
        if factor < 1 or rows >= self._rows:
            self._rows = min(MAX_ROWS, max(MIN_ROWS, round(rows * factor)))
        if seconds * 1e6 > shared.settings.rules.margin_us:
            counts.slow_turns += 1
            log.warning(
                "%s took %.1f s for %d messages of partition %d: meanwhile no claim is renewed,"
                " and others may take over",
                shared.settings.handler_name, seconds, rows, self.partition,
            )  # fmt: skip

    def _measure_gap(self, fragments: Fragments | None) -> None:
        opened, assembler = self._opened, self._assembler
        if opened is None or assembler is None:
            return
        if fragments is not None and int(fragments.offsets[-1]) < opened.progress.through:
            return  # of what was read before
        self._opened = None
        counts = self._shared.counts
        if opened.handed_over_us:
            counts.handovers.note(wall_us() - opened.handed_over_us)
        elif opened.resumed_us and fragments is not None:
            first = int(np.searchsorted(fragments.offsets, opened.progress.through))
            since_us = max(opened.resumed_us, int(fragments.arrived_us[first]))
            counts.resumes.note(wall_us() - since_us)

    async def _after(self, step: Step, assembler: Assembler[Any]) -> None:
        self._dirty = True
        self._delivery.collect(step)
        if step.wants_snapshot:
            await self._saving.snapshot(assembler)
        if self._delivers_first and self._delivery.count >= MIN_DELIVERY:
            await self._delivery.deliver()
        due_s = self._committed_s + self._shared.settings.commit_every
        if self._delivery.full or time.monotonic() >= due_s:
            await self._commit()

    # --- at the end of the partition -------------------------------------------------------------

    async def _rest(self, prefetch: Prefetch) -> None:
        """Waits for more; commits and looks at the clock when it is time."""
        every_s = self._shared.settings.commit_every
        if self._delivers_first:
            await self._delivery.deliver()
        if prefetch.at_end and self._delivery.count:
            every_s = min(every_s, SOON_SECONDS)
        if self._dirty and time.monotonic() >= self._committed_s + every_s:
            await self._commit()
        if prefetch.at_end:
            self._measure_gap(None)
            await self._tick()
        if not prefetch.ready and self._wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_s(every_s)):
                    await self._news.wait()

    def _wait_s(self, commit_s: float) -> float | None:
        """How long there is nothing to do but to wait; None: until something happens."""
        assert self._assembler is not None
        waits = [commit_s] if self._dirty else []
        if self._assembler.goes_by_clock:
            waits.append(TICK_SECONDS)
        return min(waits, default=None)

    async def _tick(self) -> None:
        assembler = self._assembler
        assert assembler is not None
        now_s = time.monotonic()
        due = assembler.goes_by_clock and now_s >= self._ticked_s + TICK_SECONDS
        if not assembler.replaying and not due:
            return
        self._ticked_s = now_s
        if self._dirty and not assembler.replaying:
            await self._commit()  # what the clock leads to is told apart from what was read
        high_us = assembler.high_us
        async with self._shared.gate:
            self._check_claim()
            step = _folded(lambda: assembler.tick(wall_us(), at_end=True))
        if assembler.high_us != high_us:
            self._delivery.time_moved(assembler.next_offset, assembler.high_us)
            await self._after(step, assembler)
        else:
            self._delivery.collect(step)

    # --- committing --------------------------------------------------------------------------

    async def _commit(self, seeds: Sequence[Seed] = ()) -> None:
        assembler, lineage = self._assembler, self._delivery.lineage
        assert assembler is not None
        progress = await self._saving.progress(assembler, lineage.origin)
        moved = tuple(each for each in lineage.moved if each.offset > progress.offset)
        self._delivery.lineage = lineage._replace(moved=moved)
        dump, chunks = b"", None
        if progress.offset < lineage.origin:  # nobody could read again what it builds on
            dump, chunks = await self._saving.dump(assembler, progress, lineage.origin)
        await self._delivery.commit(progress, dump, chunks, seeds=seeds)
        await self._committed()

    async def _committed(self) -> None:
        self._dirty = False
        self._committed_s = time.monotonic()
        await self._saving.committed()

    async def finish(self, heir: str) -> None:
        """The last commit, once all that is under way is done: with everything that is known, so
        that `heir`, or whoever comes, reads nothing again. If it fails, what was committed before
        counts."""
        self.stop()
        async with self._one:
            assembler, self._assembler = self._assembler, None
            if assembler is None or self._over:
                return
            try:
                await self._commit_all(assembler, heir)
            except FencedError:
                self._lose()
            except (PenstockError, HaltError) as error:
                self._shared.counts.failures += 1
                log.warning("partition %d: the last commit failed: %s", self.partition, error)

    async def _commit_all(self, assembler: Assembler[Any], heir: str) -> None:
        origin = self._delivery.lineage.origin
        progress = await self._saving.progress(assembler, origin)
        dump, chunks = await self._saving.dump(assembler, progress, origin)
        stopped_us = self._stopped_us or wall_us()
        await self._delivery.commit(progress, dump, chunks, heir, stopped_us)
        await self._committed()

    # --- figures -------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """What is said of this partition."""
        assembler = self._assembler
        if assembler is None:
            return {"offset": None, "lag": None, "lag_s": None, "open": 0, "held": 0, "state": 0}
        lag = max(0, (self.end or 0) - assembler.next_offset)
        late_us = wall_us() - self._arrived_us if lag and self._arrived_us else 0
        return {
            "offset": assembler.next_offset,
            "lag": lag,
            "lag_s": round(max(0, late_us) / 1e6, 3),
            "open": assembler.open_count,
            "held": assembler.held_count,
            "state": self._delivery.state_bytes,
            "messages": self.messages,
        }

    @property
    def idle(self) -> bool:
        """Whether all is read, delivered and committed."""
        assembler = self._assembler
        return (
            assembler is not None and not self._dirty and not assembler.replaying
            and self.end is not None and assembler.next_offset >= self.end
        )  # fmt: skip


def _folded(fold: Callable[[], Step]) -> Step:
    """A step. What goes wrong in it goes wrong again: StuckError."""
    try:
        return fold()
    except PenstockError as error:
        raise StuckError(str(error)) from error
