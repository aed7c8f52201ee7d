"""The streams that gangs need, opened, and made by whoever comes first: caller or worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue
from penstock.errors import NotFoundError
from penstock.tasks.names import streams_of
from penstock.tasks.streams import OpenStreams, open_streams

LEASE_S = 30.0  # if all members of a gang die at once, it is granted again after so long
# Workers count attempts, and decide when a gang is given up; the queue must not do so before them.
_MAX_DELIVERIES = 1_000_000


class GangStreams(NamedTuple):
    """The streams of one task set, on one event loop, and its queue of gangs."""

    gangs: AsyncQueue
    others: OpenStreams

    @property
    def lease_s(self) -> float:
        """Of gangs, as their queue has it."""
        return self.gangs.options.lease_ms / 1000


async def open_gangs(
    fabric: AsyncFabric, task_set: str, durability: str | None = None
) -> GangStreams:
    """Opens them, and creates those that are not there. ExistsError if they are there with another
    durability than the one that is asked for."""
    gangs = await open_gang_queue(fabric, task_set, durability)
    return GangStreams(gangs, await open_streams(fabric, task_set, durability))


async def open_gang_queue(
    fabric: AsyncFabric, task_set: str, durability: str | None = None
) -> AsyncQueue:
    """The queue alone. One that is there keeps the lease that it has."""
    name = streams_of(task_set).gangs
    options: dict[str, Any] = {} if durability is None else {"durability": durability}
    try:
        return await fabric.queue(name, create=False, **options)
    except NotFoundError:
        options |= {"gangs": True, "max_deliveries": _MAX_DELIVERIES, "lease": LEASE_S}
        return await fabric.queue(name, **options)
