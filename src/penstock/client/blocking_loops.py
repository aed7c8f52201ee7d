"""The loops of the blocking shell: consuming, reading, watching."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.blocking_messages import Delivery, Message
from penstock.client.closing import Closing
from penstock.client.connection import Connection
from penstock.client.consume import ConsumeState
from penstock.client.messages import TopicMessage
from penstock.client.ops_table import WatchState
from penstock.client.ops_topic import FOLLOW_S, PartitionReader
from penstock.client.requests import Subscription
from penstock.client.settle import give_back
from penstock.client.subscribe import TopicSubscription
from penstock.errors import PenstockError
from penstock.wire.batch import Batch
from penstock.wire.messages import Entry

if TYPE_CHECKING:
    from penstock.client.blocking_streams import Table, Topic

T = TypeVar("T")


class Loop(Generic[T], Closing):
    """An iterator that is also a context manager; leaving the loop, or `close`, ends it in order.

    The generator must not refer to this object: a loop left by `break` is then closed at once,
    because nothing holds the generator any more.
    """

    def __init__(self, generator: Generator[T, None, None]) -> None:
        self._generator = generator

    def __iter__(self) -> Iterator[T]:
        return self._generator

    def __next__(self) -> T:
        return next(self._generator)

    def close(self) -> None:
        """Ends the loop; what that means stands where the loop was started."""
        self._generator.close()


class Consumer(Loop[Message]):
    """Messages of a queue as they come; see `Queue.consume`."""


class BatchConsumer(Loop[Delivery]):
    """Deliveries of a queue as they come; see `Queue.consume_batches`."""


def _subscribe(connection: Connection, subscription: Subscription) -> None:
    """Begins it; leaves nothing of it if that fails, or is interrupted."""
    pending = connection.subscribe(subscription)
    try:
        connection.finish(pending)
    except BaseException:
        with suppress(PenstockError):  # what went wrong before counts
            _end(connection, subscription)
        raise


def _end(connection: Connection, subscription: Subscription) -> None:
    connection.cancel(subscription.id)
    connection.unsubscribe(subscription)


def messages(
    connection: Connection, state: ConsumeState[Message], idle_timeout: float | None
) -> Generator[Message, None, None]:
    """Message by message."""
    _subscribe(connection, state.subscription)
    try:
        while _next_delivery(connection, state, idle_timeout):
            state.open()
            while (arrived := state.messages()) is not None:
                if credit := state.credit():
                    connection.credit(state.subscription, credit)
                yield from arrived
    finally:
        _leave(connection, state)


def deliveries(
    connection: Connection, state: ConsumeState[Message], idle_timeout: float | None
) -> Generator[Delivery, None, None]:
    """Delivery by delivery."""
    _subscribe(connection, state.subscription)
    try:
        while _next_delivery(connection, state, idle_timeout):
            granted = state.take()
            if credit := state.credit():
                connection.credit(state.subscription, credit)
            if granted:  # all that it had may be damaged, or another node's by now
                yield Delivery(granted)
    finally:
        _leave(connection, state)


def _next_delivery(
    connection: Connection, state: ConsumeState[Message], idle_timeout: float | None
) -> bool:
    if state.finished:
        return False
    if not state.subscription.inbox:
        wait_s = state.acks_wait_s()
        if wait_s and (idle_timeout is None or wait_s < idle_timeout):
            if connection.arrival(state.subscription, wait_s):
                return True
            state.waited_in_vain()
        state.flush()  # before waiting: nobody knows for how long
    if connection.arrival(state.subscription, idle_timeout):
        return True
    # What is leased to this subscription comes, however long the node takes to read it: to give it
    # back would be to wait for it again, perhaps for ever.
    connection.run(give_back(state.settler, [], fence=True))
    return state.subscription.done and connection.arrival(state.subscription, 0.0)


def _leave(connection: Connection, state: ConsumeState[Message]) -> None:
    if not connection.closed:
        connection.partings.do(partial(_give_up, connection, state))


def _give_up(connection: Connection, state: ConsumeState[Message]) -> None:
    try:
        connection.cancel(state.subscription.id)
        # Its answer comes after every delivery that crossed the cancellation.
        connection.run(give_back(state.settler, state.unhanded(), fence=True))
        if crossed := state.unhanded():
            connection.run(give_back(state.settler, crossed))
    finally:
        connection.unsubscribe(state.subscription)


class PartitionBatches(Loop[Batch]):
    """Batches of a partition; see `Topic.read`."""


def partition_batches(
    connection: Connection, reader: PartitionReader, follow: bool, idle_timeout: float | None
) -> Generator[Batch, None, None]:
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
        batches = connection.run(reader.read(wait_s))
        yield from batches
        if batches:
            idle_since = time.monotonic()
        elif reader.at_end and not follow:
            return


class TopicConsumer(Loop[T]):
    """Messages or batches of several partitions; see `Topic.subscribe`."""

    def __init__(
        self,
        topic: Topic,
        state: TopicSubscription,
        generator: Generator[T, None, None],
    ) -> None:
        self._connection = topic._connection
        self._state = state
        super().__init__(generator)

    def commit(self) -> None:
        """Commits what was handed out, the current message included; durable when it returns."""
        self._connection.run(self._state.commit())

    @property
    def positions(self) -> dict[int, int]:
        """What `commit` would commit: the next offset of each partition with something new."""
        return self._state.positions()


def topic_messages(
    connection: Connection, state: TopicSubscription, idle_timeout: float | None
) -> Generator[TopicMessage, None, None]:
    """Message by message."""
    try:
        connection.run(state.locate())
        while _topic_arrival(connection, state, idle_timeout):
            yield from state.messages()
    finally:
        _leave_topic(connection, state)


def topic_batches(
    connection: Connection, state: TopicSubscription, idle_timeout: float | None
) -> Generator[tuple[int, Batch], None, None]:
    """Batch by batch, with the partition of each."""
    try:
        connection.run(state.locate())
        while _topic_arrival(connection, state, idle_timeout):
            yield state.take()
    finally:
        _leave_topic(connection, state)


def _topic_arrival(
    connection: Connection, state: TopicSubscription, idle_timeout: float | None
) -> bool:
    ends = None if idle_timeout is None else time.monotonic() + idle_timeout
    while not state.arrived:
        seconds = connection.timeout_s if ends is None else max(ends - time.monotonic(), 0.0)
        connection.run(state.fetch(seconds))
        if ends is not None and not state.arrived and time.monotonic() >= ends:
            return False
    return True


def _leave_topic(connection: Connection, state: TopicSubscription) -> None:
    for pending in state.abandoned():
        connection.partings.do(partial(connection.abandon, pending))


class Watcher(Loop[Entry]):
    """Changes to a table; see `Table.watch`."""

    def __init__(self, table: Table, prefix: bytes | str) -> None:
        connection = table._connection
        state = WatchState(table, prefix)
        _subscribe(connection, state.subscription)
        try:
            connection.run(state.baseline())
        except BaseException:  # nobody has it, to close it
            with suppress(PenstockError):
                _end(connection, state.subscription)
            raise
        self._subscription = state.subscription
        self._connection = connection
        super().__init__(_changes(connection, state))

    def close(self) -> None:
        """Stops watching."""
        super().close()
        _end(self._connection, self._subscription)


def _changes(connection: Connection, state: WatchState) -> Generator[Entry, None, None]:
    while connection.arrival(state.subscription, None):
        yield from connection.run(state.changes(state.subscription.inbox.popleft()))
