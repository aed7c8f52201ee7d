"""What a leader does: entries to its peers, heartbeats, commits, and knowing when to stop."""

from __future__ import annotations

from collections.abc import Callable

from penstock.cluster.consensus.membership import Membership, pack_membership
from penstock.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    SnapshotAnswer,
    TimeoutNow,
)
from penstock.cluster.consensus.progress import Pace, Progress
from penstock.cluster.consensus.reads import Reads
from penstock.cluster.consensus.snapshot import chunk_arrived, next_chunk
from penstock.cluster.consensus.state import Role, State
from penstock.errors import ProtocolError


class Replication:
    """Empty unless this node leads. `follow` makes it a follower again, in the same term."""

    def __init__(self, state: State, reads: Reads, follow: Callable[[], None]) -> None:
        self.state = state
        self._reads = reads
        self._follow = follow
        self.peers: dict[int, Progress] = {}
        self.first_index = 0  # of this leader's term
        self.round = 0  # of heartbeats
        self.heartbeat_due_us = 0
        self._beat_wanted = False  # a read waits for the next round
        self.transfer_to: int | None = None
        self._transfer_due_us = 0

    # --- coming and going ------------------------------------------------------------------

    def lead(self) -> None:
        """The election is won: open the term with an entry, since only such an entry commits."""
        state = self.state
        state.role, state.leader = Role.LEADER, state.node
        self.first_index = state.log.last_index + 1
        self.round = 0
        self._meet(state.log.membership)
        self.add(EntryKind.NOOP, b"")
        self.beat()

    def retire(self) -> None:
        """Somebody else leads, or nobody."""
        self.peers = {}
        self.transfer_to = None
        self._reads.lose()

    def _meet(self, membership: Membership) -> None:
        for node in membership.nodes:
            if node != self.state.node and node not in self.peers:
                self.peers[node] = Progress(self.state.log.last_index + 1, self.state.now_us)

    def _part(self) -> None:
        """Whoever is removed hears of it first. A leader that removed itself goes, too."""
        log = self.state.log
        if log.membership_index > log.committed:
            return
        members = log.membership.nodes
        self.peers = {node: each for node, each in self.peers.items() if node in members}
        if not self.state.is_voter:
            self._follow()

    # --- time ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Heartbeats; without a majority for an election time-out, no leader."""
        state = self.state
        if state.now_us < self.heartbeat_due_us:
            return
        heard_us = state.log.membership.agreed(self._heard_us)
        if state.now_us - heard_us >= state.settings.election_us:
            self._follow()
            return
        if self.transfer_to is not None and state.now_us >= self._transfer_due_us:
            self.transfer_to = None
        self.beat()

    def _heard_us(self, node: int) -> int:
        return self.state.now_us if node == self.state.node else self.peers[node].heard_us

    def beat(self) -> None:
        """One round of heartbeats."""
        state = self.state
        self.round += 1
        self._beat_wanted = False
        self.heartbeat_due_us = state.now_us + state.settings.heartbeat_us
        for peer, progress in self.peers.items():
            commit = min(progress.match, state.log.committed)
            state.send(Heartbeat(state.node, peer, state.term, commit, self.round))
        self._confirm_reads()

    # --- entries ---------------------------------------------------------------------------

    def add(self, kind: EntryKind, data: bytes) -> int:
        """A new entry at the end of the log; its index."""
        log = self.state.log
        index = log.last_index + 1
        log.add(Entry(index, self.state.term, kind, data))
        return index

    def change(self, membership: Membership) -> int:
        """From here on this membership decides."""
        index = self.add(EntryKind.MEMBERSHIP, pack_membership(membership))
        self._meet(membership)
        return index

    def flush(self) -> None:
        """Sends to every peer what it may get."""
        if self._beat_wanted:
            self.beat()
        for peer, progress in self.peers.items():
            for _ in range(self.state.settings.max_in_flight + 1):
                if not self._send(peer, progress):
                    break
        self._part()

    def _send(self, peer: int, progress: Progress) -> bool:
        """One Append or chunk, if one may go now."""
        state, log = self.state, self.state.log
        if progress.waiting:
            return False
        previous_term = log.term_at(progress.next - 1)
        if progress.pace is not Pace.SNAPSHOT and previous_term is None:
            progress.send_snapshot(log.snapshot)
        if progress.snapshot is not None:
            state.send(next_chunk(state, peer, progress, progress.snapshot))
            progress.waiting, progress.moved_us = True, state.now_us
            return False
        entries = self._entries_for(progress)
        if not entries and not progress.ask and progress.told_commit >= log.committed:
            return False
        state.send(
            Append(
                state.node, peer, state.term, progress.next - 1, previous_term or 0, log.committed,
                tuple(entries),
            )
        )  # fmt: skip
        progress.ask, progress.told_commit = False, log.committed
        progress.sent(progress.next - 1 + len(entries), state.now_us)
        return bool(entries)

    def _entries_for(self, progress: Progress) -> list[Entry]:
        log, settings = self.state.log, self.state.settings
        if len(progress.in_flight) >= settings.max_in_flight:
            return []
        return log.batch(
            progress.next, log.last_index, settings.max_batch_entries, settings.max_batch_bytes
        )

    # --- answers ---------------------------------------------------------------------------

    def _heard(self, node: int) -> Progress | None:
        """A sign of life. None: it is no peer (any more), and nothing follows from its answer."""
        progress = self.peers.get(node)
        if progress is not None:
            progress.heard_us = self.state.now_us
        return progress

    def answered(self, answer: AppendAnswer) -> None:
        """A peer has stored entries, or cannot take them."""
        log = self.state.log
        progress = self._heard(answer.source)
        if progress is None:
            return
        if answer.rejected:
            if progress.rejects(answer.index):
                meeting, _ = log.last_not_after(answer.hint_index, answer.hint_term)
                progress.back_off(answer.index, min(meeting, answer.hint_index))
            return
        if answer.index > log.last_index:
            raise ProtocolError(f"entry {answer.index} is acknowledged; there is none")
        progress.acknowledged(answer.index, self.state.now_us)
        self.commit()
        self._hand_over()

    def heartbeat_answered(self, answer: HeartbeatAnswer) -> None:
        """A peer is there; what it did not answer is sent again."""
        state = self.state
        progress = self._heard(answer.source)
        if progress is None:
            return
        if answer.round > self.round:
            raise ProtocolError(f"heartbeat {answer.round} is answered; there was none")
        progress.round = max(progress.round, answer.round)
        self._confirm_reads()
        if progress.stalled(state.now_us, state.settings.heartbeat_us):
            progress.retry(state.now_us)

    def chunk_answered(self, answer: SnapshotAnswer) -> None:
        """A peer has a part of a snapshot."""
        progress = self._heard(answer.source)
        if progress is not None:
            chunk_arrived(progress, answer.index, answer.offset)

    # --- decisions -------------------------------------------------------------------------

    def commit(self) -> None:
        """What a majority has stored is decided, but by counting only in the leader's own term: an
        older entry that a majority has can still be replaced."""
        log = self.state.log
        agreed = log.membership.agreed(self._stored_through)
        if agreed > log.committed and log.term_at(agreed) == self.state.term:
            log.commit(agreed)

    def _stored_through(self, node: int) -> int:
        return self.state.log.stable if node == self.state.node else self.peers[node].match

    def read(self, token: int) -> None:
        """Answered when a majority has answered the next heartbeats. Before an entry of its term is
        committed, a leader may not know all that is: then the read waits for that entry."""
        self._reads.ask(token, max(self.state.log.committed, self.first_index), self.round + 1)
        self._beat_wanted = True

    def _confirm_reads(self) -> None:
        self._reads.confirm(self.state.log.membership.agreed(self._answered_round))

    def _answered_round(self, node: int) -> int:
        return self.round if node == self.state.node else self.peers[node].round

    def transfer(self, to: int) -> None:
        """Bring a peer up to date, then let it take over. Given up after an election time-out."""
        self.transfer_to = to
        self._transfer_due_us = self.state.now_us + self.state.settings.election_us
        self._hand_over()

    def _hand_over(self) -> None:
        state, to = self.state, self.transfer_to
        if to in self.peers and self.peers[to].match == state.log.last_index:
            state.send(TimeoutNow(state.node, to, state.term))
