"""From deliveries to jobs: read, numbered, with what they need from elsewhere."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from penstock.client.aio import AsyncFabric
from penstock.client.aio_messages import AsyncDelivery
from penstock.client.delivery import Part
from penstock.errors import ProtocolError
from penstock.tasks.envelope import Status, read_call, read_outcome
from penstock.tasks.names import CANCEL_PREFIX, cancel_key
from penstock.tasks.streams import OpenStreams
from penstock.tasks.worker.following import follow
from penstock.tasks.worker.jobs import Job
from penstock.wire.messages import Entry

GONE = b""  # instead of an outcome that is not kept any more
MAX_READS = 256  # outcomes that are asked for at a time
MAX_CANCELS = 100_000  # that are remembered for tasks which have not come yet


class Arrivals:
    """Makes jobs of what was leased."""

    def __init__(self, fabric: AsyncFabric, streams: OpenStreams) -> None:
        self._streams = streams
        self._sharded = fabric._routes is not None
        self._jobs = itertools.count(1)
        self._cancelled: dict[bytes, None] = {}

    def jobs_of(
        self, delivery: AsyncDelivery, number: int, popped_us: int
    ) -> tuple[list[Job], list[int]]:
        """The jobs of a delivery, and the rows that are none."""
        jobs: list[Job] = []
        unreadable: list[int] = []
        shards = delivery.shards if self._sharded else itertools.repeat(-1)
        rows = zip(_values_of(delivery), delivery.deliveries, shards, strict=False)
        for row, (value, attempt, shard) in enumerate(rows):
            try:
                call = read_call(value)
            except ProtocolError:
                unreadable.append(row)
                continue
            jobs.append(
                Job(next(self._jobs), number, row, call, value, attempt, popped_us, shard)
            )
        return jobs, unreadable

    def mark_cancelled(self, jobs: Sequence[Job]) -> None:
        """Marks those that nobody wants any more."""
        if self._cancelled:
            for job in jobs:
                job.cancelled = job.call.task in self._cancelled

    async def prepare(self, jobs: Sequence[Job]) -> None:
        """Gives jobs the outcomes of those that they come after; each is read once. Finds out which
        of them are here only because they were cancelled."""
        found: dict[bytes, bytes] = dict.fromkeys(
            (parent for job in jobs for parent in job.call.after), GONE
        )
        parents, get = list(found), self._streams.results.get
        for at in range(0, len(parents), MAX_READS):
            some = parents[at : at + MAX_READS]
            read = await asyncio.gather(*map(get, some))
            found |= {parent: value for parent, value in zip(some, read, strict=True) if value}
        for job in jobs:
            job.parents = [found[parent] for parent in job.call.after]
        await self._look_for_cancels(
            [job for job in jobs if job.call.delay_ms or not all(map(_succeeded, job.parents))]
        )

    async def _look_for_cancels(self, jobs: Sequence[Job]) -> None:
        """Jobs that were delayed, or whose parents have no results, may be here before their time,
        because they were cancelled and so let go. That was written first, but whoever watches for
        it may hear of it later."""
        get = self._streams.control.get
        for at in range(0, len(jobs), MAX_READS):
            some = jobs[at : at + MAX_READS]
            found = await asyncio.gather(*[get(cancel_key(job.call.task)) for job in some])
            for job, cancelled in zip(some, found, strict=True):
                if cancelled is not None:
                    self._cancelled[job.call.task] = None

    async def watch_cancels(self, tell: Callable[[bytes], None]) -> None:
        """Hears of tasks that nobody wants any more, for ever; tells of each."""

        def heard(entry: Entry) -> None:
            task = entry.key.removeprefix(CANCEL_PREFIX)
            if not entry.version:
                self._cancelled.pop(task, None)
                return
            self._cancelled[task] = None
            if len(self._cancelled) > MAX_CANCELS:
                del self._cancelled[next(iter(self._cancelled))]
            tell(task)

        await follow(self._streams.control, CANCEL_PREFIX, heard)


def _succeeded(parent: bytes) -> bool:
    try:
        return parent != GONE and read_outcome(parent).status == Status.DONE
    except ProtocolError:
        return False


def _values_of(delivery: AsyncDelivery) -> list[bytes]:
    """The values; an empty one, which is no task, for every row of a batch that cannot be opened: a
    node does not look into what is compressed."""
    try:
        return delivery.values
    except ProtocolError:
        return [value for part in delivery._granted for value in _values_in(part)]


def _values_in(part: Part) -> Sequence[bytes]:
    try:
        return part.values
    except ProtocolError:
        return [b""] * len(part.positions)
