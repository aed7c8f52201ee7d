"""One node's part of the control plane. Pure: a shell moves messages, stores, and hands in time.

Every node follows the consensus and so has the whole state. Commands go to the leader, are decided
there, and whoever asked sees the outcome when it applies the log itself: an answer cannot get lost.
What gets no outcome is asked again, after a while or once there is a new leader; commands are made
so that a repetition does no harm.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.cluster.commands import (
    Command,
    Leave,
    Outcome,
    Rejoin,
    Remove,
    pack_command,
    read_command,
)
from penstock.cluster.consensus import messages as consensus
from penstock.cluster.consensus.messages import EntryKind
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.ready import Ready
from penstock.cluster.consensus.settings import Settings
from penstock.cluster.consensus.state import Role
from penstock.cluster.levels import HIGHEST, LOWEST
from penstock.cluster.map import Speaks, Stated
from penstock.cluster.plane.leading import Leading
from penstock.cluster.plane.messages import (
    Ask,
    Beat,
    Consensus,
    Message,
    Proposal,
    Suspect,
    pack,
    unpack,
    unpack_proposal,
)
from penstock.cluster.state import ClusterState
from penstock.cluster.tables import FIRST
from penstock.cluster.view import Limits
from penstock.errors import LimitError, PenstockError, ProtocolError

BEAT_US = 200_000
# Shorter than the consensus is by itself: a lost leader is most of what a failover takes, and one
# that is only late loses nothing but its lead, which no push or pop waits for.
CONSENSUS = Settings(election_us=600_000)
ASK_US = 500_000  # a command without an outcome is asked again
MAX_ASKED = 4096
COMPACT_ENTRIES = 2000
SPEAKS = Speaks(LOWEST, HIGHEST)  # of a node whose release is not told


@dataclass(slots=True)
class Out:
    """What the shell is to do, in order; it takes the lists and leaves them empty."""

    messages: list[tuple[int, bytes]] = field(default_factory=list)
    writes: list[Ready] = field(default_factory=list)  # then `persisted`
    snapshots: list[consensus.Snapshot] = field(default_factory=list)  # of the own log: keep it
    outcomes: list[tuple[int, Command, Outcome]] = field(default_factory=list)  # by token
    changed: bool = False  # the state is another than before


@dataclass(slots=True)
class _Asked:
    command: Command
    proposal: bytes
    due_us: int


class ControlPlane:
    """See the module. `raft` and `state` are as they were recovered, or new."""

    def __init__(
        self, raft: Raft, state: ClusterState, incarnation: int, now_us: int,
        limits: Limits | None = None, speaks: Speaks = SPEAKS,
    ) -> None:  # fmt: skip
        self.raft = raft
        self.state = state
        self.out = Out()
        self._incarnation = incarnation
        # What nodes say that they speak, over their links; the leader goes by it.
        self.stated = {raft.node: Stated(raft.node, incarnation, speaks)}
        self.leaving = False  # it is about to stop, and says no more that it lives
        self._limits = limits or Limits()
        self._leading: Leading | None = None
        self._followed = 0  # the last leader that was another node
        self._led: tuple[int | None, int] = (None, 0)  # who leads, and in which term, as of late
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0
        self._beat_us = now_us
        self._unstored: deque[int] = deque()  # Readys that are being written, by number
        self._held: deque[tuple[int, list[tuple[int, bytes]]]] = deque()  # messages that wait
        self._compacted = raft.committed

    @property
    def node(self) -> int:
        """This node's id."""
        return self.raft.node

    # --- events ----------------------------------------------------------------------------

    def receive(self, source: int, data: bytes, now_us: int) -> None:
        """A message of another node; ProtocolError if it makes no sense."""
        message = unpack(data)
        if isinstance(message, Consensus):
            inner = consensus.decode(message.body)
            if inner.source != source:
                raise ProtocolError(f"node {source} speaks for node {inner.source}")
            self.raft.step(inner, now_us)
        elif isinstance(message, Ask):
            # All would stumble over one that cannot be read.
            command = read_command(unpack_proposal(message.proposal).command)
            self._propose_asked(message.proposal, command, now_us)
        elif self._leading is not None:
            if isinstance(message, Beat):
                self._leading.heard(source, message.incarnation, now_us)
            else:
                self._leading.suspect(message.node, source, now_us)
        self._advance(now_us)

    def tick(self, now_us: int) -> None:
        """Time has passed."""
        self.raft.tick(now_us)
        if now_us >= self._beat_us:
            self._beat_us = now_us + BEAT_US
            if not self.leaving:
                self._tell_voters(Beat(self._incarnation), now_us)
        for asked in self._asked.values():
            if now_us >= asked.due_us:
                self._send_ask(asked, now_us)
        self._advance(now_us)

    def next_due(self) -> int:
        """When `tick` should be called although nothing happens."""
        dues = [self._beat_us, self.raft.next_due(), *(a.due_us for a in self._asked.values())]
        if self._leading is not None:
            dues.append(self._leading.next_due())
        return min(due_us for due_us in dues if due_us is not None)

    def ask(self, command: Command, now_us: int) -> int:
        """Asks for a command; its token comes back in `out.outcomes`. LimitError: too many wait."""
        if len(self._asked) >= MAX_ASKED:
            raise LimitError(f"{MAX_ASKED:,} commands wait for the control plane")
        self._tokens += 1
        token = self._tokens
        self._asked[token] = asked = self._asking(token, command)
        self._send_ask(asked, now_us)
        self._advance(now_us)
        return token

    def forget(self, token: int) -> None:
        """Nobody waits for this any more; it may be carried out all the same."""
        self._asked.pop(token, None)

    def suspect(self, node: int, now_us: int) -> None:
        """A node could not be reached: the leader should know."""
        self._tell_voters(Suspect(node), now_us)

    def persisted(self, number: int, now_us: int) -> None:
        """A Ready of `out.writes`, and all before it, is synced."""
        while self._unstored and self._unstored[0] <= number:
            self._unstored.popleft()
        while self._held and not (self._unstored and self._unstored[0] <= self._held[0][0]):
            self.out.messages += self._held.popleft()[1]
        self.raft.persisted(number, now_us)
        self._advance(now_us)

    # --- asking ----------------------------------------------------------------------------

    def _asking(self, token: int, command: Command) -> _Asked:
        """A node that comes back says what it speaks, from the second level on."""
        if isinstance(command, Rejoin) and self.state.level > FIRST:
            command = replace(command, speaks=self.stated[self.node].speaks)
        packed = pack_command(command)
        return _Asked(command, pack(Proposal(self.node, self._incarnation, token, packed)), 0)

    def _send_ask(self, asked: _Asked, now_us: int) -> None:
        asked.due_us = now_us + ASK_US
        leader = self.raft.leader
        if leader == self.node:
            self._propose_asked(asked.proposal, asked.command, now_us)
        elif leader is not None:
            self._send(leader, Ask(asked.proposal))

    def _ask_again(self, now_us: int) -> bool:
        """A new leader is asked at once for what the one before did not get, or took with it, or
        nobody was there to be asked for; whether there was anything."""
        led, self._led = self._led, (self.raft.leader, self.raft.term)
        if self._led == led or self.raft.leader is None:
            return False
        for asked in self._asked.values():
            self._send_ask(asked, now_us)
        return bool(self._asked)

    def _propose_asked(self, proposal: bytes, command: Command, now_us: int) -> None:
        """Not before its time; whoever wants it asks again."""
        goes = command.id if isinstance(command, Leave | Remove) else 0
        leading = self._leading
        if not goes or leading is None or leading.voters.let_go(self.state, goes, now_us):
            self._propose(proposal, now_us)

    def _propose(self, proposal: bytes, now_us: int) -> int:
        """The index, or 0 if it was not taken: whoever wants it asks again."""
        try:
            return self.raft.propose(proposal, now_us)
        except PenstockError:
            return 0

    def _tell_voters(self, message: Beat | Suspect, now_us: int) -> None:
        for voter in self.raft.membership.voters:
            if voter != self.node:
                self._send(voter, message)
            elif self._leading is not None:
                if isinstance(message, Beat):
                    self._leading.heard(self.node, message.incarnation, now_us)
                else:
                    self._leading.suspect(message.node, self.node, now_us)

    def _send(self, node: int, message: Message) -> None:
        self.out.messages.append((node, pack(message)))

    # --- consensus -------------------------------------------------------------------------

    def _advance(self, now_us: int) -> None:
        """Lets the consensus go on, and the leader do its duties, until there is nothing to do."""
        while True:
            while (ready := self.raft.take_ready()) is not None:
                self._carry_out(ready)
            more = self._lead(now_us)
            if not self._ask_again(now_us) and not more:
                return

    def _carry_out(self, ready: Ready) -> None:
        for message in ready.messages:
            self._send(message.to, Consensus(consensus.encode(message)))
        later = [
            (message.to, pack(Consensus(consensus.encode(message))))
            for message in ready.messages_after_persist
        ]
        if ready.must_persist:
            self._unstored.append(ready.number)
            self.out.writes.append(ready)
        if later:
            self._held.append((ready.number, later))
        if ready.snapshot is not None:
            self.state = ClusterState.restore(ready.snapshot.data)
            self._compacted = ready.snapshot.index
            self.out.changed = True
            self.raft.applied(ready.snapshot.index)
        for entry in ready.committed:
            self._apply(entry)

    def _apply(self, entry: consensus.Entry) -> None:
        if entry.kind == EntryKind.DATA:
            proposal = unpack_proposal(entry.data)
            command = read_command(proposal.command)
            before = self.state.version
            outcome = self.state.apply(command)
            self.out.changed |= self.state.version != before
            mine = (proposal.origin, proposal.incarnation) == (self.node, self._incarnation)
            if mine and proposal.token in self._asked:
                self._answered(proposal.token, command, outcome)
        self.raft.applied(entry.index)
        if entry.index - self._compacted >= COMPACT_ENTRIES:
            self._compacted = entry.index
            self.out.snapshots.append(self.raft.compact(entry.index, self.state.snapshot()))

    def _answered(self, token: int, command: Command, outcome: Outcome) -> None:
        unsaid = isinstance(command, Rejoin) and command.speaks is None
        if unsaid and outcome.refused and self.state.level > FIRST:
            self._asked[token] = self._asking(token, command)  # the level was not known here
            return
        del self._asked[token]
        self.out.outcomes.append((token, command, outcome))

    def _lead(self, now_us: int) -> bool:
        """The leader's duties; whether the consensus has more to do because of them."""
        if self.raft.role is not Role.LEADER or not self.state.nodes:
            self._leading = None
            if self.raft.leader not in (None, self.node):
                self._followed = self.raft.leader or 0
            return False
        if self._leading is None or self._leading.term != self.raft.term:
            self._leading = Leading(
                self.raft, self.state, self.stated, self._limits, now_us, self._followed
            )
            self._leading.heard(self.node, self._incarnation, now_us)
        before = self.raft.last_index
        for command in self._leading.commands(self.state, now_us):
            body = Proposal(0, 0, 0, pack_command(command))
            self._leading.proposed(self._propose(pack(body), now_us))
        self._leading.voters.reform(self.state, now_us)
        return self.raft.last_index != before
