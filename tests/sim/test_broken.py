"""The checkers can fail: one method of the product is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import protocol
from penstock.client.descent import Descent
from penstock.client.ops_table import WatchSubscription
from penstock.client.protocol import Protocol
from penstock.client.requests import Pending, Resend
from penstock.core import queue_rules as rules
from penstock.core.calls import Calls
from penstock.core.changes import Change, Op
from penstock.core.control import Control
from penstock.core.dedupe import IdWindow, Producers
from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.leases import Leases
from penstock.core.partition import Partition
from penstock.core.pushes import Pushes
from penstock.core.queue import QueueShard, Totals
from penstock.core.records import Claimed, Kind
from penstock.core.runs import Run
from penstock.core.table import TableShard
from penstock.core.tables import Tables
from penstock.core.transactions import Transactions
from penstock.core.waiting import Delayed, KeyQueues
from penstock.core.watches import Watcher, Watches
from penstock.engine import foresight
from penstock.engine.maintenance import Maintenance
from penstock.sim import run
from penstock.store import journal, unsynced
from penstock.store.cleaner import Move
from penstock.store.files import Files
from penstock.store.recovery import JournalReader
from penstock.wire.durability import Durability
from penstock.wire.messages import Entry, TxnWrite

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 120
LONGER = {"sessions": 0.25, "growing": 0.5}  # a session ends just before the power; growths


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
    for module in (journal, unsynced):
        patch.setattr(module, "_SYNCED", Durability.REPLICATED + 1)


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


def leases_given_for_less(patch: pytest.MonkeyPatch) -> None:
    give = Leases.give

    def give_less(self: Leases, number: int, run: Any, lease_us: int, now_us: int) -> Any:
        return give(self, number, run, lease_us // 8, now_us)

    patch.setattr(Leases, "give", give_less)


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
    carry_out = Forwards.carry_out

    def some(self: Forwards, part: Any, *rest: Any) -> Any:
        return None if isinstance(part, TxnWrite) else carry_out(self, part, *rest)

    patch.setattr(Forwards, "carry_out", some)


def cut_off_transactions_left_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "carry_out_missing", lambda *_: None)


def files_dropped_too_early(patch: pytest.MonkeyPatch) -> None:
    freed = Files.freed
    patch.setattr(Files, "freed", lambda self, place, length: freed(self, place, 2 * length))


def raised_durability_ignored(patch: pytest.MonkeyPatch) -> None:
    accept = Pushes.accept

    def as_the_queue_says(self: Pushes, shard: Any, stream: Any, *rest: Any) -> Any:
        partition, batch, extra, _, *others = rest
        return accept(self, shard, stream, partition, batch, extra, stream.level, *others)

    patch.setattr(Pushes, "accept", as_the_queue_says)


def held_messages_are_ready(patch: pytest.MonkeyPatch) -> None:
    stored: Any = QueueShard.stored
    patch.setattr(QueueShard, "stored", lambda self, *rest: stored(self, *rest[:-1], None))


def releases_find_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Control, "_release", lambda *_: "unknown")


def released_again_and_again(patch: pytest.MonkeyPatch) -> None:
    release = Control._release

    def always(self: Control, *rest: Any) -> str:
        release(self, *rest)
        return "released"

    patch.setattr(Control, "_release", always)


def ids_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdWindow, "find", lambda *_: None)


def time_to_live_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueShard, "_drop", lambda *_: None)


def time_to_live_of_leased_messages(patch: pytest.MonkeyPatch) -> None:
    settle = QueueShard._settle

    def settle_and_drop(self: QueueShard, change: Change, now_us: int) -> None:
        short = self.options.ttl_ms > 0 and change.op == Op.NACK
        settle(self, change._replace(op=Op.ACK) if short else change, now_us)

    patch.setattr(QueueShard, "_settle", settle_and_drop)


def delays_cut_short(patch: pytest.MonkeyPatch) -> None:
    add = Delayed.add
    patch.setattr(Delayed, "add", lambda self, run, due_us: add(self, run, due_us - 700_000))


def priorities_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueShard, "rank", lambda self, position: (0, -position))


def bound_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pushes, "check_depth", lambda *_: None)


def finished_messages_counted(patch: pytest.MonkeyPatch) -> None:
    finished = Totals.finished
    patch.setattr(
        Totals, "finished", lambda self, messages, *rest: finished(self, messages // 2, *rest)
    )


def purge_spares_what_came_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "purge", lambda queue: [])


def stale_batches_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pushes, "check_placed", Pushes.check_open)


def stale_before_known(patch: pytest.MonkeyPatch) -> None:
    """A resend of what was stored is refused, and so placed anew."""
    push = Pushes._duplicate

    def refuse_first(self: Pushes, shard: Any, stream: Any, batch: Any, extra: Any) -> Any:
        self.check_placed(stream, 0, batch.header)
        return push(self, shard, stream, batch, extra)

    patch.setattr(Pushes, "_duplicate", refuse_first)


def children_begin_anew(patch: pytest.MonkeyPatch) -> None:
    began = Partition.began
    patch.setattr(Partition, "began", lambda self, offset: began(self, 0))


def children_read_before_their_parents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Descent, "_waits", lambda *_: False)


def one_try_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "is_out_of_tries", lambda queue, grant: grant.deliveries > 2)


def dead_letters_come_back(patch: pytest.MonkeyPatch) -> None:
    def return_it(self: QueueShard, run: Run) -> None:
        self.returned.add(Run(run.position, run.mask))

    patch.setattr(QueueShard, "_bury", return_it)


def purged_dead_letters_come_back(patch: pytest.MonkeyPatch) -> None:
    redrive = rules.redrive
    patch.setattr(rules, "redrive", lambda queue, limit, _: redrive(queue, limit, Op.REDRIVE))


def peek_shows_the_held(patch: pytest.MonkeyPatch) -> None:
    waiting = QueueShard.waiting

    def waiting_or_held(self: QueueShard, messages: int) -> list[Run]:
        return [*waiting(self, messages), *self.held.values()]

    patch.setattr(QueueShard, "waiting", waiting_or_held)


def peek_shows_the_delayed(patch: pytest.MonkeyPatch) -> None:
    waiting = QueueShard.waiting

    def waiting_or_delayed(self: QueueShard, messages: int) -> list[Run]:
        return [*waiting(self, messages), *self.delayed.runs.values()]

    patch.setattr(QueueShard, "waiting", waiting_or_delayed)


def some_changes_not_told(patch: pytest.MonkeyPatch) -> None:
    tell = Watches.tell

    def tell_some(self: Watches, stream: int, entries: list[Entry]) -> None:
        tell(self, stream, [entry for entry in entries if entry.version % 7])

    patch.setattr(Watches, "tell", tell_some)


def changes_told_late(patch: pytest.MonkeyPatch) -> None:
    tell = Watches.tell
    kept: list[tuple[int, list[Entry]]] = []

    def tell_later(self: Watches, stream: int, entries: list[Entry]) -> None:
        kept.append((stream, entries))
        if len(kept) > 3:
            while kept:
                tell(self, *kept.pop())

    patch.setattr(Watches, "tell", tell_later)


def lost_events_not_mentioned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatchSubscription, "renewed", lambda _: None)


def stalled_watchers_not_told(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Watches, watcher: Watcher, paused: bool) -> None:
        watcher.paused, watcher.lost = paused, False

    patch.setattr(Watches, "pause", forget)


def entries_outlive_their_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableShard, "keys_of", lambda *_: [])


def sessions_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "keep", lambda self, call: call.session in self.sessions)


def the_end_of_a_session_told_too_soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calls, "_unsafe_control", lambda _: None)


def anybody_may_claim(patch: pytest.MonkeyPatch) -> None:
    def next_token(self: Partition, group: str, *_: Any) -> tuple[int, str | None]:
        claim = self.claims.get(group)
        return (1 if claim is None else claim.token + 1), None

    patch.setattr(Partition, "decide_claim", next_token)


def one_token_for_all(patch: pytest.MonkeyPatch) -> None:
    decide = Partition.decide_claim

    def same(self: Partition, *rest: Any) -> tuple[int, str | None]:
        token, owner = decide(self, *rest)
        return min(token, 1), owner

    patch.setattr(Partition, "decide_claim", same)


def tokens_only_written(patch: pytest.MonkeyPatch) -> None:
    note = Kernel.note

    def written(self: Kernel, shard: Any, noted: Any, level: Durability, *rest: Any) -> Any:
        claimed = isinstance(noted, Claimed)
        return note(self, shard, noted, Durability.WRITTEN if claimed else level, *rest)

    patch.setattr(Kernel, "note", written)


def stale_commits_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check_commit", lambda *_: None)


def states_stay_behind(patch: pytest.MonkeyPatch) -> None:
    committed = Partition.committed

    def keep_the_first(self: Partition, group: str, offset: int, state: bytes = b"") -> None:
        committed(self, group, offset, self.states.get(group, state))

    patch.setattr(Partition, "committed", keep_the_first)


def renewals_do_nothing(patch: pytest.MonkeyPatch) -> None:
    def still_held(self: Partition, group: str, owner: str, token: int, _: int) -> bool:
        claim = self.claims.get(group)
        return claim is not None and (claim.owner, claim.token) == (owner, token)

    patch.setattr(Partition, "renewed", still_held)


def retention_too_eager(patch: pytest.MonkeyPatch) -> None:
    expired = Partition.expired_before
    patch.setattr(
        Partition, "expired_before", lambda self, now_us: expired(self, now_us + 2_000_000)
    )


def size_counted_double(patch: pytest.MonkeyPatch) -> None:
    expired = Partition.expired_before

    def twice(self: Partition, now_us: int) -> int:
        size, self.bytes = self.bytes, 8 * self.bytes
        try:
            return expired(self, now_us)
        finally:
            self.bytes = size

    patch.setattr(Partition, "expired_before", twice)


def nothing_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "expired_before", lambda self, _: self.start)


def the_newest_is_thinned(patch: pytest.MonkeyPatch) -> None:
    thinned = Partition.thinned

    def one_more(self: Partition, base: int, mask: int) -> None:
        stored = self.index.find(base)
        thinned(self, base, mask if stored is None else (1 << stored.span) - 1)

    patch.setattr(Partition, "thinned", one_more)


def a_byte_is_lost_in_cleaning(patch: pytest.MonkeyPatch) -> None:
    apply = Maintenance._apply

    def short(self: Maintenance, moves: list[Move]) -> None:
        apply(self, moves)
        for move in moves:
            self.engine.files.freed(move.new_location, 1)

    patch.setattr(Maintenance, "_apply", short)


# What is broken, the faults, the parts of the workload, and how the finding begins.
def haste_with_another_lease(patch: pytest.MonkeyPatch) -> None:
    """What leaves early names a grant that nobody has."""
    seen = foresight.Foresight._seen

    def other(*given: Any) -> Any:
        found = seen(*given)
        return found and found._replace(
            replies=tuple((to, data[:24] + bytes(8) + data[32:]) for to, data in found.replies)
        )

    patch.setattr(foresight.Foresight, "_seen", other)


def haste_for_whoever_is_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        foresight, "_taker", lambda _, view, *__: (view.waiters or view.subscriptions)[0]
    )


HASTE = [
    (haste_with_another_lease, "none", "written,plain", "the engine raised"),
    (haste_for_whoever_is_first, "none", "written", "the engine raised"),
]
BROKEN: list[tuple[Break, str, str, str]] = [
    (no_dedupe, "net", "plain", "stored twice"),
    (table_writes_without_dedupe, "net", "table", "not linearizable"),
    (new_sequence_for_a_resend, "net", "plain,ordered", "stored twice"),
    (answered_before_the_sync, "crash", "plain,topic", ""),
    (visible_before_the_commit, "crash", "plain,topic", ""),
    (tail_ignored_in_recovery, "crash", "plain,topic", ""),
    (ack_of_any_lease, "none", "plain", "acked twice"),
    (grants_numbered_anew_after_power_loss, "crash", "plain", ""),
    (short_leases, "none", "plain", "delivered again"),
    (leases_given_for_less, "none", "plain", "lease too short"),
    (deliveries_not_counted, "none", "plain", "delivery count"),
    (nack_as_ack, "none", "plain", "lost"),
    (ordered_queue_without_order, "none", "ordered", "out of order"),
    (keys_in_any_order, "none", "ordered", "out of order"),
    (writes_without_precondition, "none", "table", "not linearizable"),
    (deleted_entries_stay, "none", "table", "not linearizable"),
    (commits_forgotten, "none", "topic", "commit"),
    (transactions_without_their_writes, "none", "transactions", "half a transaction"),
    (cut_off_transactions_left_alone, "crash", "transactions", ""),
    (files_dropped_too_early, "none", "plain,transactions", ""),
    (nack_as_ack, "crash", "memory", "lost"),
    (ack_of_any_lease, "none", "memory", "acked twice"),
    (raised_durability_ignored, "crash", "written", "lost"),
    (held_messages_are_ready, "none", "held", "held and delivered"),
    (releases_find_nothing, "none", "held", "held and lost"),
    (released_again_and_again, "none", "held", "released twice"),
    (ids_forgotten_at_once, "none", "ids", "id used twice"),
    (time_to_live_ignored, "none", "expiring", "too old"),
    (time_to_live_of_leased_messages, "none", "expiring", "lost"),
    (delays_cut_short, "none", "scheduled", "too early"),
    (delays_cut_short, "none", "plain", "too early"),
    (priorities_ignored, "none", "urgent", "out of turn"),
    (bound_ignored, "none", "bounded", "over its bound"),
    (finished_messages_counted, "none", "bounded", "refused without a cause"),
    (a_byte_is_lost_in_cleaning, "none", "staged", "node: s-"),
    (purge_spares_what_came_back, "none", "purged", "purged and back"),
    (stale_batches_taken, "none", "growing", "misplaced"),
    (stale_before_known, "all", "growing", "stored twice"),
    (children_begin_anew, "none", "growing", "out of order"),
    (children_read_before_their_parents, "all", "growing", "out of order"),
    (one_try_more, "none", "dead", "one delivery too many"),
    (dead_letters_come_back, "none", "dead", "dead and delivered"),
    (purged_dead_letters_come_back, "none", "dead", "purged and back"),
    (peek_shows_the_held, "none", "held", "peeked"),
    (peek_shows_the_delayed, "none", "scheduled", "peeked"),
    (some_changes_not_told, "none", "watches", "watch missed a change"),
    (changes_told_late, "none", "watches", "watch out of order"),
    (lost_events_not_mentioned, "net", "watches", "watch missed a change"),
    (stalled_watchers_not_told, "net", "watches", "watch missed a change"),
    (entries_outlive_their_session, "none", "sessions", "left behind"),
    (sessions_not_kept, "none", "sessions", "gone too early"),
    (the_end_of_a_session_told_too_soon, "crash,disk", "sessions", "left behind"),
    (anybody_may_claim, "none", "claims", "claimed by two"),
    (one_token_for_all, "none", "claims", "token used twice"),
    (tokens_only_written, "crash", "claims", "token used twice"),
    (stale_commits_accepted, "none", "claims", "stale commit"),
    (states_stay_behind, "none", "claims", "state of another commit"),
    (renewals_do_nothing, "none", "claims", "claimed by two"),
    (retention_too_eager, "none", "retention", "gap"),
    (size_counted_double, "none", "retention", "lost"),
    (nothing_is_trimmed, "none", "retention", "kept too"),
    (the_newest_is_thinned, "none", "latest", "newest lost"),
    *(HASTE if foresight.COMPILED else []),
]


@pytest.mark.parametrize(
    ("broken", "faults", "parts", "expected"),
    BROKEN,
    ids=[f"{broken.__name__}-{expected or parts}" for broken, _, parts, expected in BROKEN],
)
def test_a_broken_core_is_caught(
    broken: Break, faults: str, parts: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    seen: list[str] = []
    minutes = LONGER.get(parts, 0.12)
    for seed in range(1, MAX_SEEDS + 1):
        problems = run(seed, minutes, faults, parts).problems
        if any(problem.startswith(expected) for problem in problems):
            return
        seen += problems
    pytest.fail(f"{MAX_SEEDS} seeds did not notice; they saw {seen[:5]}")
