"""Who votes in the consensus: its leader sees to it, one change after the other."""

from __future__ import annotations

from contextlib import suppress

from penstock.cluster.consensus.membership import Change
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.settings import MAX_VOTERS
from penstock.cluster.state import ClusterState
from penstock.errors import ConflictError, LimitError, UnavailableError

GOING_US = 2_000_000  # who wants a node removed asks again well before
HAND_OVER_US = 3_000_000  # between two tries: while one is under way nothing is decided


class Voters:
    """In one term of leadership: all nodes of the cluster follow; one, three or five that stay
    vote. Who drains votes no more, but follows: it has to know what becomes of its shards."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._going: dict[int, int] = {}  # nodes to be removed; until when that is believed
        self._hand_over_us = 0  # not before this

    def let_go(self, state: ClusterState, number: int, now_us: int) -> bool:
        """Whether it may be proposed that a node leaves. Not while it votes: nodes that are removed
        are switched off, and the others might be too few to decide anything without it, even that
        it does not vote any more. So it loses its vote first."""
        raft = self._raft
        if number not in raft.membership.voters or number not in state.nodes:
            return True
        if state.held[number]:  # to be refused, unless what is under way makes a difference
            return raft.committed == raft.last_index
        self._going[number] = now_us + GOING_US
        return False

    def reform(self, state: ClusterState, now_us: int) -> None:
        """One step towards a membership of the consensus that fits the cluster, if none is under
        way."""
        self._going = {node: until for node, until in self._going.items() if until > now_us}
        # Another change or a hand-over is under way, the node is behind, or the log is full.
        with suppress(ConflictError, UnavailableError, LimitError):
            step = self._next_step(state)
            if step is None:
                return
            if step == (Change.DEMOTE, self._raft.node):
                self._hand_over(state, now_us)
            else:
                self._raft.change(*step, now_us)

    def _next_step(self, state: ClusterState) -> tuple[Change, int] | None:
        members = self._raft.membership
        there = [number for number, node in state.nodes.items() if node.status != "left"]
        for number in there:
            if number not in members:
                return Change.ADD_LEARNER, number
        if (promoted := self._to_promote(state)) is not None:
            return Change.PROMOTE, promoted
        for number in members.nodes:
            if number not in there and number != self._raft.node:
                return Change.REMOVE, number
        if (demoted := self._to_demote(state)) is not None:
            return Change.DEMOTE, demoted
        return None

    def _to_promote(self, state: ClusterState) -> int | None:
        members, staying = self._raft.membership, self._staying(state)
        voting = [number for number in members.voters if number in staying]
        if len(voting) < _wanted(len(staying)) and len(members.voters) < MAX_VOTERS:
            for number in members.learners:
                if number in staying and self._is_ready(state, number):
                    return number
        return None

    def _to_demote(self, state: ClusterState) -> int | None:
        """A voter that does not stay, once there is another in its place; one that is to be removed
        cannot wait for that. The leader comes last: it has to hand over before."""
        voters, staying = self._raft.membership.voters, self._staying(state)
        if not any(number in staying for number in voters):
            return None
        too_many = len(voters) > _wanted(len(staying)) or len(voters) == MAX_VOTERS
        retired = [
            number for number in voters
            if number not in staying and (too_many or number in self._going)
            and _can_decide([voter for voter in voters if voter != number], state)
        ]  # fmt: skip
        return min(retired, key=lambda number: number == self._raft.node, default=None)

    def _hand_over(self, state: ClusterState, now_us: int) -> None:
        if now_us < self._hand_over_us:
            return
        staying = self._staying(state)
        for number in self._raft.membership.voters:
            if number in staying and self._is_ready(state, number):
                self._hand_over_us = now_us + HAND_OVER_US
                self._raft.transfer(number, now_us)
                return

    def _staying(self, state: ClusterState) -> set[int]:
        return {
            number for number, node in state.nodes.items()
            if node.status in ("up", "down") and number not in state.draining
            and number not in self._going
        }  # fmt: skip

    def _is_ready(self, state: ClusterState, number: int) -> bool:
        return state.nodes[number].status == "up" and self._raft.lag(number) == 0


def _can_decide(voters: list[int], state: ClusterState) -> bool:
    """Whether those that are there are a majority: who knows when the others come back."""
    known = [state.nodes[each] for each in voters if each in state.nodes]
    return 2 * sum(node.status in ("up", "draining") for node in known) > len(voters)


def _wanted(nodes: int) -> int:
    """An odd number: one more would not survive more failures."""
    return 5 if nodes >= 5 else 3 if nodes >= 3 else 1
