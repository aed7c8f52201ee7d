"""The blocking shell: what `penstock.connect` gives."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self, overload

from penstock.client import ops_fabric, ops_push, ops_queue, ops_table, ops_topic, transaction
from penstock.client.background import Background
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
from penstock.client.connection import Connection, Dial
from penstock.client.consume import ConsumeState
from penstock.client.inputs import address_of, check_timeout
from penstock.client.messages import LeasedMessage, TopicMessage
from penstock.client.producer import Producer
from penstock.client.settle import SettleRequest, flush_settler
from penstock.client.shells import blocking
from penstock.client.state import (
    FabricState,
    NamedProducerState,
    QueueState,
    TableState,
    TopicState,
)
from penstock.client.subscribe import TopicSubscription
from penstock.client.transport import SocketTransport
from penstock.wire.batch import Batch
from penstock.wire.frames import PROTOCOL_VERSION, PopMode
from penstock.wire.messages import Hello, StreamInfo


def _nothing() -> None:
    """A fabric over a socket owns nothing but the socket."""


def connect(
    url: str, timeout: float = 30.0, namespace: str = "default", name: str = ""
) -> Fabric:
    """Connects to a node: `penstock://host:port` or `host:port`.

    `timeout` is the deadline of every call, in seconds; a lost connection is restored within it.
    `name` is shown in the node's figures. DeadlineError if there is no connection in time.
    """
    host, port = address_of(url)
    dial = functools.partial(SocketTransport, host, port)
    return fabric_over(dial, timeout, namespace, name)


def fabric_over(
    dial: Dial, timeout: float, namespace: str, name: str, on_close: Callable[[], None] = _nothing
) -> Fabric:
    """A fabric over any transport; `dial` is called again when the connection is lost.

    `on_close` is called last when the fabric is closed.
    """
    connection = Connection(dial, Hello(PROTOCOL_VERSION, name), check_timeout(timeout))
    welcome = connection.open()
    identity = secrets.randbits(63) | 1
    producer = Producer(identity, welcome.shards, secrets.randbits(64))
    return Fabric(connection, namespace, producer, on_close)


class Fabric(FabricState):
    """A connection to a fabric. Threads may share it. Close it, or use it as a context manager."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        producer: Producer,
        on_close: Callable[[], None] = _nothing,
    ) -> None:
        super().__init__(namespace, producer)
        self._on_close = on_close
        self._connection = connection
        self._run = connection.run
        self._background = Background(connection)

    def queue(self, name: str, **options: Any) -> Queue:
        """Opens a queue, and creates it if it is not there.

        Options: durability, lease, max_deliveries, max_messages, max_bytes, ttl, ordered (True: the
        whole queue, "key": every key), id_window. ExistsError if it is there with other settings.
        """
        return Queue(self, self._run(ops_fabric.open_stream(self, "queue", name, options)))

    def topic(self, name: str, partitions: int | None = None, **options: Any) -> Topic:
        """Opens a topic, and creates it if it is not there.

        Options: partitions, durability, retention, retention_bytes, keep ("all" or "latest").
        """
        if partitions is not None:
            options["partitions"] = partitions
        return Topic(self, self._run(ops_fabric.open_stream(self, "topic", name, options)))

    def table(self, name: str, **options: Any) -> Table:
        """Opens a table, and creates it if it is not there. Options: durability, max_bytes."""
        return Table(self, self._run(ops_fabric.open_stream(self, "table", name, options)))

    queues = blocking(ops_fabric.queues)
    topics = blocking(ops_fabric.topics)
    tables = blocking(ops_fabric.tables)
    delete_queue = blocking(ops_fabric.delete_queue)
    delete_topic = blocking(ops_fabric.delete_topic)
    delete_table = blocking(ops_fabric.delete_table)
    stats = blocking(ops_fabric.stats)

    def transaction(self) -> Transaction:
        """A transaction; as a context manager it commits on a clean exit."""
        return Transaction(self)

    def session(self, ttl: float = 10.0) -> Session:
        """A session, kept alive in the background: entries bound to it go when it ends."""
        return Session(self, ttl)

    def close(self) -> None:
        """Sends buffered acks, waits for them, and ends the connection."""
        try:
            for settler in self._background.close():
                self._run(flush_settler(settler))
        finally:
            self._connection.close()
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Queue(QueueState):
    """A queue: a shared pool of messages, each delivered to one consumer at a time."""

    def __init__(self, fabric: Fabric, info: StreamInfo) -> None:
        super().__init__(fabric, info)
        self._connection = fabric._connection
        self._settler.send = self._send_settlements
        self._settler.run = fabric._run
        self._settler.attend = fabric._background.attend
        self.dead = DeadLetters(self)

    push = blocking(ops_push.push)
    push_many = blocking(ops_push.push_many)
    ack = blocking(ops_queue.ack_many)
    nack = blocking(ops_queue.nack_many)
    flush = blocking(ops_queue.flush)
    purge = blocking(ops_queue.purge)
    stats = blocking(ops_queue.stats)
    release = blocking(ops_queue.release)
    configure = blocking(ops_queue.configure)
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

    def peek(self, max_messages: int = 1) -> list[LeasedMessage]:
        """The next messages, without a lease: they cannot be acked, and others may get them."""
        return self._peek(max_messages, PopMode.PEEK)

    def _peek(self, max_messages: int, mode: PopMode) -> list[LeasedMessage]:
        granted = self._run(ops_queue.pop_grants(self, max_messages, 0.0, None, mode))
        return LeasedMessage.all_of(granted)

    def consume(
        self,
        idle_timeout: float | None = None,
        prefetch: int = 4000,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> Consumer:
        """Messages as they come; ends after `idle_timeout` seconds without one.

        At most `prefetch` messages are leased ahead. Leaving the loop flushes acks and gives back
        what was not handed out; use `with` to have that done at once when the loop raises.
        """
        state = ConsumeState(self._settler, Message, prefetch, lease, max_messages)
        return Consumer(messages(self._connection, state, idle_timeout))

    def consume_batches(
        self,
        idle_timeout: float | None = None,
        prefetch: int = 4000,
        lease: float | None = None,
        max_messages: int | None = None,
    ) -> BatchConsumer:
        """As `consume`, delivery by delivery."""
        state = ConsumeState(self._settler, Message, prefetch, lease, max_messages)
        return BatchConsumer(deliveries(self._connection, state, idle_timeout))

    def producer(self, name: str) -> NamedProducer:
        """A producer that survives its process; go on after `stored`. Older ones are fenced."""
        info = self._run(ops_push.open_producer(self, name))
        return NamedProducer(self, name, 0, info)

    def _send_settlements(self, requests: list[SettleRequest]) -> None:
        for request in requests:
            self._connection.start(request)


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
    offsets = blocking(ops_topic.offsets)
    offset_at = blocking(ops_topic.offset_at)
    commit = blocking(ops_topic.commit)
    committed = blocking(ops_topic.committed)
    claim = blocking(ops_topic.claim)
    unclaim = blocking(ops_topic.unclaim)
    stats = blocking(ops_topic.stats)
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

        A group goes on where it has committed, and `start` holds where it has not. With `batches`,
        pairs of partition and batch. Nothing is committed unless `commit()` is called.
        """
        state = TopicSubscription(self, group, start, partitions)
        if batches:
            return TopicConsumer(self, state, topic_batches(self._connection, state, idle_timeout))
        return TopicConsumer(self, state, topic_messages(self._connection, state, idle_timeout))

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


class Transaction(transaction.TransactionState):
    """A transaction. As a context manager it commits on a clean exit, else nothing is sent."""

    commit = blocking(transaction.commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._done:
            self.commit()
        self._done = True


class Session:
    """A session, kept alive in the background until `close`. `alive` turns False if it was lost."""

    def __init__(self, fabric: Fabric, ttl: float) -> None:
        self._fabric = fabric
        self.id: int = fabric._run(ops_fabric.open_session(ttl))
        self.alive = True
        self._period_s = ttl / 3
        self._due = time.monotonic() + self._period_s
        fabric._background.add_session(self)

    def keep_due(self, now: float) -> bool:
        """Whether it is time to keep it alive."""
        return self.alive and now >= self._due

    def keep(self) -> None:
        """Keeps it alive; the background does that by itself."""
        self._due = time.monotonic() + self._period_s
        self.alive = self._fabric._run(ops_fabric.keep_session(self.id))

    def close(self) -> None:
        """Ends the session: entries bound to it go now."""
        self._fabric._background.remove_session(self)
        if self.alive:
            self.alive = False
            self._fabric._run(ops_fabric.close_session(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
