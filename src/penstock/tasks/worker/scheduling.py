"""Submitting the runs of schedules. Every worker does it; the ids see to it that one task comes of
every run."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec

from penstock.client.aio_streams import AsyncQueue, AsyncTable
from penstock.errors import ConflictError, PenstockError, ProtocolError
from penstock.tasks.envelope import encode, read_call
from penstock.tasks.schedules.schedule import (
    SCHEDULE_PREFIX,
    Schedule,
    due,
    last_key,
    read_schedule,
    run_id,
)
from penstock.tasks.worker.following import follow
from penstock.tasks.worker.running import wall_us
from penstock.wire.messages import Entry

LATE_US = 60_000_000  # a run that nobody has submitted for so long was missed
MAX_WAIT_S = 60.0  # clocks are set now and then
PAUSE_S = 1.0

_log = logging.getLogger("penstock.worker")


class Scheduling:
    """The schedules of one task set, as far as this worker has heard of them."""

    def __init__(self, queue: AsyncQueue, control: AsyncTable) -> None:
        self._queue = queue
        self._control = control
        self._schedules: dict[str, Schedule] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Submits runs when they are due, for ever; raises what does not pass."""
        following = asyncio.create_task(follow(self._control, SCHEDULE_PREFIX, self._heard))
        following.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                self._changed.clear()
                if following.done():
                    following.result()
                wait_s = await self._submit_due()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait_s)
        finally:
            following.cancel()

    def _heard(self, entry: Entry) -> None:
        name = entry.key.removeprefix(SCHEDULE_PREFIX).decode(errors="replace")
        self._schedules.pop(name, None)
        if entry.version:
            try:
                self._schedules[name] = read_schedule(entry.value)
            except ProtocolError as error:
                _log.error("schedule %r: %s", name, error)
        self._changed.set()

    async def _submit_due(self) -> float:
        """Submits all that is due; how many seconds there are until the next."""
        wait_s = MAX_WAIT_S
        for name, schedule in list(self._schedules.items()):
            try:
                next_us = await self._submit(name, schedule)
            except PenstockError as error:
                _log.warning("runs of schedule %r are not submitted now: %s", name, error)
                next_us = wall_us() + int(PAUSE_S * 1e6)
            if next_us is not None:
                wait_s = min(wait_s, max(next_us - wall_us(), 0) / 1e6)
        return wait_s

    async def _submit(self, name: str, schedule: Schedule) -> int | None:
        entry = await self._control.entry(last_key(name))
        last_us = schedule.begins_us if entry is None else int(entry.value)
        runs, next_us = due(schedule, max(last_us, schedule.begins_us), wall_us(), LATE_US)
        if not runs:
            return next_us
        for run_us in runs:
            task = run_id(name, run_us)
            call = msgspec.structs.replace(
                read_call(schedule.call), task=task, submitted_us=wall_us()
            )
            await self._queue.push(encode(call), id=task)
        with suppress(ConflictError):  # another worker was as fast
            version = 0 if entry is None else entry.version
            await self._control.put(last_key(name), b"%d" % runs[-1], if_version=version)
        return next_us
