"""Outcomes of this client's tasks, read from its partition of the replies topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.client.aio_streams import AsyncTopic
from penstock.client.ops_topic import FOLLOW_S, PartitionReader, starting_offsets
from penstock.errors import NotFoundError, PenstockError
from penstock.tasks.names import reply_partition
from penstock.tasks.waiting import Waiting
from penstock.wire.batch import Batch

_READ_BYTES = 1 << 20
_PAUSE_S = 0.2  # after an error that may pass
_REST_S = 1.0  # without a question, if nobody waits for anything

_log = logging.getLogger("penstock.tasks")


class Replies:
    """Reads on from the end of the partition as it was at the start. An outage is survived: it
    is read on from the offset that was reached, for as long as outcomes are kept there."""

    def __init__(
        self,
        topic: AsyncTopic,
        waiting: Waiting,
        client: bytes,
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """`missed` is called if outcomes were dropped, as too old, before they could be read."""
        self._topic = topic
        self._waiting = waiting
        self._missed = missed
        self._reader = PartitionReader(topic, reply_partition(client), "end", _READ_BYTES)
        self._resting: asyncio.Future[None] | None = None

    async def locate(self) -> None:
        """Finds the end of the partition; what is published after this will be read."""
        await self._topic._run(self._reader.locate())

    async def run(self) -> None:
        """Takes outcomes in until it is cancelled. If an error will not pass, all who wait are told
        of it, and it ends."""
        while True:
            try:
                batches = await self._batches()
            except PenstockError as error:
                if not error.retriable:
                    self._waiting.fail_all(error)
                    return
                await asyncio.sleep(_PAUSE_S)
                continue
            for batch in batches:
                self._take_in(batch)
            if batches and not len(self._waiting):
                await self._rest()

    @property
    def offset(self) -> int:
        """The next that is to be read."""
        return self._reader.offset or 0

    def skip(self, offset: int) -> None:
        """Nobody waits for what is before this. From any thread: what is being read meanwhile is
        read for nothing."""
        self._reader.offset = max(self.offset, offset)

    @property
    def resting(self) -> bool:
        """Whether nothing is asked for now: `wanted` has to be called if somebody waits."""
        return self._resting is not None

    def wanted(self) -> None:
        """Somebody waits for an outcome again."""
        if self._resting is not None and not self._resting.done():
            self._resting.set_result(None)

    async def _rest(self) -> None:
        """Until somebody waits, or for a moment. The thread that got the last outcome needs this
        one's interpreter to go on: it must not be kept from that by the next question."""
        loop = asyncio.get_running_loop()
        self._resting = loop.create_future()
        timer = loop.call_later(_REST_S, self.wanted)
        try:
            await self._resting
        finally:
            timer.cancel()
            self._resting = None

    def _take_in(self, batch: Batch) -> None:
        """A node does not open what is compressed: that of a stranger may be anything."""
        try:
            self._waiting.take_in(batch.keys, batch.values)
        except PenstockError as error:
            _log.warning("a batch of outcomes cannot be read: %s", error)

    async def _batches(self) -> list[Batch]:
        topic, reader = self._topic, self._reader
        try:
            batches: list[Batch] = await topic._run(reader.read(FOLLOW_S))
        except NotFoundError:  # the offset is gone; or the topic, and then this raises it again
            starts = await topic._run(starting_offsets(topic, "start", [reader.partition]))
            reader.offset = starts[reader.partition]
            self._missed()
            return []
        return batches
