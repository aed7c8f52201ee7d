"""Limits, refusals, restarts and time-outs of one node."""

from __future__ import annotations

import pytest

from penstock.cluster.consensus.membership import Change, Membership, pack_membership
from penstock.cluster.consensus.messages import Append, Entry, EntryKind, HardState, Snapshot
from penstock.cluster.consensus.progress import Progress
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.settings import MAX_ENTRY_BYTES, MAX_LEARNERS, Settings
from penstock.cluster.consensus.snapshot import chunk_arrived
from penstock.cluster.consensus.state import Role
from penstock.errors import (
    ConflictError,
    DamagedError,
    InvalidError,
    LimitError,
    NotLeaderError,
    ProtocolError,
    TooLargeError,
)

ALONE = Membership((1,))
THREE = Membership((1, 2, 3))


def settle(raft: Raft, now_us: int = 0) -> list[Entry]:
    """Syncs and applies everything; what was applied."""
    applied: list[Entry] = []
    while (ready := raft.take_ready()) is not None:
        raft.persisted(ready.number, now_us)
        if ready.snapshot is not None:
            raft.applied(ready.snapshot.index)
        if ready.committed:
            raft.applied(ready.committed[-1].index)
        applied += ready.committed
    return applied


def leader(settings: Settings | None = None) -> Raft:
    """Alone, and elected."""
    raft = Raft(1, ALONE, seed=1, now_us=0, settings=settings)
    raft.tick(raft.next_due() or 0)
    settle(raft)
    assert raft.role is Role.LEADER
    return raft


def noop(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.NOOP)


def restored(hard: HardState, snapshot: Snapshot | None, entries: list[Entry]) -> Raft:
    return Raft.restore(
        1, THREE, hard_state=hard, snapshot=snapshot, entries=entries, seed=1, now_us=0
    )


def test_time_outs_come_from_seed_node_term_and_attempt() -> None:
    def dues(node: int, seed: int) -> list[int]:
        raft = Raft(node, THREE, seed=seed, now_us=0)
        found = []
        for _ in range(4):
            found.append(raft.next_due() or 0)
            raft.tick(found[-1])
        return [b - a for a, b in zip([0, *found], found, strict=False)]

    first = dues(1, 1)
    assert first == dues(1, 1)
    assert first != dues(1, 2)
    assert first != dues(2, 1)
    assert len(set(first)) > 1
    assert all(1_000_000 <= due < 2_000_000 for due in first)


def test_a_node_without_a_vote_waits_for_ever() -> None:
    raft = Raft(9, Membership(), seed=1, now_us=0)
    assert raft.next_due() is None
    raft.tick(10**9)
    assert raft.take_ready() is None


def test_who_does_not_lead_names_the_leader() -> None:
    raft = Raft(1, THREE, seed=1, now_us=0)
    with pytest.raises(NotLeaderError) as caught:
        raft.propose(b"x", 0)
    assert caught.value.leader is None
    raft.step(Append(2, 1, 1, 0, 0, 0), 0)
    for wish in (
        lambda: raft.propose(b"x", 0),
        lambda: raft.change(Change.REMOVE, 3, 0),
        lambda: raft.transfer(3, 0),
        lambda: raft.read_index(1, 0),
    ):
        with pytest.raises(NotLeaderError) as caught:
            wish()
        assert caught.value.leader == 2
        assert caught.value.retriable


def test_a_leader_takes_only_so_much() -> None:
    raft = leader(Settings(max_uncommitted=3, max_log_bytes=1000, max_reads=2, keep_entries=0))
    with pytest.raises(TooLargeError):
        raft.propose(bytes(MAX_ENTRY_BYTES + 1), 0)
    for number in range(3):
        raft.propose(b"%d" % number, 0)
    with pytest.raises(LimitError, match="majority"):
        raft.propose(b"3", 0)
    assert len(settle(raft)) == 3
    raft.propose(bytes(900), 0)
    settle(raft)
    with pytest.raises(LimitError, match="compacted"):
        raft.propose(b"4", 0)
    raft.compact(raft.committed, b"state")
    raft.propose(b"4", 0)
    raft.read_index(1, 0)
    raft.read_index(2, 0)
    with pytest.raises(LimitError, match="reads"):
        raft.read_index(3, 0)


def test_a_follower_whose_shell_does_not_compact_takes_only_so_much() -> None:
    raft = Raft(1, THREE, seed=1, now_us=0, settings=Settings(max_log_bytes=1000))
    for index in range(1, 9):
        entry = Entry(index, 1, EntryKind.DATA, bytes(900))
        raft.step(Append(2, 1, 1, index - 1, int(index > 1), index, (entry,)), 0)
        settle(raft)
    assert raft.last_index == 3
    raft.compact(3, b"state")
    raft.step(Append(2, 1, 1, 3, 1, 3, (noop(4, 1),)), 0)
    assert raft.last_index == 4


def test_only_so_many_writes_are_under_way() -> None:
    raft = leader(Settings(max_writes=3))
    numbers = []
    for _ in range(5):
        raft.propose(b"x", 0)
        if (ready := raft.take_ready()) is not None:
            numbers.append(ready.number)
    assert len(numbers) == 3
    assert raft.committed == 1
    raft.persisted(numbers[1], 0)
    assert raft.committed == 3
    settle(raft)
    assert raft.committed == 6
    with pytest.raises(InvalidError):
        raft.persisted(99, 0)


def test_nothing_more_is_given_to_a_shell_that_does_not_apply() -> None:
    raft = leader(Settings(max_unapplied=4, max_batch_entries=2))
    for _ in range(9):
        raft.propose(b"x", 0)
    given = []
    while (ready := raft.take_ready()) is not None:
        raft.persisted(ready.number, 0)
        given += ready.committed
    assert [entry.index for entry in given] == [2, 3, 4, 5]
    with pytest.raises(InvalidError):
        raft.applied(6)
    raft.applied(5)
    assert [entry.index for entry in settle(raft)] == [6, 7, 8, 9, 10]


def test_snapshots_must_be_of_applied_entries_and_newer_than_the_last() -> None:
    raft = leader(Settings(max_snapshot_bytes=10))
    raft.propose(b"a", 0)
    for wrong in (0, 2):
        with pytest.raises(InvalidError):
            raft.compact(wrong, b"")
    settle(raft)
    with pytest.raises(TooLargeError):
        raft.compact(2, bytes(11))
    assert raft.compact(2, b"a") == Snapshot(2, 1, ALONE, b"a")
    with pytest.raises(InvalidError):
        raft.compact(2, b"a")


def test_entries_stay_behind_a_snapshot_within_bounds() -> None:
    raft = leader(Settings(keep_entries=5, max_log_bytes=4000))
    for _ in range(10):
        raft.propose(b"small", 0)
    settle(raft)
    raft.compact(11, b"")
    log = raft._state.log
    assert (log.start_index, log.start_term, log.last_index) == (6, 1, 11)
    raft.propose(bytes(900), 0)
    raft.propose(b"small", 0)
    settle(raft)
    raft.compact(13, b"")
    assert log.start_index == 12
    assert log.cost_bytes == sum(entry.cost_bytes for entry in log.between(13, 13))


def test_learners_have_a_limit() -> None:
    full = Membership((1,), tuple(range(2, MAX_LEARNERS + 2)))
    full.check()
    with pytest.raises(TooLargeError):
        full.changed(Change.ADD_LEARNER, 5000)
    with pytest.raises(TooLargeError):
        Raft(1, Membership(tuple(range(1, 7))), seed=1, now_us=0)
    with pytest.raises(InvalidError):
        ALONE.changed(Change.ADD_LEARNER, 0)


def test_a_change_waits_for_the_one_before() -> None:
    raft = leader()
    raft.change(Change.ADD_LEARNER, 2, 0)
    with pytest.raises(ConflictError):
        raft.change(Change.ADD_LEARNER, 3, 0)
    settle(raft)
    raft.change(Change.ADD_LEARNER, 3, 0)
    assert raft.membership == Membership((1,), (2, 3))
    assert raft.lag(2) == raft.committed


def test_a_restart_goes_on_from_what_was_stored() -> None:
    hard, log = HardState(3, 2), [noop(1, 1), noop(2, 3)]
    raft = restored(hard, None, log)
    assert (raft.term, raft.last_index, raft.committed, raft.role) == (3, 2, 0, Role.FOLLOWER)
    snapshot = Snapshot(2, 3, ALONE, b"state")
    raft = restored(hard, snapshot, [noop(3, 3)])
    assert (raft.last_index, raft.committed, raft.membership) == (3, 2, ALONE)


@pytest.mark.parametrize(
    ("entries", "last"),
    [
        ([noop(1, 1), noop(2, 1), noop(3, 1)], 2),  # another log: the snapshot replaced it
        ([noop(1, 1)], 2),
        ([noop(1, 1), noop(2, 2), noop(3, 2)], 3),  # the same log: its end counts
        ([noop(3, 2), noop(4, 2)], 4),
        ([], 2),
    ],
)
def test_a_restart_between_snapshot_and_entries(entries: list[Entry], last: int) -> None:
    raft = restored(HardState(2, 0), Snapshot(2, 2, THREE, b"state"), entries)
    assert (raft.last_index, raft.committed) == (last, 2)


@pytest.mark.parametrize(
    ("hard", "entries"),
    [
        (HardState(2, 0), [noop(2, 1)]),
        (HardState(2, 0), [noop(1, 1), noop(3, 1)]),
        (HardState(2, 0), [noop(1, 2), noop(2, 1)]),
        (HardState(1, 0), [noop(1, 2)]),
        (HardState(1, 0), [Entry(1, 1, EntryKind.MEMBERSHIP, b"?")]),
    ],
)
def test_a_damaged_log_is_refused(hard: HardState, entries: list[Entry]) -> None:
    with pytest.raises(DamagedError):
        restored(hard, None, entries)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_log_that_a_snapshot_replaced_is_dropped_on_disk_too(length: int) -> None:
    old = [noop(index, 1) for index in range(1, length + 1)]
    raft = restored(HardState(2, 0), Snapshot(2, 2, THREE, b"state"), old)
    raft.step(Append(2, 1, 2, 2, 2, 2, (noop(3, 2),)), 0)
    ready = raft.take_ready()
    assert ready is not None
    assert (ready.truncate_from, ready.entries) == (1, [noop(3, 2)])


def test_a_snapshot_goes_on_where_the_peer_is() -> None:
    progress = Progress(1, 0)
    progress.send_snapshot(Snapshot(5, 1, THREE, bytes(100)))
    progress.offset, progress.waiting = 64, True
    chunk_arrived(progress, 5, 64)
    assert progress.waiting  # the same word twice
    chunk_arrived(progress, 4, 16)
    assert progress.waiting  # of another snapshot
    chunk_arrived(progress, 5, 16)
    assert (progress.offset, progress.waiting) == (16, False)
    with pytest.raises(ProtocolError):
        chunk_arrived(progress, 5, 101)


def test_a_membership_that_is_cut_off_is_undone() -> None:
    raft = Raft(1, THREE, seed=1, now_us=0)
    learner = Membership((1, 2, 3), (4,))
    added = Entry(2, 1, EntryKind.MEMBERSHIP, pack_membership(learner))
    raft.step(Append(2, 1, 1, 0, 0, 1, (noop(1, 1), added)), 0)
    assert raft.membership == learner
    raft.step(Append(3, 1, 2, 1, 1, 1, (noop(2, 2),)), 0)
    assert raft.membership == THREE
