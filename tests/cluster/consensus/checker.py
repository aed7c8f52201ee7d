"""What must hold in every cluster at every moment, whatever happened before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.consensus.messages import (
    Entry,
    EntryKind,
    Message,
    Snapshot,
    VoteAnswer,
    VoteRequest,
)
from penstock.cluster.consensus.ready import Ready
from penstock.cluster.consensus.state import Role

if TYPE_CHECKING:
    from tests.cluster.consensus.shell import Shell


class BrokenError(Exception):
    """An invariant does not hold."""


class Checker:
    """Sees all nodes, and remembers what was ever decided."""

    def __init__(self) -> None:
        self.shells: dict[int, Shell] = {}
        self.decided: list[Entry] = []  # entry n is at place n - 1
        self.leaders: dict[int, tuple[int, int]] = {}  # by term: node, life
        self._written: dict[tuple[int, int], tuple[EntryKind, bytes, int]] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._seen_commit: dict[tuple[int, int], int] = {}
        self._seen_term: dict[tuple[int, int], int] = {}
        self._due_reads: dict[int, int] = {}

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenError(what)

    # --- events ----------------------------------------------------------------------------

    def given(self, shell: Shell, ready: Ready) -> None:
        """Log matching: who has an entry's index and term has the same entry, after the same."""
        self._check_commit(shell)
        log = shell.raft._state.log
        for entry in ready.entries:
            before = log.term_at(entry.index - 1) or 0
            said = (entry.kind, entry.data, before)
            known = self._written.setdefault((entry.index, entry.term), said)
            self.must(known == said, f"entry {entry.index} of term {entry.term} is two things")
        for answer in ready.reads:
            due = self._due_reads.pop(answer.token)
            if answer.index is not None:
                self.must(due <= answer.index <= shell.applied, f"read {answer.token} is stale")

    def said(self, message: Message) -> None:
        """One vote a term, and none that could be forgotten."""
        if isinstance(message, VoteAnswer) and message.granted and not message.pre:
            self._voted(message.source, message.term, message.to)
        elif isinstance(message, VoteRequest) and not message.pre:
            self._voted(message.source, message.term, message.source)

    def _voted(self, node: int, term: int, candidate: int) -> None:
        known = self._votes.setdefault((node, term), candidate)
        self.must(known == candidate, f"{node} votes for {known} and {candidate} in term {term}")
        stored = self.shells[node].disk.hard_state
        same = stored.term > term or (stored.term == term and stored.vote == candidate)
        self.must(same, f"{node} votes in term {term} before that is stored")

    def applies(self, shell: Shell, entry: Entry) -> None:
        """State machine safety: all apply the same entries in the same order."""
        self.must(entry.index == shell.applied + 1, f"{shell.node} leaves out an entry")
        self.must(self.decided[entry.index - 1] == entry, f"{shell.node} applies another entry")
        self.must(shell.disk.has(entry.index, entry.term), "applied and not stored")

    def restores(self, shell: Shell, snapshot: Snapshot) -> None:
        self.must(snapshot.index <= len(self.decided), "a snapshot of what is not decided")
        values = [e.data for e in self.decided[: snapshot.index] if e.kind is EntryKind.DATA]
        self.must(values == shell.values, f"{shell.node} restores another state")

    def reads(self, token: int) -> None:
        self._due_reads[token] = len(self.decided)

    # --- states ----------------------------------------------------------------------------

    def check(self, shell: Shell) -> None:
        """After every event of a node."""
        raft, life = shell.raft, (shell.node, shell.life)
        self.must(raft.term >= self._seen_term.get(life, 0), "a term goes back")
        self._seen_term[life] = raft.term
        self._check_commit(shell)
        if raft.role is Role.LEADER and self.leaders.get(raft.term) != life:
            self.must(raft.term not in self.leaders, f"term {raft.term} has two leaders")
            self.leaders[raft.term] = life
            self._check_complete(shell)

    def _check_complete(self, shell: Shell) -> None:
        """Leader completeness: a new leader has all that was ever decided."""
        log = shell.raft._state.log
        self.must(log.last_index >= len(self.decided), "a leader misses decided entries")
        for entry in self.decided[log.start_index :]:
            self.must(log.term_at(entry.index) == entry.term, "a leader misses a decided entry")

    def _check_commit(self, shell: Shell) -> None:
        log, life = shell.raft._state.log, (shell.node, shell.life)
        seen = max(self._seen_commit.get(life, 0), log.start_index)
        self.must(log.committed >= seen, f"{shell.node} takes a commit back")
        self._seen_commit[life] = log.committed
        for entry in log.between(seen + 1, log.committed):
            if entry.index <= len(self.decided):
                same = self.decided[entry.index - 1] == entry
                self.must(same, f"{shell.node} commits another entry {entry.index}")
            else:
                self.decided.append(entry)
        if log.committed > seen and shell.raft.role is Role.LEADER:
            self._check_stored(shell, log.committed)

    def _check_stored(self, shell: Shell, index: int) -> None:
        """What is decided survives the crash of any minority."""
        term = shell.raft._state.log.term_at(index) or 0
        membership = shell.raft.membership
        stored = [n for n in membership.voters if self.shells[n].disk.has(index, term)]
        self.must(len(stored) >= membership.majority, f"entry {index} is stored by {stored} only")
