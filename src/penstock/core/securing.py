"""Leases of other shards that a transaction is about to end.

An ack can be checked only where the lease is. One outside the home shard is secured before the
transaction has a record: its lease is made so long that the ack, which the outbox brings later,
still finds it. After that nothing but the consumer itself can end it, for `SECURED_US`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.core import queue_rules as rules
from penstock.core.changes import Change, Op, pack_changes
from penstock.core.kernel import Kernel
from penstock.core.leases import Grant
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import Kind
from penstock.core.runs import bits_of
from penstock.core.shard import Shard
from penstock.core.tickets import Tickets
from penstock.errors import (
    InvalidError,
    LeaseLostError,
    MovedError,
    PenstockError,
    UnavailableError,
)
from penstock.wire import messages as m
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Settle

SECURED_US = 300_000_000  # so long the home may be unreachable after the commit
MAX_WAITING = 10_000  # questions of one node
WAIT_US = 2_000_000  # for the answer

Answered = Callable[[PenstockError | None], None]
Taken = dict[tuple[int, int, int], int]  # by stream, shard and grant: messages that acks name


class ToSecure(NamedTuple):
    """What the owner of a shard is asked: acks that are to come, or, with `undo`, that are not."""

    ticket: int
    shard: int
    acks: list[m.TxnSettle]
    undo: bool = False


class Securing:
    """Both sides: asking the owners of other shards, and answering them."""

    def __init__(self, kernel: Kernel, queues: Queues) -> None:
        self.kernel = kernel
        self.queues = queues
        self.questions: list[ToSecure] = []  # for whoever carries them to other nodes
        late = MovedError("the owner of a shard of this transaction cannot be reached now")
        self.tickets: Tickets[int, PenstockError | None] = Tickets(
            kernel, late, WAIT_US, MAX_WAITING
        )

    # --- the home's side -------------------------------------------------------------------

    def secure(self, acks: list[m.TxnSettle], then: Answered) -> None:
        """Asks for all of them; `then` gets None, or what is wrong with one. What was secured for
        nothing gets its usual lease again, also where the answer has not come: it may be late."""
        shards: dict[int, list[m.TxnSettle]] = {}
        for ack in acks:
            shards.setdefault(ack.shard, []).append(ack)
        self.tickets.check_room(len(shards))
        waiting = len(shards)
        wrong: PenstockError | None = None

        def answered(error: PenstockError | None) -> None:
            nonlocal waiting, wrong
            waiting -= 1
            wrong = wrong or error
            if not waiting:
                if wrong is not None:
                    self.undo(acks)
                then(wrong)

        for shard, own in shards.items():
            ticket = self.tickets.add(shard, answered)
            self.questions.append(ToSecure(ticket, shard, own))

    def undo(self, acks: list[m.TxnSettle]) -> None:
        """The acks will not come. Nobody waits for an answer: it only ends the leases sooner, and
        does nothing to one that was not secured. Whatever else is on its way to such a lease has as
        long as the lease usually lasts."""
        for shard in {ack.shard for ack in acks}:
            own = [ack for ack in acks if ack.shard == shard]
            self.questions.append(ToSecure(0, shard, own, undo=True))

    def answered(self, ticket: int, error: PenstockError | None) -> None:
        """What the owner of a shard says."""
        self.tickets.answered(ticket, error)

    # --- the side of the lease -------------------------------------------------------------

    def check(self, ack: m.TxnSettle, taken: Taken) -> None:
        """LeaseLostError if a message of an ack is not leased any more, or an earlier ack has it;
        what it names is added to `taken`."""
        queue = self._queue_of(ack)
        self._check_level(ack)
        item = ack.item()
        change = rules.settle(queue, item, self.kernel.now_us)
        if change is None:
            raise LeaseLostError("a message of this transaction was acknowledged before")
        grant, name = queue.leases.grants[ack.grant], (ack.stream, ack.shard, ack.grant)
        wanted = bits_of(item.position, item.count, item.mask, grant.position)
        if wanted & ~grant.mask or wanted & taken.get(name, 0):
            raise LeaseLostError("a message of this transaction was acknowledged before")
        taken[name] = taken.get(name, 0) | wanted

    def _check_level(self, ack: m.TxnSettle) -> None:
        plain = ack.op == Settle.ACK and not ack.mask
        if not plain and self.kernel.is_old:
            raise UnavailableError(
                "not all nodes of the cluster know how a transaction settles part of a lease yet",
                advice="Upgrade the other nodes; this is possible as soon as all know it.",
            )

    def _queue_of(self, ack: m.TxnSettle) -> QueueShard:
        self.kernel.stream(ack.stream, "queue")
        queue = self.queues.view(ack.stream).shards.get(ack.shard)
        if queue is None:
            raise LeaseLostError(f"shard {ack.shard} has no lease of this queue")
        return queue

    def take(self, question: ToSecure, then: Answered) -> None:
        """Secures leases of a shard that this node serves; `then` is called when that is safe."""
        shard = self.kernel.served(question.shard)
        if question.undo:
            self._undo(shard, question.acks)
            return
        if any(ack.shard != shard.id for ack in question.acks) or not question.acks:
            raise InvalidError("acks of another shard")
        taken: Taken = {}
        for ack in question.acks:
            self.check(ack, taken)
        entry = None
        for stream, _, number in taken:
            grant = shard.queues[stream].leases.grants[number]
            if grant.deadline_us - self.kernel.now_us < SECURED_US:
                entry = self._extend(shard, stream, grant, SECURED_US)
        if entry is None:
            entry = self.kernel.shard_barrier(shard, Durability.REPLICATED)
        entry.answer, entry.failed = lambda: then(None), then

    def _undo(self, shard: Shard, acks: list[m.TxnSettle]) -> None:
        for stream, number in {(ack.stream, ack.grant) for ack in acks}:
            queue, known = shard.queues.get(stream), self.kernel.streams.get(stream)
            grant = None if queue is None else queue.leases.grants.get(number)
            if grant is not None and known is not None and grant.lease_us == SECURED_US:
                self._extend(shard, stream, grant, known.options.lease_ms * 1000)

    def _extend(self, shard: Shard, stream: int, grant: Grant, lease_us: int) -> Entry:
        change = Change(Op.EXTEND, grant.span, grant.number, grant.position, lease_us)
        queue = shard.queues[stream]
        queue.changed(change, self.kernel.now_us)
        self.queues.arrived(queue)
        meta = pack_changes(stream, [change])
        return self.kernel.log(shard, Kind.CHANGE, meta, Durability.REPLICATED)
