"""Queues, topics and tables of the asyncio shell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.client import (
    ops_arrow,
    ops_fabric,
    ops_gang,
    ops_group,
    ops_hold,
    ops_push,
    ops_queue,
    ops_reserve,
    ops_table,
    ops_topic,
)
from penstock.client.aio_loops import (
    AsyncBatchConsumer,
    AsyncConsumer,
    AsyncPartitionBatches,
    AsyncTopicConsumer,
    AsyncWatcher,
    deliveries,
    messages,
    partition_batches,
    topic_batches,
    topic_messages,
)
from penstock.client.aio_messages import AsyncDelivery, AsyncMessage
from penstock.client.aio_stages import AsyncQueueStage, AsyncTopicStage
from penstock.client.consume import ConsumeState
from penstock.client.gangs import GangSeat
from penstock.client.messages import LeasedMessage, SeenMessage, TopicMessage
from penstock.client.settle import SettleRequest
from penstock.client.shells import awaitable
from penstock.client.stages import DAY_S
from penstock.client.state import (
    NamedProducerState,
    QueueState,
    TableState,
    TopicState,
)
from penstock.client.subscribe import TopicSubscription
from penstock.errors import LimitError
from penstock.wire.batch import Batch
from penstock.wire.frames import PopMode
from penstock.wire.messages import ReservedPart, StreamInfo

if TYPE_CHECKING:
    from penstock.client.aio import AsyncFabric


class AsyncQueue(QueueState):
    """A queue: a shared pool of messages, each delivered to one consumer at a time."""

    def __init__(self, fabric: AsyncFabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection
        self._settler.send = self._send_settlement
        self._settler.run = fabric._run
        self._settler.attend = fabric._attend
        self.dead = AsyncDeadLetters(self)

    push = awaitable(ops_push.push)
    push_many = awaitable(ops_push.push_many)
    push_arrow = awaitable(ops_arrow.push_arrow)
    push_gang = awaitable(ops_gang.push_gang)
    ack = awaitable(ops_queue.ack_many)
    nack = awaitable(ops_queue.nack_many)
    flush = awaitable(ops_queue.flush)
    purge = awaitable(ops_queue.purge)
    stats = awaitable(ops_queue.stats)
    release = awaitable(ops_queue.release)
    hold = awaitable(ops_hold.hold)
    hold_many = awaitable(ops_hold.hold_many)
    held = awaitable(ops_hold.held)
    reserve = awaitable(ops_reserve.reserve)
    finish = awaitable(ops_reserve.finish)
    unreserve = awaitable(ops_reserve.unreserve)
    reservations = awaitable(ops_reserve.reservations)
    configure = awaitable(ops_fabric.configure)
    delete = awaitable(ops_queue.delete)

    async def pop(
        self,
        timeout: float = 0.0,  # noqa: ASYNC109  # the node waits, not this task
        lease: float | None = None,
    ) -> AsyncMessage | None:
        """One message, leased; None if there is none within `timeout` seconds."""
        found = await self.pop_many(1, timeout, lease)
        return found[0] if found else None

    async def pop_many(
        self,
        max_messages: int = 1000,
        timeout: float = 0.0,  # noqa: ASYNC109  # the node waits, not this task
        lease: float | None = None,
    ) -> list[AsyncMessage]:
        """At most `max_messages` messages, leased; waits only for the first."""
        granted = await self._run(ops_queue.pop_grants(self, max_messages, timeout, lease))
        return AsyncMessage.all_of(granted)

    async def pop_batch(
        self,
        max_messages: int = 1000,
        timeout: float = 0.0,  # noqa: ASYNC109  # the node waits, not this task
        lease: float | None = None,
    ) -> AsyncDelivery | None:
        """As `pop_many`, column by column; None if there are no messages."""
        granted = await self._run(ops_queue.pop_grants(self, max_messages, timeout, lease))
        return AsyncDelivery(granted) if granted else None

    async def park(
        self,
        worker: str,
        address: str = "",
        timeout: float = 0.0,  # noqa: ASYNC109  # the node waits, not this task
    ) -> GangSeat[AsyncMessage] | None:
        """Waits, as a worker of this name, until it is given a place in a gang; None if that is
        not so within `timeout` seconds. See `GangSeat`."""
        found = await self._run(ops_gang.park(self, worker, address, timeout))
        return None if found is None else GangSeat.of(AsyncMessage, *found)

    async def peek(self, max_messages: int = 1) -> list[LeasedMessage]:
        """The next messages, without a lease: they cannot be acked, and others may get them."""
        return await self._peek(max_messages, PopMode.PEEK)

    async def look(self, state: str, max_messages: int = 1000) -> list[SeenMessage]:
        """Messages that no pop gets now: those that are `delayed`, `leased` or `held`, the oldest
        first, each with the time until which it is so. At most about 4 MiB of them per node."""
        return ops_queue.seen(await self._peek(max_messages, ops_queue.looking(state)))

    async def _peek(self, max_messages: int, mode: PopMode) -> list[LeasedMessage]:
        granted = await self._run(ops_queue.pop_grants(self, max_messages, 0.0, None, mode))
        return LeasedMessage.all_of(granted)

    def consume(
        self,
        idle_timeout: float | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> AsyncConsumer:
        """Messages as they come; ends after `idle_timeout` seconds without one.

        Messages are leased ahead: at most `prefetch`, or as many as the loop works off in a
        moment (one at first). Leaving the loop flushes acks and gives back
        what was not handed out; use `async with` to have that done at once.
        """
        state = ConsumeState(
            self._settler, AsyncMessage, prefetch, lease, max_messages,
            ordered=self._ordered != "no",
        )  # fmt: skip
        return AsyncConsumer(messages(self._connection, state, idle_timeout))

    def consume_batches(
        self,
        idle_timeout: float | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> AsyncBatchConsumer:
        """As `consume`, delivery by delivery."""
        state = ConsumeState(
            self._settler, AsyncMessage, prefetch, lease, max_messages,
            ordered=self._ordered != "no",
        )  # fmt: skip
        return AsyncBatchConsumer(deliveries(self._connection, state, idle_timeout))

    def stage(self, expires: float = DAY_S) -> AsyncQueueStage:
        """Somewhere to push what nobody is to see before `publish_staged`; as `Queue.stage`."""
        return AsyncQueueStage(self, expires)

    async def reserved(self, key: str, number: int, part: ReservedPart) -> AsyncIterator[Batch]:
        """The messages of one part of a reservation, as batches; as `Queue.reserved`."""
        reader = ops_reserve.ReservedReader(self, key, number, part)
        while batches := await self._run(reader.next()):
            for each in batches:
                yield each

    async def producer(self, name: str) -> AsyncNamedProducer:
        """A producer that survives its process; go on after `stored`. Older ones are fenced."""
        info = await self._run(ops_push.open_producer(self, name))
        return AsyncNamedProducer(self, name, 0, info)

    def _send_settlement(self, request: SettleRequest) -> None:
        try:
            self._connection.start_now(request)
        except LimitError as error:  # as many as can be are in flight: with the next flush
            request.not_sent(error)


class AsyncDeadLetters:
    """Messages of a queue that were delivered too often, or given up."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue

    async def peek(self, max_messages: int = 1) -> list[LeasedMessage]:
        """The oldest dead letters; they stay."""
        return await self._queue._peek(max_messages, PopMode.PEEK_DEAD)

    async def redrive(self, limit: int = 1000) -> int:
        """Moves at most `limit` of them back to the queue; how many it moved."""
        moved: int = await self._queue._run(ops_queue.redrive(self._queue, limit))
        return moved

    async def purge(self) -> int:
        """Drops them all; how many they were."""
        dropped: int = await self._queue._run(ops_queue.purge_dead(self._queue))
        return dropped


class AsyncNamedProducer(NamedProducerState):
    """A named producer of a queue or of a partition."""

    push = awaitable(ops_push.push)
    push_many = awaitable(ops_push.push_many)


class AsyncTopic(TopicState):
    """A topic: ordered partitions that any number of readers read by offset."""

    def __init__(self, fabric: AsyncFabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection

    publish = awaitable(ops_push.publish)
    publish_many = awaitable(ops_push.publish_many)
    publish_arrow = awaitable(ops_arrow.publish_arrow)
    offsets = awaitable(ops_topic.offsets)
    offset_at = awaitable(ops_topic.offset_at)
    commit = awaitable(ops_group.commit)
    committed = awaitable(ops_group.committed)
    claim = awaitable(ops_group.claim)
    unclaim = awaitable(ops_group.unclaim)
    renew = awaitable(ops_group.renew)
    claims = awaitable(ops_group.claims)
    grow = awaitable(ops_topic.grow)
    refresh = awaitable(ops_topic.refresh)
    family = awaitable(ops_topic.family)
    stats = awaitable(ops_topic.stats)
    configure = awaitable(ops_fabric.configure)
    delete = awaitable(ops_topic.delete)

    def read(
        self,
        partition: int,
        offset: ops_topic.Start = 0,
        follow: bool = False,
        idle_timeout: float | None = None,
        max_bytes: int = 1 << 20,
    ) -> AsyncPartitionBatches:
        """Batches of a partition from an offset on: a number, "start", "end" or a time.

        Ends at the partition's end; with `follow`, after `idle_timeout` seconds without a batch.
        """
        reader = ops_topic.PartitionReader(self, partition, offset, max_bytes)
        batches = partition_batches(self._connection, reader, follow, idle_timeout)
        return AsyncPartitionBatches(batches)

    @overload
    def subscribe(
        self,
        group: str | None = ...,
        start: ops_topic.Start = ...,
        partitions: Sequence[int] | None = ...,
        idle_timeout: float | None = ...,
        batches: Literal[False] = ...,
    ) -> AsyncTopicConsumer[TopicMessage]: ...

    @overload
    def subscribe(
        self,
        group: str | None = ...,
        start: ops_topic.Start = ...,
        partitions: Sequence[int] | None = ...,
        idle_timeout: float | None = ...,
        *,
        batches: Literal[True],
    ) -> AsyncTopicConsumer[tuple[int, Batch]]: ...

    def subscribe(
        self,
        group: str | None = None,
        start: ops_topic.Start = "start",
        partitions: Sequence[int] | None = None,
        idle_timeout: float | None = None,
        batches: bool = False,
    ) -> AsyncTopicConsumer[TopicMessage] | AsyncTopicConsumer[tuple[int, Batch]]:
        """Messages of several partitions (all, unless given) as they come; as `Topic.subscribe`."""
        state = TopicSubscription(self, group, start, partitions)
        if batches:
            pairs = topic_batches(self._connection, state, idle_timeout)
            return AsyncTopicConsumer(self, state, pairs)
        found = topic_messages(self._connection, state, idle_timeout)
        return AsyncTopicConsumer(self, state, found)

    def stage(self, expires: float = DAY_S) -> AsyncTopicStage:
        """Somewhere to publish what nobody is to see before `publish_staged`; as `Topic.stage`."""
        return AsyncTopicStage(self, expires)

    async def producer(self, name: str, partition: int) -> AsyncNamedProducer:
        """A producer that survives its process; it publishes to one partition."""
        chosen = self._check_partition(partition)
        info = await self._run(ops_push.open_producer(self, name, chosen))
        return AsyncNamedProducer(self, name, chosen, info)


class AsyncTable(TableState):
    """A table: entries with versions, kept in the node's memory and made durable by its journal."""

    def __init__(self, fabric: AsyncFabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection

    put = awaitable(ops_table.put)
    append = awaitable(ops_table.append)
    get = awaitable(ops_table.get)
    entry = awaitable(ops_table.entry)
    delete = awaitable(ops_table.delete)
    stats = awaitable(ops_table.stats)
    configure = awaitable(ops_fabric.configure)
    drop = awaitable(ops_table.drop)

    async def items(self, prefix: bytes | str = b"") -> AsyncIterator[tuple[bytes, bytes]]:
        """Keys and values, in the order of keys; read in pages, so no view of one moment."""
        async for page in self._pages(prefix, True):
            for entry in page:
                yield entry.key, entry.value

    async def keys(self, prefix: bytes | str = b"") -> AsyncIterator[bytes]:
        """Keys, in order; read in pages."""
        async for page in self._pages(prefix, False):
            for entry in page:
                yield entry.key

    async def _pages(self, prefix: bytes | str, values: bool) -> AsyncIterator[list[Any]]:
        after: bytes | None = None
        while page := await self._run(ops_table.scan(self, prefix, after, values)):
            yield page
            after = page[-1].key

    async def watch(self, prefix: bytes | str = b"") -> AsyncWatcher:
        """Changes to entries whose key has a prefix, as they happen; as `Table.watch`."""
        return await AsyncWatcher(self, prefix).open()
