"""Functions with a rate: their tasks wait here for a start that was claimed, or go back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.client.aio_streams import AsyncTable
from penstock.errors import ConflictError, PenstockError
from penstock.tasks.options import Rate
from penstock.tasks.worker.jobs import GiveBack, Job
from penstock.tasks.worker.limits import claim, delays_ms, pack_free, rate_key, read_free
from penstock.tasks.worker.running import wall_us

MAX_RACES = 20  # lost to other workers, before tasks are given back for a while
RACE_DELAY_US = 100_000
KEPT_S = 86_400.0  # an entry that nobody has claimed of for so long means nothing any more

_log = logging.getLogger("penstock.worker")


class Pacing:
    """Holds tasks until they may start. `deliver` gets those whose time has come, `give_back` those
    that have to wait for longer."""

    def __init__(
        self,
        control: AsyncTable,
        deliver: Callable[[Sequence[Job]], None],
        give_back: Callable[[Sequence[GiveBack]], None],
    ) -> None:
        self._control = control
        self._deliver = deliver
        self._give_back = give_back
        self._held: dict[Job, asyncio.TimerHandle] = {}
        self._claiming: set[asyncio.Task[None]] = set()
        self._lines: dict[str, int] = {}  # when the last of what was given back is to come again
        self.rates: dict[str, tuple[float, float]] = {}

    def take(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Keeps the jobs whose function has a rate; the others are free to start."""
        if not self.rates:
            return jobs
        free: list[Job] = []
        paced: dict[str, list[Job]] = {}
        for job in jobs:
            function = job.call.function
            where = paced.setdefault(function, []) if function in self.rates else free
            where.append(job)
        for function, waiting in paced.items():
            task = asyncio.get_running_loop().create_task(self._claim(function, waiting))
            self._claiming.add(task)
            task.add_done_callback(self._claiming.discard)
        return free

    def tasks(self) -> Iterator[bytes]:
        """Tasks that wait for their start."""
        return (job.call.task for job in self._held)

    def drain(self) -> None:
        """Gives back what has not started."""
        held = list(self._held)
        for timer in self._held.values():
            timer.cancel()
        self._held.clear()
        self._give_back([GiveBack(job) for job in held])

    async def close(self) -> None:
        """Waits for claims that are under way; what they were for is given back by then."""
        await asyncio.gather(*self._claiming, return_exceptions=True)
        self.drain()

    async def _claim(self, function: str, jobs: list[Job]) -> None:
        rate = Rate(*self.rates[function])
        try:
            starts, free_us = await self._claimed(function, rate, len(jobs))
        except PenstockError as error:
            _log.warning("no starts of %s can be claimed now: %s", function, error)
            starts, free_us = [], wall_us() + RACE_DELAY_US
        loop, now_us = asyncio.get_running_loop(), wall_us()
        for job, start_us in zip(jobs, starts, strict=False):
            after_s = max(start_us - now_us, 0) / 1e6
            self._held[job] = loop.call_later(after_s, partial(self._start, job))
        self._line_up(rate, function, jobs[len(starts) :], free_us)

    def _line_up(self, rate: Rate, function: str, jobs: list[Job], free_us: int) -> None:
        """Gives back what got no start, behind what was given back before."""
        now_us = wall_us()
        delays = delays_ms(rate, max(free_us, self._lines.get(function, 0)), now_us, len(jobs))
        if delays:
            self._lines[function] = now_us + delays[-1] * 1000
        self._give_back([GiveBack(job, delay) for job, delay in zip(jobs, delays, strict=True)])

    async def _claimed(self, function: str, rate: Rate, wanted: int) -> tuple[list[int], int]:
        """The starts that are this worker's now, and from when on others are free."""
        key = rate_key(function)
        for _ in range(MAX_RACES):
            entry = await self._control.entry(key)
            free_us = 0 if entry is None else read_free(entry.value)
            now_us = wall_us()
            starts, next_us = claim(rate, free_us, now_us, wanted)
            if not starts:
                return [], free_us
            version = 0 if entry is None else entry.version
            try:
                await self._control.put(key, pack_free(next_us), if_version=version, ttl=KEPT_S)
            except ConflictError:
                continue
            return starts, next_us
        return [], wall_us() + RACE_DELAY_US

    def _start(self, job: Job) -> None:
        del self._held[job]
        self._deliver([job])
