"""The checkers of stages and reservations can fail: one thing is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.sim.bounded import bounded

from penstock.core import books, publications, staged
from penstock.core.books import Book, ReservedGrants
from penstock.core.late_stages import LateStages
from penstock.core.outbox import EndReserved
from penstock.core.publications import Publications
from penstock.core.pushes import Pushes
from penstock.core.records import PublicationMade, ReservationsEnded, StagesShown
from penstock.core.reservations import Reservations
from penstock.core.shard import _NOTED, Shard
from penstock.core.staging import Stages
from penstock.sim import run

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 30


def publications_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publications, "made", lambda *_: None)


def one_shard_not_told(patch: pytest.MonkeyPatch) -> None:
    def made(shard: Shard, note: PublicationMade, number: int, now_us: int) -> None:
        note.shards = note.shards[1:]
        publications._made(shard, note, number, now_us)

    patch.setitem(_NOTED, PublicationMade, made)


def one_batch_left_behind(patch: pytest.MonkeyPatch) -> None:
    def shown(shard: Shard, note: StagesShown, number: int, now_us: int) -> None:
        note.placed = [
            (stamped, base if at < 2 else -1) for at, (stamped, base) in enumerate(note.placed)
        ]
        staged._shown(shard, note, number, now_us)

    patch.setitem(_NOTED, StagesShown, shown)


def staged_and_seen_at_once(patch: pytest.MonkeyPatch) -> None:
    def accept(self: Stages, *given: Any) -> Any:
        shard, stream, partition, batch, extra, level = given
        extra.stage = b""
        return self.pushes.accept(shard, stream, partition, batch, extra, level)

    patch.setattr(Stages, "accept", accept)
    patch.setattr(Stages, "check_whole", lambda *_: None)


def stages_forgotten_by_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staged.Staging, "snapshot", lambda _: [])


def resent_stages_stored_again(patch: pytest.MonkeyPatch) -> None:
    duplicate = Pushes._duplicate

    def new_if_staged(self: Pushes, shard: Any, stream: Any, batch: Any, extra: Any) -> Any:
        return None if extra.stage else duplicate(self, shard, stream, batch, extra)

    patch.setattr(Pushes, "_duplicate", new_if_staged)


def late_batches_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.core.staging.is_late", lambda *_: False)


def late_batches_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LateStages, "begin", lambda *_: None)


def late_batches_passed_on_and_kept(patch: pytest.MonkeyPatch) -> None:
    def outgoing(self: Shard, record: Any, *given: Any) -> None:
        record.drops = []
        before(self, record, *given)

    before = Shard.outgoing
    patch.setattr(Shard, "outgoing", outgoing)


def reservations_decided_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Book, "find", lambda *_: None)


def reserved_messages_can_be_popped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(books, "RESERVED_US", 500_000)
    patch.setattr("penstock.core.reservations.RESERVED_US", 500_000)


def finished_and_given_back(patch: pytest.MonkeyPatch) -> None:
    end = Reservations._end

    def give_back(self: Reservations, part: EndReserved, *rest: Any) -> Any:
        part.acked = False
        return end(self, part, *rest)

    patch.setattr(Reservations, "_end", give_back)


def released_ones_are_finished(patch: pytest.MonkeyPatch) -> None:
    def ended(shard: Shard, note: ReservationsEnded, number: int, now_us: int) -> None:
        note.acked = True
        books._ended(shard, note, number, now_us)

    patch.setitem(_NOTED, ReservationsEnded, ended)


def reservations_forgotten_by_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReservedGrants, "snapshot", lambda _: [])


class Case(NamedTuple):
    """What is broken, runs that find it, and how the finding begins."""

    breaks: Break
    parts: str
    faults: str
    begins: str = ""
    nodes: int = 1
    minutes: float = 0.5


CASES = [
    Case(publications_not_remembered, "staged", "net", "published twice"),
    Case(one_shard_not_told, "staged", "none"),
    Case(one_batch_left_behind, "staged", "none"),
    Case(staged_and_seen_at_once, "staged", "none"),
    Case(stages_forgotten_by_a_checkpoint, "staged", "crash", minutes=1.0),
    Case(resent_stages_stored_again, "staged", "net"),
    Case(late_batches_stay, "staged-growing", "none", "misplaced"),
    Case(late_batches_forgotten, "staged-growing", "none", "lost"),
    Case(late_batches_passed_on_and_kept, "staged-growing", "none", "stored twice"),
    Case(reservations_decided_again, "reserved", "none"),
    Case(reserved_messages_can_be_popped, "reserved", "none"),
    Case(finished_and_given_back, "reserved", "none", "acked and back"),
    Case(released_ones_are_finished, "reserved", "none", "lost"),
    Case(reservations_forgotten_by_a_checkpoint, "reserved", "crash", minutes=1.0),
    Case(publications_not_remembered, "staged", "none", "published twice", 3, 1.0),
    Case(one_shard_not_told, "staged-queue", "none", "", 3, 1.0),
    Case(finished_and_given_back, "reserved", "none", "acked and back", 3, 1.0),
    Case(late_batches_stay, "staged-growing", "none", "misplaced", 3, 2.0),
]


def name_of(case: Case) -> str:
    return f"{case.breaks.__name__}-{case.nodes}"


@pytest.mark.parametrize("case", bounded(CASES), ids=name_of)
def test_a_broken_core_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.breaks(monkeypatch)
    for seed in range(1, MAX_SEEDS + 1):
        verdict = run(seed, case.minutes, case.faults, case.parts, nodes=case.nodes)
        if any(problem.startswith(case.begins) for problem in verdict.problems):
            return
    pytest.fail("no run found it")


@pytest.mark.parametrize("parts", ["staged", "staged-growing", "reserved"])
@pytest.mark.parametrize("seed", [20, 21])
def test_one_node_keeps_its_promises(seed: int, parts: str) -> None:
    verdict = run(seed, 0.5, "all", parts)
    assert verdict.problems == []
    assert verdict.figures["reservations" if parts == "reserved" else "publications"] > 3


@pytest.mark.parametrize("seed", [20, pytest.param(21, marks=pytest.mark.slow)])
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    verdict = run(seed, 1.0, "all", "staged,staged-queue,reserved", nodes=3)
    assert verdict.problems == []
    assert verdict.figures["publications"] > 3
