"""One node's part in consensus: events in, Readys out.

A shell hands in messages, time and wishes; after each it takes Readys until there are none, and
carries them out (`ready.Ready` says how). Nothing here reads a clock, draws a number or waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.cluster.consensus.election import Election
from penstock.cluster.consensus.following import Following
from penstock.cluster.consensus.log import Log
from penstock.cluster.consensus.membership import Change, Membership
from penstock.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    FromLeader,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Snapshot,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from penstock.cluster.consensus.reads import Reads
from penstock.cluster.consensus.ready import Ready, Writes
from penstock.cluster.consensus.replication import Replication
from penstock.cluster.consensus.restoring import restored_log
from penstock.cluster.consensus.settings import MAX_ENTRY_BYTES, MAX_TERM_JUMP, Settings
from penstock.cluster.consensus.state import Role, State
from penstock.cluster.consensus.view import View
from penstock.errors import (
    ConflictError,
    InvalidError,
    LimitError,
    NotFoundError,
    NotLeaderError,
    ProtocolError,
    TooLargeError,
    UnavailableError,
)


class Raft(View):
    """See the module. `node` starts with the same first membership as the others that found the
    cluster; a node that joins later starts with an empty one. Nodes may share a `seed`."""

    def __init__(
        self, node: int, membership: Membership, *, seed: int, now_us: int,
        settings: Settings | None = None,
    ) -> None:  # fmt: skip
        membership.check()
        first = Snapshot(0, 0, membership)
        self._start(node, Log(first), HardState(), seed, now_us, settings or Settings())

    @classmethod
    def restore(
        cls, node: int, membership: Membership, *, hard_state: HardState,
        snapshot: Snapshot | None, entries: Sequence[Entry], seed: int, now_us: int,
        settings: Settings | None = None,
    ) -> Raft:  # fmt: skip
        """What a restarted shell found on its disk, and the first membership. The state machine
        starts from the snapshot, too. DamagedError if it cannot have come from Readys."""
        raft = cls.__new__(cls)
        log = restored_log(hard_state, snapshot or Snapshot(0, 0, membership), entries)
        raft._start(node, log, hard_state, seed, now_us, settings or Settings())
        return raft

    def _start(
        self, node: int, log: Log, hard: HardState, seed: int, now_us: int, settings: Settings
    ) -> None:
        self._state = State(node, log, hard, settings)
        self._state.now_us = now_us
        self._given_hard_state = hard
        self._writes = Writes(settings.max_writes)
        self._reads = Reads(settings.max_reads)
        self._replication = Replication(self._state, self._reads, self._step_down)
        self._election = Election(
            self._state, seed, self._replication.lead, self._replication.retire
        )
        self._following = Following(self._state, self._election, self._writes)
        self._handlers: dict[type[Any], Any] = {
            VoteRequest: self._election.requested,
            VoteAnswer: self._election.answered,
            TimeoutNow: self._election.asked_to_lead,
            Append: self._following.append,
            Heartbeat: self._following.heartbeat,
            SnapshotChunk: self._following.chunk,
            AppendAnswer: self._replication.answered,
            HeartbeatAnswer: self._replication.heartbeat_answered,
            SnapshotAnswer: self._replication.chunk_answered,
        }

    # --- events ----------------------------------------------------------------------------

    def step(self, message: Message, now_us: int) -> None:
        """A message that `decode` returned. ProtocolError if it cannot be true; then at most its
        term was taken from it."""
        self._pass_to(now_us)
        state = self._state
        if message.to != state.node:
            raise ProtocolError(f"node {state.node} got a message for node {message.to}")
        if message.term > state.term + MAX_TERM_JUMP:
            raise ProtocolError(f"term {message.term} is too far from term {state.term}")
        if message.term < state.term:
            self._refuse_old(message)
            return
        if message.term > state.term and not self._take_term(message):
            return
        if isinstance(message, FromLeader):
            self._following.hear(message)
        self._handlers[type(message)](message)

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        self._pass_to(now_us)
        if self._state.role is Role.LEADER:
            self._replication.tick()
        else:
            self._election.tick()

    def next_due(self) -> int | None:
        """When `tick` should be called although nothing happens; None: never."""
        if self._state.role is Role.LEADER:
            return self._replication.heartbeat_due_us
        return self._election.due_us if self._state.is_voter else None

    def _pass_to(self, now_us: int) -> None:
        self._state.now_us = max(self._state.now_us, now_us)

    def _take_term(self, message: Message) -> bool:
        """From a later term: follow into it. Not for a candidate while the leader is heard, and not
        for a mere question about a term. Returns whether the message still matters."""
        if isinstance(message, VoteRequest):
            if self._election.leader_is_heard() and not message.transfer:
                return False
            if message.pre:
                return True
        if isinstance(message, VoteAnswer) and message.pre and message.granted:
            return True
        leader = message.source if isinstance(message, FromLeader) else None
        self._election.follow(message.term, leader)
        return True

    def _refuse_old(self, message: Message) -> None:
        """Of a term that is over. Its sender is told, or it might never catch up."""
        state = self._state
        if isinstance(message, VoteRequest):
            state.promise(
                VoteAnswer(state.node, message.source, state.term, False, pre=message.pre)
            )
        elif isinstance(message, FromLeader):
            self._following.refuse(message)

    def _step_down(self) -> None:
        self._election.follow(self._state.term, None)

    # --- wishes ----------------------------------------------------------------------------

    def propose(self, data: bytes, now_us: int) -> int:
        """Asks for an entry; its index. It is decided when an entry with this index *and the term
        of now* is in `Ready.committed`; another term there means that it was dropped."""
        self._pass_to(now_us)
        self._must_lead()
        if len(data) > MAX_ENTRY_BYTES:
            raise TooLargeError(f"an entry of {len(data):,} bytes; at most {MAX_ENTRY_BYTES:,}")
        self._must_have_room()
        return self._replication.add(EntryKind.DATA, data)

    def change(self, change: Change, node: int, now_us: int) -> int:
        """Asks for a membership change; the index of its entry. ConflictError while another one is
        under way, or the learner to promote is behind."""
        self._pass_to(now_us)
        self._must_lead()
        log, settings = self._state.log, self._state.settings
        if log.membership_index > log.committed:
            raise ConflictError("another membership change is under way")
        if log.term_at(log.committed) != self._state.term:
            raise ConflictError("the leader is new: nothing of its term is committed yet")
        membership = log.membership.changed(change, node)
        lag = self.lag(node)
        if change is Change.PROMOTE and lag is not None and lag > settings.max_promotion_lag:
            raise ConflictError(f"node {node} misses {lag:,} entries; promote it once it has them")
        self._must_have_room()
        return self._replication.change(membership)

    def transfer(self, to: int, now_us: int) -> None:
        """Lets a voter take over. Proposals are refused until it has, or an election time-out has
        passed."""
        self._pass_to(now_us)
        self._must_lead()
        if to not in self._state.log.membership.voters:
            raise NotFoundError(f"node {to} is no voter")
        if to != self._state.node:
            self._replication.transfer(to)

    def read_index(self, token: int, now_us: int) -> None:
        """Asks for a read that sees all that was committed before; `Ready.reads` has the token when
        the applied state may answer it."""
        self._pass_to(now_us)
        if self._state.role is not Role.LEADER:
            raise self._not_leader()
        self._replication.read(token)

    def _must_lead(self) -> None:
        if self._state.role is not Role.LEADER:
            raise self._not_leader()
        if self._replication.transfer_to is not None:
            raise UnavailableError(f"node {self._replication.transfer_to} is taking over")

    def _not_leader(self) -> NotLeaderError:
        leader = self._state.leader
        known = "nobody is known to lead" if leader is None else f"node {leader} leads"
        return NotLeaderError(f"node {self.node} does not lead; {known}", leader=leader)

    def _must_have_room(self) -> None:
        log, settings = self._state.log, self._state.settings
        if log.last_index - log.committed >= settings.max_uncommitted:
            raise LimitError(f"{settings.max_uncommitted:,} entries wait for a majority")
        if log.cost_bytes >= settings.max_log_bytes:
            raise LimitError(f"the log has {log.cost_bytes:,} bytes and is not compacted")

    # --- the shell's work ------------------------------------------------------------------

    def take_ready(self) -> Ready | None:
        """What to do next; None: nothing, or the disk has too much to do already."""
        if self._writes.full:
            return None
        state, log = self._state, self._state.log
        if state.role is Role.LEADER:
            self._replication.flush()
        ready = Ready(self._writes.number + 1)
        if state.hard_state != self._given_hard_state:
            ready.hard_state = self._given_hard_state = state.hard_state
            self._election.hard_state_given(ready.number)
        ready.snapshot, self._following.installed = self._following.installed, None
        ready.entries, ready.truncate_from = log.take_unwritten()
        ready.committed = log.take_committed(state.settings)
        ready.reads = self._reads.take(log.applied)
        ready.messages, state.messages = state.messages, []
        ready.messages_after_persist, state.after_persist = state.after_persist, []
        return self._begin(ready)

    def _begin(self, ready: Ready) -> Ready | None:
        if ready.must_persist:
            self._writes.begin(ready.number, self._state.log.written)
        elif not self._writes.any:
            ready.messages += ready.messages_after_persist
            ready.messages_after_persist = []
        if ready.empty:
            return None
        self._writes.number = ready.number
        return ready

    def persisted(self, number: int, now_us: int) -> None:
        """All of the Ready with this number, and of those before, is synced."""
        self._pass_to(now_us)
        log = self._state.log
        log.stable = max(log.stable, self._writes.end(number))
        self._election.stored(number)
        if self._state.role is Role.LEADER:
            self._replication.commit()

    def applied(self, index: int) -> None:
        """The state machine has applied everything through `index`, or restored a snapshot of it;
        it must be told of both, or it gets no more."""
        log = self._state.log
        if index > log.given:
            raise InvalidError(f"entry {index} was not given to apply; the last is {log.given}")
        log.applied = max(log.applied, index)

    def compact(self, index: int, data: bytes) -> Snapshot:
        """`data` is the state after applying `index`: entries before it may be forgotten. Returns
        what to store in place of the older snapshot; stored entries through its index may be
        dropped once it is synced."""
        log, settings = self._state.log, self._state.settings
        if not log.snapshot.index < index <= log.applied:
            raise InvalidError(
                f"a snapshot at {index}; it must lie after {log.snapshot.index}, the last one, and "
                f"not after {log.applied}, the last applied"
            )
        if len(data) > settings.max_snapshot_bytes:
            raise TooLargeError(
                f"a snapshot of {len(data):,} bytes; at most {settings.max_snapshot_bytes:,}"
            )
        snapshot = Snapshot(index, log.term_at(index) or 0, log.membership_at(index), data)
        log.compact(snapshot, settings.keep_entries, settings.max_log_bytes // 4)
        return snapshot
