"""The checkers of a cluster can fail: one thing is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from penstock.client import protocol
from penstock.client.protocol import Protocol
from penstock.client.requests import Pending, Resend
from penstock.cluster import members, places
from penstock.cluster.commands import ShrinkInSync
from penstock.cluster.map import ShardPlace
from penstock.cluster.replication import owner
from penstock.cluster.replication.follower import Followed
from penstock.cluster.replication.messages import Accepted
from penstock.cluster.replication.owner import Owned
from penstock.cluster.view import View
from penstock.core import forwards, steals
from penstock.core.dedupe import IdWindow, Producers
from penstock.core.growing import Growing
from penstock.core.pushes import Pushes
from penstock.core.queue import QueueShard
from penstock.core.records import Outgoing
from penstock.core.shard import Shard
from penstock.core.steals import Loot
from penstock.engine.consensus_log import ConsensusLog
from penstock.engine.member import Member
from penstock.engine.replicas import Replicas
from penstock.sim import run
from penstock.wire.entry import Entry

Break = Callable[[pytest.MonkeyPatch], None]


def no_dedupe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "check", lambda *_: None)


def ids_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdWindow, "find", lambda *_: None)


def new_sequence_for_a_resend(patch: pytest.MonkeyPatch) -> None:
    prepare = Protocol._prepare

    def prepare_anew(self: Protocol, pending: Pending) -> None:
        if pending.sent and pending.request.resend is Resend.MARKED:
            pending.parts = protocol._framed(pending.request, pending.id)
        else:
            prepare(self, pending)

    patch.setattr(Protocol, "_prepare", prepare_anew)


def acknowledged_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owned, "_waited_for", lambda _: [])


def acknowledged_before_the_followers_sync(patch: pytest.MonkeyPatch) -> None:
    accepted = Owned.accepted

    def at_once(self: Owned, node: int, message: Accepted, now_us: int) -> None:
        accepted(self, node, message._replace(synced=message.received), now_us)

    patch.setattr(Owned, "accepted", at_once)


def acknowledged_before_the_owner_syncs(patch: pytest.MonkeyPatch) -> None:
    appended = Owned.appended

    def at_once(self: Owned, entry: Entry, now_us: int) -> None:
        appended(self, entry, now_us)
        self.local(entry.number)

    patch.setattr(Owned, "appended", at_once)


def old_owners_listened_to(patch: pytest.MonkeyPatch) -> None:
    def listens(self: Followed, node: int, epoch: int) -> bool:
        self.epoch = max(self.epoch, epoch)
        return True

    patch.setattr(Followed, "_listens", listens)


def promoted_though_not_in_sync(patch: pytest.MonkeyPatch) -> None:
    next_epoch = places.next_epoch

    def hand_over(tables: Any, shard: int, place: ShardPlace, node: int) -> int:
        tables.reachable(node)
        version: int = tables.next_version()
        anyone = replace(place, in_sync=tuple({*place.in_sync, node}))
        tables.put_place(shard, next_epoch(anyone, node, version))
        return version

    def heir(self: View, place: ShardPlace, without: int) -> int | None:
        others = [node for node in place.replicas if node in self.up and node != without]
        return others[-1] if others else None

    patch.setattr(places, "_hand_over", hand_over)
    patch.setattr(View, "heir", heir)


def left_out_without_asking(patch: pytest.MonkeyPatch) -> None:
    ask = Owned._ask

    def ask_and_go_on(self: Owned, command: Any, now_us: int) -> None:
        ask(self, command, now_us)
        if isinstance(command, ShrinkInSync):
            self.in_sync = tuple(node for node in self.in_sync if node not in command.removed)
            self._commit()

    patch.setattr(Owned, "_ask", ask_and_go_on)


def reads_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    def barrier(self: Owned, entry: Entry, now_us: int = 0) -> None:
        self._waiting.append(owner._Waiting(0, entry, 0))
        self._commit()

    patch.setattr(Owned, "barrier", barrier)


def epochs_that_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    next_epoch = places.next_epoch

    def same(place: ShardPlace, node: int, version: int) -> ShardPlace:
        return replace(next_epoch(place, node, version), epoch=place.epoch)

    patch.setattr(places, "next_epoch", same)
    patch.setattr(members, "next_epoch", same)


def votes_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsensusLog, "replay", lambda *_: None)


def acts_on_a_map_from_before_its_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "present", property(lambda self: bool(self.plane.state.nodes)))


def checkpoints_of_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "is_committed", lambda *_: True)


def moved_and_kept(patch: pytest.MonkeyPatch) -> None:
    outgoing = Shard.outgoing

    def drop_nothing(self: Shard, record: Outgoing, number: int, now_us: int) -> None:
        outgoing(self, Outgoing(record.targets, record.transact), number, now_us)

    patch.setattr(Shard, "outgoing", drop_nothing)


def moved_as_often_as_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "was_forwarded", lambda *_: False)


def moved_though_it_was_given(patch: pytest.MonkeyPatch) -> None:
    def returned(queue: QueueShard) -> list[Loot]:
        found = [(run.position, queue.find(run.position)) for run in queue.returned.runs.values()]
        return [
            steals._loot(queue, stored, position, stored.span)
            for position, stored in found
            if stored is not None and stored.base == position
        ]

    patch.setattr(steals, "_returned", returned)
    patch.setattr(steals, "_is_returned", lambda queue, loot: loot.position in queue.returned.runs)


def stale_batches_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pushes, "check_placed", Pushes.check_open)


def children_open_before_the_seal(patch: pytest.MonkeyPatch) -> None:
    """At the end that readers see, which is not yet that of the log."""
    seal_for = Growing._seal_for

    def too_early(self: Growing, stream: Any, number: int, shard: Any, birth: Any) -> None:
        partition = shard.partition(stream.info.id, number)
        tail, partition.tail = partition.tail, partition.tail // 2
        try:
            seal_for(self, stream, number, shard, birth)
        finally:
            partition.tail = tail

    patch.setattr(Growing, "_seal_for", too_early)


def rows_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(forwards, "passed_on", lambda *_: None)


class Case(NamedTuple):
    """What is broken, and runs that find it."""

    breaks: Break
    parts: str
    faults: str = "all"
    minutes: float = 0.8


MAX_SEEDS = 20
QUICK = [
    Case(acknowledged_before_it_is_replicated, "plain,topic"),
    Case(epochs_that_do_not_grow, "plain"),
    Case(votes_forgotten, "plain"),
    Case(moved_and_kept, "moving", "none"),
    Case(stale_batches_taken, "growing", "none", 2),
    Case(children_open_before_the_seal, "growing", "none", 2),
    Case(rows_not_passed_on, "growing", "none", 2),
    Case(moved_though_it_was_given, "moving", "none"),
]
LONG = [
    Case(left_out_without_asking, "plain,topic"),
    Case(promoted_though_not_in_sync, "plain,topic"),
    Case(no_dedupe, "ordered", "net,crash", 3),
    Case(ids_forgotten, "ids"),
    Case(moved_as_often_as_it_is_sent, "moving", "net,crash", 3),
    Case(new_sequence_for_a_resend, "ordered", "net,crash", 3),
    Case(reads_without_confirmation, "table", "net,pause", 3),
    Case(acknowledged_before_the_owner_syncs, "plain,topic", "crash,disk", 3),
    Case(acknowledged_before_the_followers_sync, "plain,topic", "crash,disk", 3),
    Case(old_owners_listened_to, "plain,table", "net,pause,disk", 3),
    Case(acts_on_a_map_from_before_its_start, "plain,table"),
    Case(checkpoints_of_what_is_not_committed, "plain,topic", "crash", 3),
]


def is_caught(case: Case, patch: pytest.MonkeyPatch) -> bool:
    case.breaks(patch)
    runs = (
        run(seed, case.minutes, case.faults, case.parts, nodes=3)
        for seed in range(1, MAX_SEEDS + 1)
    )
    return any(not verdict.passed for verdict in runs)


def name_of(case: Case) -> str:
    return case.breaks.__name__


@pytest.mark.parametrize("case", QUICK, ids=name_of)
def test_a_broken_core_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(case, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", LONG, ids=name_of)
def test_a_broken_core_is_caught_in_the_end(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_caught(case, monkeypatch)
