"""The checker can fail: one rule of Raft is broken, and a run must find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.consensus.checker import BrokenError
from tests.cluster.consensus.test_scripts import replay
from tests.cluster.consensus.world import run

from penstock.cluster.consensus.election import Election
from penstock.cluster.consensus.following import Following
from penstock.cluster.consensus.messages import AppendAnswer, FromLeader
from penstock.cluster.consensus.reads import Reads
from penstock.cluster.consensus.ready import Writes
from penstock.cluster.consensus.replication import Replication
from penstock.cluster.consensus.state import State

Break = Callable[[pytest.MonkeyPatch], None]
MAX_SEEDS = 30
SCRIPTS = Path(__file__).parent / "scripts"


def old_terms_are_committed_by_counting(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Replication) -> None:
        log = self.state.log
        log.commit(log.membership.agreed(self._stored_through))

    patch.setattr(Replication, "commit", commit)


def acknowledged_before_stored(patch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: Following, message: FromLeader, index: int) -> None:
        state = self.state
        state.send(AppendAnswer(state.node, message.source, state.term, index))

    patch.setattr(Following, "_acknowledge", acknowledge)


def the_leader_counts_itself_before_stored(patch: pytest.MonkeyPatch) -> None:
    def stored_through(self: Replication, node: int) -> int:
        return self.state.log.last_index if node == self.state.node else self.peers[node].match

    patch.setattr(Replication, "_stored_through", stored_through)


def several_votes_a_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "_may_vote", lambda *_: True)


def votes_before_stored(patch: pytest.MonkeyPatch) -> None:
    requested = Election.requested

    def requested_at_once(self: Election, request: object) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(State, "promise", State.send)
            requested(self, request)  # type: ignore[arg-type]

    patch.setattr(Election, "requested", requested_at_once)


def votes_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "_is_complete", lambda *_: True)


def a_write_speaks_for_what_replaced_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writes, "cut", lambda *_: None)


def reads_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    confirm = Reads.confirm
    patch.setattr(Reads, "confirm", lambda self, _: confirm(self, 1 << 62))


def run_all(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)


@pytest.mark.parametrize(
    "break_it",
    [
        acknowledged_before_stored,
        the_leader_counts_itself_before_stored,
        several_votes_a_term,
        votes_before_stored,
        votes_for_a_shorter_log,
    ],
)
def test_a_broken_rule_is_found(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(BrokenError):
        run_all(MAX_SEEDS)


@pytest.mark.parametrize(
    ("script", "break_it", "found"),
    [
        ("figure_8", old_terms_are_committed_by_counting, "a leader misses a decided entry"),
        ("two_writes", a_write_speaks_for_what_replaced_it, "applied and not stored"),
        ("read_index", reads_without_a_majority, "read 9 is stale"),
    ],
)
def test_what_chance_hardly_finds_is_found_by_a_script(
    script: str, break_it: Break, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (SCRIPTS / f"{script}.txt").read_text(encoding="utf-8").splitlines()
    break_it(monkeypatch)
    with pytest.raises(BrokenError, match=found):
        replay(lines)
