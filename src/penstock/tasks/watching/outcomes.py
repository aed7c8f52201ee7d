"""Outcomes that can still be read: those on their way to callers, and those that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.client.aio_streams import AsyncTable, AsyncTopic
from penstock.errors import ProtocolError
from penstock.tasks.envelope import TaskOutcome, read_outcome
from penstock.tasks.names import client_of, reply_partition
from penstock.wire.buffers import Buffer

MAX_OUTCOMES = 100_000  # that are read at a time
MAX_KEPT = 20_000  # of those, from the table
MAX_KEPT_BYTES = 64 << 20
_AT_ONCE = 8  # partitions


class Outcomes:
    """What a task set's replies and results have."""

    def __init__(self, replies: AsyncTopic, results: AsyncTable) -> None:
        self._replies = replies
        self._results = results

    async def find(self, task: bytes) -> TaskOutcome | None:
        """The outcome of a task: kept, or among the last on their way to its client. Where those of
        a task are that its caller has named, only its caller knows."""
        if (outcome := await self.kept(task)) is not None:
            return outcome
        partition = reply_partition(client_of(task))
        start, end = (await self._replies.offsets())[partition]
        return (await self._of_partition(partition, start, end, MAX_OUTCOMES)).get(task)

    async def kept(self, task: bytes) -> TaskOutcome | None:
        """The one in the table."""
        value = await self._results.get(task)
        return None if value is None else _read(value)

    async def kept_ones(self, limit: int = MAX_KEPT) -> dict[bytes, TaskOutcome]:
        """Some of those in the table: the first, in the order of ids."""
        found: dict[bytes, TaskOutcome] = {}
        size = 0
        async for task, value in self._results.items():
            outcome, size = _read(value), size + len(value)
            if outcome is not None:
                found[task] = outcome
            if len(found) >= limit or size > MAX_KEPT_BYTES:
                break
        return found

    async def last(self, limit: int = MAX_OUTCOMES) -> dict[bytes, TaskOutcome]:
        """The last outcomes of every client, at most about `limit`, and some that are kept."""
        bounds = await self._replies.offsets()
        used = [(number, *each) for number, each in enumerate(bounds) if each[1] > each[0]]
        found = await self.kept_ones(min(limit, MAX_KEPT))
        share = max(limit // max(len(used), 1), 1)
        for at in range(0, len(used), _AT_ONCE):
            parts = [self._of_partition(*each, share) for each in used[at : at + _AT_ONCE]]
            for part in await asyncio.gather(*parts):
                found |= part
        return found

    async def _of_partition(
        self, partition: int, start: int, end: int, limit: int
    ) -> dict[bytes, TaskOutcome]:
        found: dict[bytes, TaskOutcome] = {}
        async with self._replies.read(partition, max(start, end - limit)) as batches:
            async for batch in batches:
                found |= _of_rows(batch.keys, batch.values)
                if int(batch.offsets[-1]) + 1 >= end:  # what comes meanwhile is not waited for
                    break
        return found


def _of_rows(
    keys: Iterable[bytes | None], values: Iterable[bytes]
) -> dict[bytes, TaskOutcome]:
    rows = ((key, _read(value)) for key, value in zip(keys, values, strict=True))
    return {key: outcome for key, outcome in rows if key is not None and outcome is not None}


def _read(value: Buffer) -> TaskOutcome | None:
    try:
        return read_outcome(value)
    except ProtocolError:
        return None
