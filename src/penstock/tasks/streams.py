"""The streams of a task set, opened, and made by whoever comes first: caller or worker."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from penstock.client.aio import AsyncFabric
from penstock.client.aio_streams import AsyncQueue, AsyncTable, AsyncTopic
from penstock.errors import NotFoundError
from penstock.tasks.names import REPLY_PARTITIONS, REPLY_RETENTION_S, streams_of

# Workers count attempts, and decide when a task is dead; the queue must not do so before them.
_MAX_DELIVERIES = 1_000_000


class OpenStreams(NamedTuple):
    """The streams of one task set, on one event loop. See `names.TaskStreams` for what they are."""

    queue: AsyncQueue
    replies: AsyncTopic
    results: AsyncTable
    control: AsyncTable


async def open_streams(
    fabric: AsyncFabric, task_set: str, durability: str | None = None, create: bool = True
) -> OpenStreams:
    """Opens all of them, and creates those that are not there: NotFoundError, if not `create`.
    ExistsError if they are there with another durability than the one that is asked for."""
    names = streams_of(task_set)
    if not create:
        return await _open_existing(fabric, task_set)
    options: dict[str, Any] = {} if durability is None else {"durability": durability}
    return OpenStreams(
        *await asyncio.gather(
            fabric.queue(names.queue, max_deliveries=_MAX_DELIVERIES, **options),
            fabric.topic(
                names.replies, REPLY_PARTITIONS, retention=REPLY_RETENTION_S, **options
            ),
            fabric.table(names.results, **options),
            fabric.table(names.control, **options),
        )
    )


async def _open_existing(fabric: AsyncFabric, task_set: str) -> OpenStreams:
    names = streams_of(task_set)
    try:
        return OpenStreams(
            await fabric.queue(names.queue, create=False),
            await fabric.topic(names.replies, create=False),
            await fabric.table(names.results, create=False),
            await fabric.table(names.control, create=False),
        )
    except NotFoundError:
        raise NotFoundError(
            f"there is no task set {task_set!r}",
            advice="It is made by the first worker, or the first who submits a task.",
        ) from None
