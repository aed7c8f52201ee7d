"""Queues, topics and tables of the blocking shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from penstock.client.blocking_loops import (
    BatchConsumer,
    Consumer,
    PartitionBatches,
    TopicConsumer,
    Watcher,
    deliveries,
    messages,
    partition_batches,
    topic_batches,
    topic_messages,
)
from penstock.client.blocking_messages import Delivery, Message
from penstock.client.blocking_stages import QueueStage, TopicStage
from penstock.client.consume import ConsumeState
from penstock.client.gangs import GangSeat
from penstock.client.messages import LeasedMessage, SeenMessage, TopicMessage
from penstock.client.shells import blocking
from penstock.client.stages import DAY_S
from penstock.client.state import (
    NamedProducerState,
    QueueState,
    TableState,
    TopicState,
)
from penstock.client.subscribe import TopicSubscription
from penstock.wire.batch import Batch
from penstock.wire.frames import PopMode
from penstock.wire.messages import ReservedPart, StreamInfo

if TYPE_CHECKING:
    from penstock.client.blocking import Fabric


class Queue(QueueState):
    """A queue: a shared pool of messages, each delivered to one consumer at a time."""

    def __init__(self, fabric: Fabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection
        self._settler.send = fabric._connection.start
        self._settler.run = fabric._run
        self._settler.attend = fabric._background.attend
        self.dead = DeadLetters(self)

    push = blocking(ops_push.push)
    push_many = blocking(ops_push.push_many)
    push_arrow = blocking(ops_arrow.push_arrow)
    push_gang = blocking(ops_gang.push_gang)
    ack = blocking(ops_queue.ack_many)
    nack = blocking(ops_queue.nack_many)
    flush = blocking(ops_queue.flush)
    purge = blocking(ops_queue.purge)
    stats = blocking(ops_queue.stats)
    release = blocking(ops_queue.release)
    hold = blocking(ops_hold.hold)
    hold_many = blocking(ops_hold.hold_many)
    held = blocking(ops_hold.held)
    reserve = blocking(ops_reserve.reserve)
    finish = blocking(ops_reserve.finish)
    unreserve = blocking(ops_reserve.unreserve)
    reservations = blocking(ops_reserve.reservations)
    configure = blocking(ops_fabric.configure)
    delete = blocking(ops_queue.delete)

    def pop(self, timeout: float = 0.0, lease: float | None = None) -> Message | None:
        """One message, leased; None if there is none within `timeout` seconds."""
        found = self.pop_many(1, timeout, lease)
        return found[0] if found else None

    def pop_many(
        self, max_messages: int = 1000, timeout: float = 0.0, lease: float | None = None
    ) -> list[Message]:
        """At most `max_messages` messages, leased; waits only for the first."""
        granted = self._run(ops_queue.pop_grants(self, max_messages, timeout, lease))
        return Message.all_of(granted)

    def pop_batch(
        self, max_messages: int = 1000, timeout: float = 0.0, lease: float | None = None
    ) -> Delivery | None:
        """As `pop_many`, column by column; None if there are no messages."""
        granted = self._run(ops_queue.pop_grants(self, max_messages, timeout, lease))
        return Delivery(granted) if granted else None

    def park(
        self, worker: str, address: str = "", timeout: float = 0.0
    ) -> GangSeat[Message] | None:
        """Waits, as a worker of this name, until it is given a place in a gang; None if that is
        not so within `timeout` seconds. See `GangSeat`."""
        found = self._run(ops_gang.park(self, worker, address, timeout))
        return None if found is None else GangSeat.of(Message, *found)

    def peek(self, max_messages: int = 1) -> list[LeasedMessage]:
        """The next messages, without a lease: they cannot be acked, and others may get them."""
        return self._peek(max_messages, PopMode.PEEK)

    def look(self, state: str, max_messages: int = 1000) -> list[SeenMessage]:
        """Messages that no pop gets now: those that are `delayed`, `leased` or `held`, the oldest
        first, each with the time until which it is so. At most about 4 MiB of them per node."""
        return ops_queue.seen(self._peek(max_messages, ops_queue.looking(state)))

    def _peek(self, max_messages: int, mode: PopMode) -> list[LeasedMessage]:
        granted = self._run(ops_queue.pop_grants(self, max_messages, 0.0, None, mode))
        return LeasedMessage.all_of(granted)

    def consume(
        self,
        idle_timeout: float | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> Consumer:
        """Messages as they come; ends after `idle_timeout` seconds without one, unless the node is
        just then reading some for this loop: those are waited for.

        Messages are leased ahead: at most `prefetch`, or as many as the loop works off in a
        moment (one at first). Leaving the loop flushes acks and gives back
        what was not handed out; use `with` to have that done at once when the loop raises.
        """
        state = ConsumeState(
            self._settler, Message, prefetch, lease, max_messages, ordered=self._ordered != "no"
        )
        return Consumer(messages(self._connection, state, idle_timeout))

    def consume_batches(
        self,
        idle_timeout: float | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> BatchConsumer:
        """As `consume`, delivery by delivery."""
        state = ConsumeState(
            self._settler, Message, prefetch, lease, max_messages, ordered=self._ordered != "no"
        )
        return BatchConsumer(deliveries(self._connection, state, idle_timeout))

    def stage(self, expires: float = DAY_S) -> QueueStage:
        """Somewhere to push what nobody is to see before `Fabric.publish_staged`. It is dropped
        `expires` seconds after the last push, unless it is published before."""
        return QueueStage(self, expires)

    def reserved(self, key: str, number: int, part: ReservedPart) -> Iterator[Batch]:
        """The messages of one part of a reservation, as batches; any client may read them, as often
        as it likes. NotFoundError if the reservation is finished or was released."""
        reader = ops_reserve.ReservedReader(self, key, number, part)
        while batches := self._run(reader.next()):
            yield from batches

    def producer(self, name: str) -> NamedProducer:
        """A producer that survives its process; go on after `stored`. Older ones are fenced."""
        info = self._run(ops_push.open_producer(self, name))
        return NamedProducer(self, name, 0, info)


class DeadLetters:
    """Messages of a queue that were delivered too often, or given up."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def peek(self, max_messages: int = 1) -> list[LeasedMessage]:
        """The oldest dead letters; they stay."""
        return self._queue._peek(max_messages, PopMode.PEEK_DEAD)

    def redrive(self, limit: int = 1000) -> int:
        """Moves at most `limit` of them back to the queue; how many it moved."""
        moved: int = self._queue._run(ops_queue.redrive(self._queue, limit))
        return moved

    def purge(self) -> int:
        """Drops them all; how many they were."""
        dropped: int = self._queue._run(ops_queue.purge_dead(self._queue))
        return dropped


class NamedProducer(NamedProducerState):
    """A named producer of a queue or of a partition."""

    push = blocking(ops_push.push)
    push_many = blocking(ops_push.push_many)


class Topic(TopicState):
    """A topic: ordered partitions that any number of readers read by offset."""

    def __init__(self, fabric: Fabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection

    publish = blocking(ops_push.publish)
    publish_many = blocking(ops_push.publish_many)
    publish_arrow = blocking(ops_arrow.publish_arrow)
    offsets = blocking(ops_topic.offsets)
    offset_at = blocking(ops_topic.offset_at)
    commit = blocking(ops_group.commit)
    committed = blocking(ops_group.committed)
    claim = blocking(ops_group.claim)
    unclaim = blocking(ops_group.unclaim)
    renew = blocking(ops_group.renew)
    claims = blocking(ops_group.claims)
    grow = blocking(ops_topic.grow)
    refresh = blocking(ops_topic.refresh)
    family = blocking(ops_topic.family)
    stats = blocking(ops_topic.stats)
    configure = blocking(ops_fabric.configure)
    delete = blocking(ops_topic.delete)

    def read(
        self,
        partition: int,
        offset: ops_topic.Start = 0,
        follow: bool = False,
        idle_timeout: float | None = None,
        max_bytes: int = 1 << 20,
    ) -> PartitionBatches:
        """Batches of a partition from an offset on: a number, "start", "end" or a time.

        Ends at the partition's end; with `follow`, after `idle_timeout` seconds without a batch.
        """
        reader = ops_topic.PartitionReader(self, partition, offset, max_bytes)
        batches = partition_batches(self._connection, reader, follow, idle_timeout)
        return PartitionBatches(batches)

    @overload
    def subscribe(
        self,
        group: str | None = ...,
        start: ops_topic.Start = ...,
        partitions: Sequence[int] | None = ...,
        idle_timeout: float | None = ...,
        batches: Literal[False] = ...,
    ) -> TopicConsumer[TopicMessage]: ...

    @overload
    def subscribe(
        self,
        group: str | None = ...,
        start: ops_topic.Start = ...,
        partitions: Sequence[int] | None = ...,
        idle_timeout: float | None = ...,
        *,
        batches: Literal[True],
    ) -> TopicConsumer[tuple[int, Batch]]: ...

    def subscribe(
        self,
        group: str | None = None,
        start: ops_topic.Start = "start",
        partitions: Sequence[int] | None = None,
        idle_timeout: float | None = None,
        batches: bool = False,
    ) -> TopicConsumer[TopicMessage] | TopicConsumer[tuple[int, Batch]]:
        """Messages of several partitions (all, unless given) as they come.

        A group goes on where it has committed, and `start` (as in `read`, or an offset for each
        partition by itself) holds where it has not. With `batches`, pairs of partition and batch.
        Nothing is committed unless `commit()` is called.
        """
        state = TopicSubscription(self, group, start, partitions)
        if batches:
            return TopicConsumer(self, state, topic_batches(self._connection, state, idle_timeout))
        return TopicConsumer(self, state, topic_messages(self._connection, state, idle_timeout))

    def stage(self, expires: float = DAY_S) -> TopicStage:
        """Somewhere to publish what nobody is to see before `Fabric.publish_staged`. It is dropped
        `expires` seconds after the last message, unless it is published before."""
        return TopicStage(self, expires)

    def producer(self, name: str, partition: int) -> NamedProducer:
        """A producer that survives its process; it publishes to one partition."""
        chosen = self._check_partition(partition)
        info = self._run(ops_push.open_producer(self, name, chosen))
        return NamedProducer(self, name, chosen, info)


class Table(TableState):
    """A table: entries with versions, kept in the node's memory and made durable by its journal."""

    def __init__(self, fabric: Fabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection

    put = blocking(ops_table.put)
    append = blocking(ops_table.append)
    get = blocking(ops_table.get)
    entry = blocking(ops_table.entry)
    delete = blocking(ops_table.delete)
    stats = blocking(ops_table.stats)
    configure = blocking(ops_fabric.configure)
    drop = blocking(ops_table.drop)

    def items(self, prefix: bytes | str = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, in the order of keys; read in pages, so no view of one moment."""
        for page in self._pages(prefix, True):
            yield from ((entry.key, entry.value) for entry in page)

    def keys(self, prefix: bytes | str = b"") -> Iterator[bytes]:
        """Keys, in order; read in pages."""
        for page in self._pages(prefix, False):
            yield from (entry.key for entry in page)

    def _pages(self, prefix: bytes | str, values: bool) -> Iterator[list[Any]]:
        after: bytes | None = None
        while page := self._run(ops_table.scan(self, prefix, after, values)):
            yield page
            after = page[-1].key

    def watch(self, prefix: bytes | str = b"") -> Watcher:
        """Changes to entries whose key has a prefix, as they happen; version 0 means deleted.

        Watching has begun when it returns. If events are lost, the watcher reads anew and reports
        what is different, so the last state of every key is always seen.
        """
        return Watcher(self, prefix)
