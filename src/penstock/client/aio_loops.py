"""The loops of the asyncio shell: consuming, reading, watching."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from penstock.client.aio_connection import AsyncConnection
from penstock.client.aio_messages import AsyncDelivery, AsyncMessage
from penstock.client.closing import AsyncClosing
from penstock.client.consume import ConsumeState
from penstock.client.messages import TopicMessage
from penstock.client.ops_table import WatchState
from penstock.client.ops_topic import FOLLOW_S, PartitionReader
from penstock.client.requests import Subscription
from penstock.client.settle import give_back
from penstock.client.subscribe import TopicSubscription
from penstock.wire.batch import Batch
from penstock.wire.messages import Entry

if TYPE_CHECKING:
    from penstock.client.aio_streams import AsyncTable, AsyncTopic

T = TypeVar("T")


class AsyncLoop(Generic[T], AsyncClosing):
    """An asynchronous iterator that is also a context manager; `close` ends it in order.

    Without `async with`, a loop left by `break` is ended by the event loop, a little later.
    """

    def __init__(self, generator: AsyncGenerator[T, None]) -> None:
        self._generator = generator

    def __aiter__(self) -> AsyncIterator[T]:
        return self._generator

    async def __anext__(self) -> T:
        return await anext(self._generator)

    async def close(self) -> None:
        """Ends the loop; what that means stands where the loop was started."""
        await self._generator.aclose()


class AsyncConsumer(AsyncLoop[AsyncMessage]):
    """Messages of a queue as they come; see `AsyncQueue.consume`."""


class AsyncBatchConsumer(AsyncLoop[AsyncDelivery]):
    """Deliveries of a queue as they come; see `AsyncQueue.consume_batches`."""


async def _subscribe(connection: AsyncConnection, subscription: Subscription) -> None:
    """Begins it; leaves nothing of it if that fails, or whoever waits for it is cancelled."""
    pending = connection.subscribe(subscription)
    try:
        await connection.finish(pending)
    except BaseException:
        connection.cancel(subscription.id)
        _forget(connection, subscription)
        raise


def _forget(connection: AsyncConnection, subscription: Subscription) -> None:
    """Nobody takes anything from it any more: what it has is as late as what still comes."""
    connection.unsubscribe(subscription)
    while subscription.inbox:
        subscription.arrived_late(subscription.inbox.popleft())


async def messages(
    connection: AsyncConnection, state: ConsumeState[AsyncMessage], idle_timeout: float | None
) -> AsyncGenerator[AsyncMessage, None]:
    """Message by message."""
    await _subscribe(connection, state.subscription)
    try:
        while await _next_delivery(connection, state, idle_timeout):
            state.open()
            while (arrived := state.messages()) is not None:
                if credit := state.credit():
                    connection.credit(state.subscription, credit)
                for message in arrived:
                    yield message
    finally:
        await _leave(connection, state)


async def deliveries(
    connection: AsyncConnection, state: ConsumeState[AsyncMessage], idle_timeout: float | None
) -> AsyncGenerator[AsyncDelivery, None]:
    """Delivery by delivery."""
    await _subscribe(connection, state.subscription)
    try:
        while await _next_delivery(connection, state, idle_timeout):
            granted = state.take()
            if credit := state.credit():
                connection.credit(state.subscription, credit)
            if granted:  # all that it had may be damaged, or another node's by now
                yield AsyncDelivery(granted)
    finally:
        await _leave(connection, state)


async def _next_delivery(
    connection: AsyncConnection, state: ConsumeState[AsyncMessage], idle_timeout: float | None
) -> bool:
    if state.finished:
        return False
    if not state.subscription.inbox:
        wait_s = state.acks_wait_s()
        if wait_s and (idle_timeout is None or wait_s < idle_timeout):
            if await connection.arrival(state.subscription, wait_s):
                return True
            state.waited_in_vain()
        state.flush()  # before waiting: nobody knows for how long
    if await connection.arrival(state.subscription, idle_timeout):
        return True
    # What is leased to this subscription comes, however long the node takes to read it: to give it
    # back would be to wait for it again, perhaps for ever.
    await connection.run(give_back(state.settler, [], fence=True))
    return state.subscription.done and await connection.arrival(state.subscription, 0.0)


async def _leave(connection: AsyncConnection, state: ConsumeState[AsyncMessage]) -> None:
    if connection.closed:
        return
    try:
        connection.cancel(state.subscription.id)
        # Its answer comes after every delivery that crossed the cancellation.
        await connection.run(give_back(state.settler, state.unhanded(), fence=True))
        if crossed := state.unhanded():
            await connection.run(give_back(state.settler, crossed))
    finally:
        _forget(connection, state.subscription)


class AsyncPartitionBatches(AsyncLoop[Batch]):
    """Batches of a partition; see `AsyncTopic.read`."""


async def partition_batches(
    connection: AsyncConnection, reader: PartitionReader, follow: bool, idle_timeout: float | None
) -> AsyncGenerator[Batch, None]:
    """Batches from the reader's offset on."""
    idle_since = time.monotonic()
    while True:
        wait_s = 0.0
        if follow and reader.at_end:
            wait_s = FOLLOW_S
            if idle_timeout is not None:
                wait_s = min(wait_s, idle_since + idle_timeout - time.monotonic())
                if wait_s <= 0:
                    return
        batches = await connection.run(reader.read(wait_s))
        for batch in batches:
            yield batch
        if batches:
            idle_since = time.monotonic()
        elif reader.at_end and not follow:
            return


class AsyncTopicConsumer(AsyncLoop[T]):
    """Messages or batches of several partitions; see `AsyncTopic.subscribe`."""

    def __init__(
        self, topic: AsyncTopic, state: TopicSubscription, generator: AsyncGenerator[T, None]
    ) -> None:
        self._connection = topic._connection
        self._state = state
        super().__init__(generator)

    async def commit(self) -> None:
        """Commits what was handed out, the current message included; durable when it returns."""
        await self._connection.run(self._state.commit())

    @property
    def positions(self) -> dict[int, int]:
        """What `commit` would commit: the next offset of each partition with something new."""
        return self._state.positions()


async def topic_messages(
    connection: AsyncConnection, state: TopicSubscription, idle_timeout: float | None
) -> AsyncGenerator[TopicMessage, None]:
    """Message by message."""
    try:
        await connection.run(state.locate())
        while await _topic_arrival(connection, state, idle_timeout):
            for message in state.messages():
                yield message
    finally:
        _leave_topic(connection, state)


async def topic_batches(
    connection: AsyncConnection, state: TopicSubscription, idle_timeout: float | None
) -> AsyncGenerator[tuple[int, Batch], None]:
    """Batch by batch, with the partition of each."""
    try:
        await connection.run(state.locate())
        while await _topic_arrival(connection, state, idle_timeout):
            yield state.take()
    finally:
        _leave_topic(connection, state)


async def _topic_arrival(
    connection: AsyncConnection, state: TopicSubscription, idle_timeout: float | None
) -> bool:
    ends = None if idle_timeout is None else time.monotonic() + idle_timeout
    while not state.arrived:
        seconds = connection.timeout_s if ends is None else max(ends - time.monotonic(), 0.0)
        await connection.run(state.fetch(seconds))
        if ends is not None and not state.arrived and time.monotonic() >= ends:
            return False
    return True


def _leave_topic(connection: AsyncConnection, state: TopicSubscription) -> None:
    for pending in state.abandoned():
        connection.abandon(pending)


class AsyncWatcher(AsyncLoop[Entry]):
    """Changes to a table; see `AsyncTable.watch`."""

    def __init__(self, table: AsyncTable, prefix: bytes | str) -> None:
        self._connection = table._connection
        self._state = WatchState(table, prefix)
        super().__init__(_changes(self._connection, self._state))

    async def open(self) -> Self:
        """Begins to watch."""
        await _subscribe(self._connection, self._state.subscription)
        try:
            await self._connection.run(self._state.baseline())
        except BaseException:  # nobody has it, to close it
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Stops watching."""
        await super().close()
        self._connection.cancel(self._state.subscription.id)
        _forget(self._connection, self._state.subscription)


async def _changes(connection: AsyncConnection, state: WatchState) -> AsyncGenerator[Entry, None]:
    while await connection.arrival(state.subscription, None):
        for entry in await connection.run(state.changes(state.subscription.inbox.popleft())):
            yield entry
