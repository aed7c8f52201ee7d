"""Transactions: one record in the home shard; what concerns other shards is forwarded from there.

The record holds the whole transaction. On a node that stands alone the records that carry it out
come right after it, one for each part, marked with (home, log number, index). If a crash cuts the
journal between them, recovery finds the transaction and carries out what is missing.

In a cluster only parts in the home shard come right after it. The others wait in its outbox until
the record is committed, and are forwarded then: nothing is done elsewhere for a record that might
be lost. What could be refused elsewhere is therefore refused before there is a record, or, as
with leases, made sure of (`securing`).
"""

from __future__ import annotations

from functools import partial

from penstock.core.edges import Edges
from penstock.core.forwards import PLAIN, Forwards
from penstock.core.groups import Groups
from penstock.core.kernel import Kernel
from penstock.core.outbox import TxnPart, parts_of
from penstock.core.pushes import Pushes
from penstock.core.records import Forward, Kind, Outgoing, pack_outgoing
from penstock.core.securing import Securing, Taken
from penstock.core.shard import Shard
from penstock.core.tables import Tables
from penstock.core.topics import Topics
from penstock.errors import InvalidError, LimitError, PenstockError, TooLargeError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import Verb
from penstock.wire.limits import MAX_FRAME_BYTES

MAX_PARTS = 10_000
MAX_OUTGOING_BYTES = MAX_FRAME_BYTES - (64 << 10)  # other nodes get the record in one frame
MAX_BEHIND = 1000  # transactions of one producer that wait for an earlier one


class Transactions:
    """Consume, process, produce in one call."""

    def __init__(
        self, kernel: Kernel, topics: Topics, groups: Groups, tables: Tables, pushes: Pushes,
        forwards: Forwards, securing: Securing, edges: Edges,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.topics = topics
        self.groups = groups
        self.tables = tables
        self.pushes = pushes
        self.forwards = forwards
        self.securing = securing
        self.edges = edges
        # By home and producer: what waits behind a transaction whose leases are being secured.
        self._behind: dict[tuple[int, int], list[tuple[int, int, m.Transact]]] = {}

    def run(self, connection: int, request: int, txn: m.Transact) -> None:
        """Answers when the whole transaction is safe; on an error nothing was changed."""
        if not 0 <= txn.home < len(self.kernel.shards) or not txn.producer or txn.sequence < 0:
            raise InvalidError("a transaction needs a home shard, a producer and its sequence")
        if not 0 < len(parts_of(txn)) <= MAX_PARTS:
            raise InvalidError(f"a transaction has 1 to {MAX_PARTS:,} parts")
        behind = self._behind.get((txn.home, txn.producer))
        if behind is None:
            self._begin(connection, request, txn)
        elif len(behind) < MAX_BEHIND:
            behind.append((connection, request, txn))
        else:
            raise LimitError(f"{MAX_BEHIND} transactions of this producer wait already")

    def _begin(self, connection: int, request: int, txn: m.Transact) -> None:
        away: list[m.TxnSettle] = []
        if self.kernel.forwarding:
            home = self.kernel.served(txn.home)
            if home.producers.check(txn.producer, 0, txn.sequence) is None:
                away = [ack for ack in txn.acks if ack.shard != txn.home]
        if not away:
            self._finish(connection, request, txn)
            return
        key = txn.home, txn.producer
        secured = partial(self._secured, connection, request, txn, away)
        self.securing.secure(away, secured)
        self._behind[key] = []  # so that its sequence stays in order

    def _secured(
        self, connection: int, request: int, txn: m.Transact, away: list[m.TxnSettle],
        error: PenstockError | None,
    ) -> None:  # fmt: skip
        """Leases in other shards will last; or one is lost."""
        try:
            if error is not None:
                raise error
            self._finish(connection, request, txn)
        except PenstockError as refusal:
            if error is None:
                self.securing.undo(away)
            self.kernel.fail(connection, Verb.CALL, request, refusal)
        for later in self._behind.pop((txn.home, txn.producer)):
            try:
                self.run(*later)
            except PenstockError as refusal:
                self.kernel.fail(later[0], Verb.CALL, later[1], refusal)

    def _finish(self, connection: int, request: int, txn: m.Transact) -> None:
        home = self.kernel.served(txn.home)
        known = home.producers.check(txn.producer, 0, txn.sequence)
        if known is not None:
            receipt = m.TxnReceipt(txn.home, max(known, 0), True)
            entry = self._barrier(home)
        else:
            if txn.producer not in home.producers.windows:
                home.producers.has_room(self.kernel.now_us)
            entry, number = self.commit(txn, home, secured=True)
            receipt = m.TxnReceipt(txn.home, number, stale=any(map(self._is_stale, txn.pushes)))
        # Those who wait for what it publishes have waited for longer than whoever made it.
        self.kernel.answer_when_safe(
            entry, connection, Verb.CALL, request,
            lambda: self.kernel.answer(connection, Verb.CALL, request, receipt), in_turn=True,
        )  # fmt: skip

    def _is_stale(self, push: m.TxnPush) -> bool:
        layout = self.kernel.streams[push.stream].layout
        if layout is None:
            return False
        return Batch.parse(push.batch, verify=False).header.generation < layout.generation

    def _barrier(self, home: Shard) -> Entry:
        if self.kernel.shared:
            return self.kernel.shard_barrier(home, Durability.REPLICATED)
        return self.kernel.barrier(Durability.SYNCED)

    def commit(
        self, txn: m.Transact, home: Shard, secured: bool = False
    ) -> tuple[Entry, int]:
        """Checks a transaction and logs it in its home, which this node serves: what to wait for,
        and its log number. On an error nothing was changed. In a cluster the node itself may have
        one, without a producer. `secured`: acks outside the home have been checked."""
        parts = parts_of(txn)
        targets = [self._place_of(part) for part in parts]
        self._check(txn, parts, targets, secured)
        level = max([self.kernel.streams[part.stream].level for part in parts])
        if self.kernel.forwarding:
            return self.log_outgoing(Outgoing(targets, txn), home, level)
        self.forwards.carry_out_all(home)  # what came before must be done before
        record = self.kernel.log(home, Kind.TRANSACTION, m.pack(txn), level)
        home.producers.accept(txn.producer, 0, txn.sequence, 1, record.number, self.kernel.now_us)
        last: Entry | None = None
        for index, (part, target) in enumerate(zip(parts, targets, strict=True)):
            forward = Forward(home.id, index, record.number)
            shard = self.kernel.shards[target]
            last = self.forwards.carry_out(part, shard, forward, level) or last
        return last or self.kernel.barrier(level), record.number

    def log_outgoing(
        self, outgoing: Outgoing, home: Shard, level: Durability
    ) -> tuple[Entry, int]:
        """Logs what leaves a home, which has been checked: what to wait for, and its log number.
        LimitError if too much is on its way already, TooLargeError if it cannot be replicated."""
        if any(target != home.id for target in outgoing.targets):
            home.outbox.has_room()
            # Targets remember its log number: no other record may ever have that.
            level = Durability.REPLICATED
        packed = pack_outgoing(outgoing)
        if len(packed) > MAX_OUTGOING_BYTES:
            raise TooLargeError(f"a transaction of {len(packed):,} bytes cannot be replicated")
        record = self.kernel.log(home, Kind.OUTGOING, packed, level)
        home.outgoing(outgoing, record.number, self.kernel.now_us)
        record.done = lambda _: self.forwards.wake(home)
        return self.forwards.carry_out_own(home, level) or record, record.number

    # --- checks ----------------------------------------------------------------------------

    def _place_of(self, part: TxnPart) -> int:
        """The number of the shard that a part concerns."""
        if isinstance(part, m.TxnSettle):
            self.kernel.stream(part.stream, "queue")
            if not 0 <= part.shard < len(self.kernel.shards):
                raise InvalidError(f"shard {part.shard}: there are {len(self.kernel.shards)}")
            return part.shard
        if isinstance(part, m.TxnWrite):
            return self.kernel.place_of(part.key)
        if isinstance(part, m.TxnHold):
            return self.kernel.place_of(part.id)
        if isinstance(part, m.TxnCommit):
            return self.topics.place(self.kernel.stream(part.stream, "topic"), part.partition)
        return self.pushes.place(self.pushes.stream(part.stream), part.partition, part.shard)

    def _check(
        self, txn: m.Transact, parts: list[TxnPart], targets: list[int], secured: bool
    ) -> None:
        """Raises if any part cannot be done now; changes nothing."""
        taken: Taken = {}
        self.edges.check_number(txn.holds)
        for part, target in zip(parts, targets, strict=True):
            away = self.kernel.forwarding and target != txn.home
            if not away:
                self.kernel.served(target)
            if isinstance(part, m.TxnWrite):
                self._check_write(part, away)
            elif isinstance(part, m.TxnPush):
                self._check_push(part, target, away)
            elif isinstance(part, m.TxnHold):
                self.edges.check(part, target, away)
            elif isinstance(part, m.TxnSettle):
                if away and not secured:
                    raise _elsewhere("an ack")
                if not away:
                    self.securing.check(part, taken)
            elif away:
                if not self._is_seed(part, txn.home):
                    raise _elsewhere("an offset")
            else:
                self.groups.check_commit(
                    part.stream, part.partition, part.group, part.offset, part.token, part.state
                )

    def _is_seed(self, commit: m.TxnCommit, home: int) -> bool:
        """Whether an offset in another shard need not be checked: it is the first of a group in a
        child of a partition of this home, and counts there only if it is."""
        stream = self.kernel.stream(commit.stream, "topic")
        if stream.layout is None or commit.token:
            return False
        parent = stream.layout.parents[commit.partition]
        return parent is not None and stream.info.placement[parent] == home

    def _check_write(self, write: m.TxnWrite, away: bool) -> None:
        stream = self.kernel.stream(write.stream, "table")
        self.tables.check_entry(write.key, write.value, write.ttl_ms)
        self.edges.check_mark(write.mark)
        if not away:
            self.tables.check_room(stream, write.key, write.value, write.if_version)
        elif write.if_version is not None:
            raise _elsewhere("a write with a version")

    def _check_push(self, push: m.TxnPush, target: int, away: bool) -> None:
        stream, batch = self.pushes.stream(push.stream), Batch.parse(push.batch)
        if batch.header.producer:
            raise InvalidError("a push inside a transaction has no producer of its own")
        self.pushes.check(stream, target, batch, PLAIN)
        if not away:
            self.pushes.check_depth(stream, batch)
            if stream.info.kind == "topic":
                self.pushes.check_open(stream, push.partition, batch.header)

    # --- on a node that stands alone -------------------------------------------------------

    def carry_out_missing(
        self, txn: m.Transact, home: Shard, number: int, level: Durability
    ) -> None:
        """After a restart: carries out every part that was not. Nothing here can be refused."""
        for index, part in enumerate(parts_of(txn)):
            if part.stream not in self.kernel.streams:  # deleted since
                continue
            forward = Forward(home.id, index, number)
            target = self.kernel.shards[self._place_of(part)]
            if not target.was_forwarded(forward):
                self.forwards.carry_out(part, target, forward, level)


def _elsewhere(what: str) -> InvalidError:
    return InvalidError(
        f"{what} of this transaction is in another shard than its home, where it cannot be checked",
        advice="In a cluster, use one transaction for each shard that something is checked in.",
    )
