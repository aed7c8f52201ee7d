"""The checkers can fail: one method of the product is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import protocol
from penstock.client.protocol import Protocol
from penstock.client.requests import Pending, Resend
from penstock.core.changes import Change, Op
from penstock.core.dedupe import Producers
from penstock.core.kernel import Kernel
from penstock.core.leases import Leases
from penstock.core.partition import Partition
from penstock.core.queue import QueueShard
from penstock.core.records import Kind
from penstock.core.table import TableShard
from penstock.core.tables import Tables
from penstock.core.transactions import Transactions
from penstock.core.waiting import KeyQueues
from penstock.sim import run
from penstock.store.files import Files
from penstock.store.flush import Flush
from penstock.store.journal import Journal
from penstock.store.recovery import JournalReader
from penstock.wire.durability import Durability
from penstock.wire.messages import TxnWrite

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 30


def no_dedupe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "check", lambda *_: None)


def table_writes_without_dedupe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "_answered", lambda *_: None)


def new_sequence_for_a_resend(patch: pytest.MonkeyPatch) -> None:
    prepare = Protocol._prepare

    def prepare_anew(self: Protocol, pending: Pending) -> None:
        if pending.sent and pending.request.resend is Resend.MARKED:
            pending.parts = protocol._framed(pending.request, pending.id)
        else:
            prepare(self, pending)

    patch.setattr(Protocol, "_prepare", prepare_anew)


def answered_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    next_flush = Journal.next_flush

    def without_sync(self: Journal, now_us: int) -> Flush | None:
        flush = next_flush(self, now_us)
        if flush is not None and not any(piece.opening for piece in flush.pieces):
            flush.sync = False
        return flush

    patch.setattr(Journal, "next_flush", without_sync)


def visible_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    log = Kernel.log

    def log_at_once(
        self: Kernel, shard: Any, kind: int, meta: bytes, level: Any, *rest: Any
    ) -> Any:
        push = kind & ~Kind.FORWARDED == Kind.PUSH
        return log(self, shard, kind, meta, Durability.MEMORY if push else level, *rest)

    patch.setattr(Kernel, "log", log_at_once)


def tail_ignored_in_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalReader, "_read_newest", lambda *_: iter(()))


def ack_of_any_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "acked", lambda *_: True)


def grants_numbered_anew_after_power_loss(patch: pytest.MonkeyPatch) -> None:
    restart = Leases.restart
    patch.setattr(Leases, "restart", lambda self, now_us, _: restart(self, now_us, 1))


def short_leases(patch: pytest.MonkeyPatch) -> None:
    extend = Leases.extend
    patch.setattr(Leases, "extend", lambda self, grant, us, now: extend(self, grant, us // 8, now))


def deliveries_not_counted(patch: pytest.MonkeyPatch) -> None:
    give = Leases.give

    def give_as_first(self: Leases, number: int, run: Any, lease_us: int, now_us: int) -> Any:
        run.deliveries = 0
        return give(self, number, run, lease_us, now_us)

    patch.setattr(Leases, "give", give_as_first)


def nack_as_ack(patch: pytest.MonkeyPatch) -> None:
    settle = QueueShard._settle

    def settle_as_ack(self: QueueShard, change: Change, now_us: int) -> None:
        op = Op.ACK if change.op == Op.NACK else change.op
        settle(self, change._replace(op=op), now_us)

    patch.setattr(QueueShard, "_settle", settle_as_ack)


def ordered_queue_without_order(patch: pytest.MonkeyPatch) -> None:
    first_ready = QueueShard.first_ready

    def ignoring_leases(self: QueueShard) -> int | None:
        grants, self.leases.grants = self.leases.grants, {}
        try:
            return first_ready(self)
        finally:
            self.leases.grants = grants

    patch.setattr(QueueShard, "first_ready", ignoring_leases)


def keys_in_any_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyQueues, "add", lambda self, position, _: self.add_hashed(position, position))


def writes_without_precondition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableShard, "check", lambda *_: None)


def deleted_entries_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableShard, "remove", lambda *_: False)


def commits_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "committed", lambda *_: None)


def transactions_without_their_writes(patch: pytest.MonkeyPatch) -> None:
    forward = Transactions._forward

    def some(self: Transactions, part: Any, *rest: Any) -> Any:
        return None if isinstance(part, TxnWrite) else forward(self, part, *rest)

    patch.setattr(Transactions, "_forward", some)


def cut_off_transactions_left_alone(patch: pytest.MonkeyPatch) -> None:
    carry_out = Transactions.carry_out

    def only_new(self: Transactions, *parts: Any, missing: bool = False) -> Any:
        return None if missing else carry_out(self, *parts)

    patch.setattr(Transactions, "carry_out", only_new)


def files_dropped_too_early(patch: pytest.MonkeyPatch) -> None:
    freed = Files.freed
    patch.setattr(Files, "freed", lambda self, place, length: freed(self, place, 2 * length))


BROKEN: list[tuple[Break, str, str]] = [
    (no_dedupe, "net", "stored twice"),
    (table_writes_without_dedupe, "net", "not linearizable"),
    (new_sequence_for_a_resend, "net", "stored twice"),
    (answered_before_the_sync, "crash", ""),
    (visible_before_the_commit, "crash", ""),
    (tail_ignored_in_recovery, "crash", ""),
    (ack_of_any_lease, "none", "acked twice"),
    (grants_numbered_anew_after_power_loss, "crash", ""),
    (short_leases, "none", "delivered again"),
    (deliveries_not_counted, "none", "delivery count"),
    (nack_as_ack, "none", "lost"),
    (ordered_queue_without_order, "none", "out of order"),
    (keys_in_any_order, "none", "out of order"),
    (writes_without_precondition, "none", "not linearizable"),
    (deleted_entries_stay, "none", "not linearizable"),
    (commits_forgotten, "none", "commit"),
    (transactions_without_their_writes, "none", "half a transaction"),
    (cut_off_transactions_left_alone, "crash", ""),
    (files_dropped_too_early, "none", ""),
]


@pytest.mark.parametrize(
    ("broken", "faults", "expected"), BROKEN, ids=[broken.__name__ for broken, _, _ in BROKEN]
)
def test_a_broken_core_is_caught(
    broken: Break, faults: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    seen: list[str] = []
    for seed in range(1, MAX_SEEDS + 1):
        problems = run(seed, 0.12, faults).problems
        if any(problem.startswith(expected) for problem in problems):
            return
        seen += problems
    pytest.fail(f"{MAX_SEEDS} seeds did not notice; they saw {seen[:5]}")
