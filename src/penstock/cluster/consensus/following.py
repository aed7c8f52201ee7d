"""What a follower does with what its leader sends."""

from __future__ import annotations

from penstock.cluster.consensus.election import Election
from penstock.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    FromLeader,
    Heartbeat,
    HeartbeatAnswer,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
)
from penstock.cluster.consensus.ready import Writes
from penstock.cluster.consensus.snapshot import Assembly
from penstock.cluster.consensus.state import Role, State
from penstock.errors import ProtocolError


class Following:
    """Entries, heartbeats and snapshots of the leader of this term."""

    def __init__(self, state: State, election: Election, writes: Writes) -> None:
        self.state = state
        self._election = election
        self._writes = writes
        self._assembly: Assembly | None = None
        self.installed: Snapshot | None = None  # for the next Ready

    def hear(self, message: FromLeader) -> None:
        """Its sender leads this term; ProtocolError if another one does."""
        state = self.state
        leader = state.node if state.role is Role.LEADER else state.leader
        if leader is not None and leader != message.source:
            raise ProtocolError(f"node {message.source} leads term {state.term}, as {leader} does")
        if leader is None:
            self._election.follow(state.term, message.source)
        else:
            self._election.heard_leader()

    def refuse(self, message: FromLeader) -> None:
        """From a leader of the past: it learns that its time is over."""
        answer = AppendAnswer(self.state.node, message.source, self.state.term, 0, rejected=True)
        self.state.promise(answer)

    # --- entries ---------------------------------------------------------------------------

    def append(self, message: Append) -> None:
        """Entries to add, or a question whether the logs meet."""
        state, log = self.state, self.state.log
        if log.cost_bytes > 2 * state.settings.max_log_bytes:
            return  # as if it was lost, until the shell compacts
        if message.previous_index < log.committed:
            self._acknowledge(message, log.committed)
            return
        if log.term_at(message.previous_index) != message.previous_term:
            self._reject(message)
            return
        cut = log.merge(message.entries)
        if cut is not None:
            self._writes.cut(cut)
        last = message.previous_index + len(message.entries)
        log.commit(min(message.commit, last))
        self._acknowledge(message, last)

    def _reject(self, message: Append) -> None:
        state, log = self.state, self.state.log
        if message.previous_index == log.committed:
            raise ProtocolError(f"a leader has another entry {log.committed} than is committed")
        hint = log.last_not_after(message.previous_index, message.previous_term)
        answer = AppendAnswer(
            state.node, message.source, state.term, message.previous_index, True, *hint
        )
        state.promise(answer)

    def _acknowledge(self, message: FromLeader, index: int) -> None:
        state = self.state
        state.promise(AppendAnswer(state.node, message.source, state.term, index))

    def heartbeat(self, message: Heartbeat) -> None:
        """The leader is there, and says what is committed of what it knows to be stored here."""
        state = self.state
        if message.commit > state.log.last_index:
            raise ProtocolError(
                f"commit {message.commit} is beyond the last entry {state.log.last_index}"
            )
        state.log.commit(message.commit)
        state.send(HeartbeatAnswer(state.node, message.source, state.term, message.round))

    # --- snapshots -------------------------------------------------------------------------

    def chunk(self, message: SnapshotChunk) -> None:
        """A piece of a snapshot; the last one installs it."""
        state = self.state
        if self._is_known(message):
            self._acknowledge(message, state.log.committed)
            return
        if message.size > state.settings.max_snapshot_bytes:
            raise ProtocolError(f"a snapshot of {message.size:,} bytes; too large")
        if self._assembly is None or not self._assembly.continued_by(message):
            self._assembly = Assembly(message)
        self._assembly.add(message)
        snapshot = self._assembly.whole(message)
        if snapshot is None:
            offset = self._assembly.offset
            state.send(
                SnapshotAnswer(state.node, message.source, state.term, message.index, offset)
            )
            return
        self._assembly = None
        self._writes.cut(1)
        state.log.install(snapshot)
        self.installed = snapshot
        self._acknowledge(message, snapshot.index)

    def _is_known(self, message: SnapshotChunk) -> bool:
        log = self.state.log
        if message.index > log.committed:
            if log.term_at(message.index) != message.snapshot_term:
                return False
            log.commit(message.index)
        self._assembly = None
        return True
