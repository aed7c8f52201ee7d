"""Transactions: one record in the home shard; what concerns other shards is forwarded from there.

The record holds the whole transaction. Right after it come the records that carry it out, one for
each part, marked with (home, log number, index). If a crash cuts the journal between them, recovery
finds the transaction and carries out the parts that are missing: all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core import queue_rules as rules
from penstock.core.changes import Change, Op, pack_changes
from penstock.core.kernel import Kernel
from penstock.core.pushes import Pushes
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import (
    Committed,
    Forward,
    Kind,
    Removed,
    Written,
    pack_forward,
    pack_note,
)
from penstock.core.runs import window
from penstock.core.shard import Shard, Stream
from penstock.core.tables import Tables
from penstock.core.topics import Topics, check_group
from penstock.errors import InvalidError, LeaseLostError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import PushExtra, Settle, SettleItem, Verb

MAX_PARTS = 10_000
_PLAIN = PushExtra()


class Transactions:
    """Consume, process, produce in one call."""

    def __init__(
        self, kernel: Kernel, queues: Queues, topics: Topics, tables: Tables, pushes: Pushes
    ) -> None:
        self.kernel = kernel
        self.queues = queues
        self.topics = topics
        self.tables = tables
        self.pushes = pushes

    def run(self, connection: int, request: int, txn: m.Transact) -> None:
        """Answers when the whole transaction is safe; on an error nothing was changed."""
        if not 0 <= txn.home < len(self.kernel.shards) or not txn.producer or txn.sequence < 0:
            raise InvalidError("a transaction needs a home shard, a producer and its sequence")
        if not 0 < len(list(_parts(txn))) <= MAX_PARTS:
            raise InvalidError(f"a transaction has 1 to {MAX_PARTS:,} parts")
        home = self.kernel.served(txn.home)
        known = home.producers.check(txn.producer, 0, txn.sequence)
        if known is not None:
            receipt = m.TxnReceipt(txn.home, max(known, 0), True)
            entry = self.kernel.barrier(Durability.SYNCED)
        else:
            self._check(txn)
            if txn.producer not in home.producers.windows:
                home.producers.has_room(self.kernel.now_us)
            level = self._level(txn)
            record = self.kernel.log(home, Kind.TRANSACTION, m.pack(txn), level)
            home.producers.accept(
                txn.producer, 0, txn.sequence, 1, record.number, self.kernel.now_us
            )
            receipt = m.TxnReceipt(txn.home, record.number)
            entry = self.carry_out(txn, home, record.number, level)
        self.kernel.answer_when_safe(
            entry, connection, Verb.CALL, request,
            lambda: self.kernel.answer(connection, Verb.CALL, request, receipt),
        )  # fmt: skip

    def _level(self, txn: m.Transact) -> Durability:
        streams = {part.stream for part in _parts(txn)}
        return max(self.kernel.streams[number].level for number in streams)

    # --- checks ----------------------------------------------------------------------------

    def _check(self, txn: m.Transact) -> None:
        """Raises if any part cannot be done now; changes nothing."""
        taken: dict[tuple[int, int, int], int] = {}
        for ack in txn.acks:
            queue = self._queue_of(ack)
            item = SettleItem(Settle.ACK, ack.shard, ack.count, ack.grant, ack.position, 0)
            change = rules.settle(queue, item, self.kernel.now_us)
            if change is None:
                raise LeaseLostError("a message of this transaction was acknowledged before")
            grant, name = queue.leases.grants[ack.grant], (ack.stream, ack.shard, ack.grant)
            wanted = window(ack.position, ack.count, grant.position)
            if wanted & ~grant.mask or wanted & taken.get(name, 0):
                raise LeaseLostError("a message of this transaction was acknowledged before")
            taken[name] = taken.get(name, 0) | wanted
        for commit in txn.commits:
            check_group(commit.group)
            partition = self.topics.partition(commit.stream, commit.partition)
            partition.check_commit(commit.group, commit.offset, commit.token, self.kernel.now_us)
        for write in txn.writes:
            stream = self.kernel.stream(write.stream, "table")
            self.tables.check_write(stream, write.key, write.value, write.if_version, write.ttl_ms)
        for push in txn.pushes:
            stream, shard, batch = self._target(push)
            if batch.header.producer:
                raise InvalidError("a push inside a transaction has no producer of its own")
            self.pushes.check(stream, shard, batch, _PLAIN)

    def _queue_of(self, ack: m.TxnSettle) -> QueueShard:
        self.kernel.stream(ack.stream, "queue")
        queue = self.queues.view(ack.stream).shards.get(ack.shard)
        if queue is None:
            raise LeaseLostError(f"shard {ack.shard} has no lease of this queue")
        return queue

    def _target(self, push: m.TxnPush) -> tuple[Stream, Shard, Batch]:
        stream = self.pushes.stream(push.stream)
        shard = self.pushes.shard(stream, push.partition, push.shard)
        return stream, shard, Batch.parse(bytearray(push.batch))

    # --- carrying out ----------------------------------------------------------------------

    def carry_out(
        self, txn: m.Transact, home: Shard, number: int, level: Durability, missing: bool = False
    ) -> Entry:
        """Forwards every part that was not; the last entry. Nothing here can be refused."""
        entry = None
        for index, part in enumerate(_parts(txn)):
            forward = Forward(home.id, index, number)
            target = self._shard_of(part)
            if target is None or (missing and target.was_forwarded(forward)):
                continue
            done = self._forward(part, target, forward, level)
            target.forwarded[home.id] = (number, index)
            entry = done or entry
        return entry or self.kernel.barrier(level)

    def _shard_of(self, part: _Part) -> Shard | None:
        stream = self.kernel.streams.get(part.stream)
        if stream is None:  # deleted since
            return None
        if isinstance(part, m.TxnSettle):
            return self.kernel.shards[part.shard]
        if isinstance(part, m.TxnWrite):
            return self.kernel.shard_of(part.key)
        if isinstance(part, m.TxnCommit):
            return self.topics.shard(stream, part.partition)
        return self.pushes.shard(stream, part.partition, part.shard)

    def _forward(
        self, part: _Part, shard: Shard, forward: Forward, level: Durability
    ) -> Entry | None:
        stream = self.kernel.streams[part.stream]
        if isinstance(part, m.TxnPush):
            _, _, batch = self._target(part)
            return self.pushes.accept(shard, stream, part.partition, batch, _PLAIN, level, forward)
        if isinstance(part, m.TxnSettle):
            return self._forward_ack(part, shard, forward, level)
        note: Committed | Written | Removed
        if isinstance(part, m.TxnCommit):
            note = Committed(part.stream, part.partition, part.group, part.offset)
        elif part.value is None:
            note = Removed(part.stream, [part.key])
        else:
            expires_us = self.kernel.now_us + part.ttl_ms * 1000 if part.ttl_ms else 0
            note = Written(part.stream, part.key, part.value, expires_us)
        kind, meta = Kind.NOTE | Kind.FORWARDED, pack_forward(forward, pack_note(note))
        entry = self.kernel.log(shard, kind, meta, level)
        self.tables.fold(shard, stream, note, entry)
        return entry

    def _forward_ack(
        self, ack: m.TxnSettle, shard: Shard, forward: Forward, level: Durability
    ) -> Entry | None:
        queue = shard.queues.get(ack.stream)
        if queue is None or ack.grant not in queue.leases.grants:
            return None
        change = Change(Op.ACK, ack.count, ack.grant, ack.position)
        queue.changed(change, self.kernel.now_us)
        meta = pack_forward(forward, pack_changes(ack.stream, [change]))
        entry = self.kernel.log(shard, Kind.CHANGE | Kind.FORWARDED, meta, level)
        self.queues.arrived(queue)
        return entry


_Part = m.TxnSettle | m.TxnCommit | m.TxnWrite | m.TxnPush


def _parts(txn: m.Transact) -> Iterator[_Part]:
    yield from txn.acks
    yield from txn.commits
    yield from txn.writes
    yield from txn.pushes
