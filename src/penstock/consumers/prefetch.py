"""Reads a partition ahead of the one who processes it, within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import numpy as np

from penstock.client.aio_streams import AsyncTopic
from penstock.client.ops_topic import PartitionReader, splits_of
from penstock.consumers.fragments import Fragments
from penstock.errors import PenstockError
from penstock.wire.batch import Batch

MAX_FETCHES = 128  # under way at once, of all partitions of a member
PARK_SECONDS = 5.0  # how long the node holds a fetch at the end of a partition
TURN_SECONDS = 0.2  # the same, where there are more partitions than fetches
MIN_FETCH_BYTES = 64 << 10
MAX_FETCH_BYTES = 1 << 20


class FetchRoom:
    """Shared by all partitions of a member: how many fetches are under way, how much is kept."""

    def __init__(self, bytes_of_all: int) -> None:
        self.slots = asyncio.Semaphore(MAX_FETCHES)
        self.readers = 0
        self._bytes_of_all = bytes_of_all

    @property
    def bytes_of_one(self) -> int:
        """What one partition may keep."""
        return max(MIN_FETCH_BYTES, self._bytes_of_all // max(1, self.readers))

    @property
    def park_s(self) -> float:
        """How long a fetch that finds nothing keeps its slot."""
        return PARK_SECONDS if self.readers <= MAX_FETCHES else TURN_SECONDS


class Prefetch:
    """What comes next of a partition. `news` is set whenever something came, or failed."""

    def __init__(
        self, topic: AsyncTopic, partition: int, offset: int, room: FetchRoom, news: asyncio.Event
    ) -> None:
        size = min(MAX_FETCH_BYTES, room.bytes_of_one)
        self._reader = PartitionReader(topic, partition, offset, size)
        self._topic, self._room, self._news = topic, room, news
        self._waiting: deque[tuple[Fragments, int]] = deque()
        self._bytes = 0
        self._taken = asyncio.Event()
        self.splits: list[tuple[int, int]] = []  # of the partition, before what can be taken
        # As of what can be taken: the reader may have read more, while splits are asked for.
        self._passed: int | None = None
        self._at_end = False
        self._error: PenstockError | None = None
        room.readers += 1
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def close(self) -> None:
        """Stops reading."""
        self._room.readers -= 1
        self._task.cancel()
        await asyncio.wait([self._task])

    @property
    def ready(self) -> bool:
        """Whether `take` gives something, or raises."""
        return bool(self._waiting) or self._error is not None

    @property
    def at_end(self) -> bool:
        """Whether the node said that there is nothing more, and all was taken."""
        return self._at_end and not self._waiting

    def has_passed(self, offset: int) -> bool:
        """Whether nothing before an offset can come any more."""
        if self._waiting:
            return int(self._waiting[0][0].offsets[0]) >= offset
        return self._passed is not None and self._passed >= offset

    @property
    def end(self) -> int | None:
        """The end of the partition, as last heard; None: nothing was heard yet."""
        return self._reader.end

    def take(self, rows: int, before: int | None = None) -> Fragments | None:
        """At most so many of the next fragments, of those before an offset; None if there are none
        (yet). What stopped the reading is raised once everything before it was taken."""
        parts: list[Fragments] = []
        while self._waiting and rows > 0:
            part, size = self._waiting[0]
            most = rows if before is None else int(np.searchsorted(part.offsets, before))
            most = min(most, rows)
            if not most:
                break
            self._waiting.popleft()
            if len(part) > most:
                left = size * (len(part) - most) // len(part)
                self._waiting.appendleft((part.cut(most, len(part)), left))
                part, size = part.cut(0, most), size - left
            self._bytes -= size
            rows -= len(part)
            parts.append(part)
        self._taken.set()
        if not parts and not self._waiting and self._error is not None:
            raise self._error
        return joined_fragments(parts)

    async def _read(self) -> None:
        try:
            while True:
                while self._bytes >= self._room.bytes_of_one:
                    self._taken.clear()
                    await self._taken.wait()
                wait_s = self._room.park_s if self._at_end else 0.0
                async with self._room.slots:
                    batches = await self._topic._run(self._reader.read(wait_s))
                    splits = await self._topic._run(splits_of(self._topic, self._reader.partition))
                self._give(batches, splits)
        except PenstockError as error:
            self._error = error
            self._news.set()

    def _give(self, batches: Sequence[Batch], splits: list[tuple[int, int]]) -> None:
        """All that was read can be taken from now on."""
        reader = self._reader
        if batches or splits != self.splits or reader.at_end != self._at_end:
            self._news.set()
        self.splits, self._passed, self._at_end = splits, reader.offset, reader.at_end
        for batch in batches:
            size = len(batch.buffer)
            self._waiting.append((Fragments.of_batch(batch), size))
            self._bytes += size


def joined_fragments(parts: list[Fragments]) -> Fragments | None:
    """All of them, one after the other."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Fragments(
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        np.concatenate([part.times_us for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.arrived_us for part in parts]),
    )
