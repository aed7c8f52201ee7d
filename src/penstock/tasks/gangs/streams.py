"""The streams that gangs need, opened, and made by whoever comes first: caller or worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue
from penstock.tasks.gangs.member import DEFAULT_TIMES
from penstock.tasks.names import streams_of
from penstock.tasks.streams import OpenStreams, open_streams

# Workers count attempts, and decide when a gang is given up; the queue must not do so before them.
_MAX_DELIVERIES = 1_000_000


class GangStreams(NamedTuple):
    """The streams of one task set, on one event loop, and its queue of gangs."""

    gangs: AsyncQueue
    others: OpenStreams


async def open_gangs(
    fabric: AsyncFabric, task_set: str, durability: str | None = None,
    lease_s: float = DEFAULT_TIMES.lease_s,
) -> GangStreams:  # fmt: skip
    """Opens them, and creates those that are not there. ExistsError if they are there with another
    durability or lease than is asked for."""
    options: dict[str, Any] = {} if durability is None else {"durability": durability}
    gangs = await fabric.queue(
        streams_of(task_set).gangs, gangs=True, max_deliveries=_MAX_DELIVERIES,
        lease=lease_s, **options,
    )  # fmt: skip
    return GangStreams(gangs, await open_streams(fabric, task_set, durability))
