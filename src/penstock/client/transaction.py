"""Transactions: all that was collected commits as one record of the home shard, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from penstock.client.delivery import LeasedBatch
from penstock.client.holding import Edge, Hold, mark_of, part_of
from penstock.client.inputs import (
    check_headers,
    check_name,
    check_stream,
    check_version,
    key_bytes,
    milliseconds,
    moment_us,
)
from penstock.client.messages import LeasedMessage
from penstock.client.ops_group import check_state
from penstock.client.ops_push import terms_of
from penstock.client.producer import shard_of
from penstock.client.push import Place, Terms, now_us
from penstock.client.requests import Resend
from penstock.client.rows import Headers, PushedRows, Rows, RowSource
from penstock.client.sequenced import SequencedRequest, answer_of
from penstock.client.shells import Runs
from penstock.client.state import FabricState, QueueState, TableState, TopicState
from penstock.client.steps import Steps, body_of, decoder
from penstock.errors import ClosedError, InvalidError
from penstock.wire.buffers import Buffer
from penstock.wire.columns import Rows as BatchRows
from penstock.wire.frames import Settle, SettleItem, Verb
from penstock.wire.limits import MAX_TABLE_KEY_BYTES
from penstock.wire.messages import (
    Transact,
    TxnCommit,
    TxnPush,
    TxnReceipt,
    TxnSettle,
    TxnWrite,
    pack,
)

_BATCH = 1000
_read_receipt = decoder(TxnReceipt)


class TransactRequest(SequencedRequest):
    """A transaction. One number of the home shard's sequence makes a resend harmless."""

    __slots__ = ("_fabric", "_transact")

    def __init__(self, fabric: FabricState, transact: Transact) -> None:
        super().__init__(Verb.CALL, [], Resend.MARKED, shard=transact.home)
        self._unsent()
        self._fabric = fabric
        self._transact = transact

    def parts(self) -> list[Buffer]:
        """Takes the number and packs the transaction."""
        lane = self._lane_to_use(self._fabric._producer.lane, self._transact.home)
        self._transact.producer, self._transact.sequence = lane.producer, lane.next
        packed = pack(self._transact)
        self._take(lane, 1)
        return [packed]

    def again(self) -> TransactRequest:
        """The same transaction, under a new number."""
        return TransactRequest(self._fabric, self._transact)


class TransactionState(Runs):
    """Collects the parts of a transaction. Nothing is sent before `commit`."""

    def __init__(self, fabric: FabricState) -> None:
        self._fabric = fabric
        self._run = fabric._run
        self._transact = Transact(0, 0, -1)
        self._homes: dict[int, int] = {}  # precedence of a kind of part -> its first shard
        self._topics: dict[int, TopicState] = {}  # that it publishes to, by id
        self._movable: list[TxnPush] = []  # pushes that may go to any shard
        self._done = False

    def ack(
        self, *acked: LeasedMessage | LeasedBatch, rows: Sequence[int] | BatchRows | None = None
    ) -> None:
        """Acknowledges messages or deliveries when the transaction commits; with `rows`, only
        those rows of each delivery."""
        self._add_settled(Settle.ACK, acked, rows)

    def dead(
        self, *given_up: LeasedMessage | LeasedBatch, rows: Sequence[int] | BatchRows | None = None
    ) -> None:
        """Gives up on messages or deliveries: they are dead letters when the transaction commits.
        With `rows`, only those rows of each delivery."""
        self._add_settled(Settle.DEAD, given_up, rows)

    def _add_settled(
        self,
        op: Settle,
        settled: Iterable[LeasedMessage | LeasedBatch],
        rows: Sequence[int] | BatchRows | None,
    ) -> None:
        self._check_open()
        for each in settled:
            if isinstance(each, LeasedBatch):
                stream, items = each._settler.stream, each._items(op, rows=rows)
            elif isinstance(each, LeasedMessage) and rows is None:
                granted = each._granted
                stream, items = granted.settler.stream, [granted.item(op, each.position, 1)]
            else:
                raise InvalidError(f"only messages and deliveries can be settled, not {each!r}")
            for item in items:
                self._homes.setdefault(0, item.shard)
                self._transact.acks.append(_settled(stream, item))

    def push(
        self,
        queue: QueueState,
        value: bytes,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | float | None = None,
        delay: float = 0.0,
        at: datetime | float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        compression: str = "none",
    ) -> None:
        """Pushes a message when the transaction commits."""
        check_stream("queue", queue, QueueState)
        terms = terms_of(delay, at, ttl, priority, None, compression)
        packed = None if key is None else key_bytes(key)
        place = queue._place_for(packed, None)
        self._add_single(place, value, packed, headers, timestamp, terms)
        self._anywhere(queue)

    def push_many(
        self,
        queue: QueueState,
        values: Iterable[bytes],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> None:
        """Pushes messages when the transaction commits; until then they are held in memory."""
        check_stream("queue", queue, QueueState)
        for rows in RowSource(values, keys, headers, None).batches(_BATCH):
            for place, part in queue._spread(rows):
                self._add_batch(place, part, Terms(), now_us())
                self._anywhere(queue)

    def _anywhere(self, queue: QueueState) -> None:
        """The last push may as well go to another shard, if the queue keeps no order."""
        if queue._ordered == "no":
            self._movable.append(self._transact.pushes[-1])

    def publish(
        self,
        topic: TopicState,
        value: bytes,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: datetime | float | None = None,
        compression: str = "none",
    ) -> None:
        """Publishes a message when the transaction commits."""
        check_stream("topic", topic, TopicState)
        packed = None if key is None else key_bytes(key)
        self._topics[topic.info.id] = topic
        if partition is None:
            place = topic._place_for(packed, None)
        else:
            place = topic._explicit(topic._check_partition(partition))
        terms = terms_of(compression=compression)
        self._add_single(place, value, packed, headers, timestamp, terms)

    def publish_many(
        self,
        topic: TopicState,
        values: Iterable[bytes],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        partition: int | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> None:
        """Publishes messages when the transaction commits, to the partitions of their keys or to
        `partition`; until then they are held in memory."""
        check_stream("topic", topic, TopicState)
        self._topics[topic.info.id] = topic
        target = topic if partition is None else topic._only(topic._check_partition(partition))
        for rows in RowSource(values, keys, headers, None).batches(_BATCH):
            for place, part in target._spread(rows):
                self._add_batch(place, part, Terms(), now_us())

    def _add_single(
        self,
        place: Place,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        timestamp: datetime | float | None,
        terms: Terms,
    ) -> None:
        check_headers(headers)
        rows = Rows([value], None if key is None else [key], None if headers is None else [headers])
        self._add_batch(place, rows, terms, now_us() if timestamp is None else moment_us(timestamp))

    def _add_batch(self, place: Place, rows: PushedRows, terms: Terms, timestamp_us: int) -> None:
        self._check_open()
        batch = rows.encode(
            timestamp_us,
            priority=terms.priority,
            due_us=terms.due_us,
            ttl_ms=terms.ttl_ms,
            compression=terms.compression,
            generation=place.generation,
        )
        self._homes.setdefault(3, place.shard)
        self._transact.pushes.append(
            TxnPush(place.stream, place.partition, place.shard, bytes(batch))
        )

    def put(
        self,
        table: TableState,
        key: bytes | str,
        value: bytes,
        *,
        if_version: int | None = None,
        ttl: float | None = None,
        mark: str = "ok",
    ) -> None:
        """Writes an entry when the transaction commits; `if_version` must hold then. `mark`: see
        `Table.put`."""
        if not isinstance(value, bytes):
            raise InvalidError(f"a value must be bytes, not {type(value).__name__}")
        self._add_write(table, key, value, if_version, ttl, mark_of(mark))

    def delete(self, table: TableState, key: bytes | str, *, if_version: int | None = None) -> None:
        """Deletes an entry when the transaction commits; `if_version` must hold then."""
        self._add_write(table, key, None, if_version, None)

    def _add_write(
        self,
        table: TableState,
        key: bytes | str,
        value: bytes | None,
        if_version: int | None,
        ttl: float | None,
        mark: int = 0,
    ) -> None:
        self._check_open()
        check_stream("table", table, TableState)
        packed = key_bytes(key, MAX_TABLE_KEY_BYTES)
        ttl_ms = 0 if ttl is None else max(milliseconds("ttl", ttl), 1)
        shard = shard_of(packed, self._fabric.shards)
        self._homes.setdefault(4 if if_version is None else 2, shard)
        self._transact.writes.append(
            TxnWrite(table.info.id, packed, value, check_version(if_version), ttl_ms, mark)
        )

    def hold(
        self,
        queue: QueueState,
        value: bytes,
        *,
        id: bytes | str,
        after: Sequence[Edge] = (),
        on_failure: str = "fail",
        fallback: TransactionState | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        ttl: float | None = None,
        priority: int = 0,
    ) -> None:
        """Stores a message when the transaction commits, held as by `Queue.hold`."""
        self._check_open()
        check_stream("queue", queue, QueueState)
        message = Hold(value, id, after, on_failure, fallback, key, headers, ttl, priority)
        part = part_of(queue, message)
        self._homes.setdefault(5, shard_of(part.id, self._fabric.shards))
        self._transact.holds.append(part)

    def commit_offset(
        self,
        topic: TopicState,
        group: str,
        partition: int,
        offset: int,
        token: int = 0,
        state: bytes = b"",
    ) -> None:
        """Commits the next offset that a group will read, and its state there (as `Topic.commit`),
        when the transaction commits."""
        self._check_open()
        check_stream("topic", topic, TopicState)
        chosen = topic._check_partition(partition)
        self._homes.setdefault(1, topic.info.placement[chosen])
        self._transact.commits.append(
            TxnCommit(topic.info.id, chosen, check_name(group), offset, token, check_state(state))
        )

    def _gather(self, home: int) -> None:
        """What may be in any shard goes to the home: there it need not be forwarded."""
        for push in self._movable:
            push.shard = home

    def _check_open(self) -> None:
        if self._done:
            raise ClosedError("the transaction has ended", advice="Start another one.")


def _settled(stream: int, item: SettleItem) -> TxnSettle:
    mask = item.mask.to_bytes((item.count + 7) // 8, "little") if item.mask else b""
    return TxnSettle(stream, item.shard, item.grant, item.position, item.count, item.op, mask)


def commit(transaction: TransactionState) -> Steps[TxnReceipt | None]:
    """Commits: all or nothing. Durable when it returns; None if there was nothing to do.

    LeaseLostError, FencedError or ConflictError: a lease, a claim or a version does not hold any
    more, and nothing was changed. In a cluster, what concerns other shards than the first that is
    checked is seen there a moment later; InvalidError if another one would have to be checked, but
    for acks.
    """
    transaction._check_open()
    transaction._done = True
    homes, transact = transaction._homes, transaction._transact
    if not homes:
        return None
    transact.home = homes[min(homes)]
    if transaction._fabric._routes is not None:
        transaction._gather(transact.home)
    answer = yield from answer_of(TransactRequest(transaction._fabric, transact))
    receipt: TxnReceipt = _read_receipt(body_of(answer))
    if receipt.stale:
        for topic in transaction._topics.values():
            yield from topic._look(transact.home)
    return receipt
