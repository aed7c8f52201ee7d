"""What the leader of the consensus does about the cluster: who lives, what moves."""

from __future__ import annotations

from penstock.cluster.commands import Command, Down, Up
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.levels import next_raise
from penstock.cluster.liveness import Detector
from penstock.cluster.map import Stated
from penstock.cluster.plane.voters import Voters
from penstock.cluster.planner import plan
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Figures, Limits

DOWN_AFTER_US = 1_000_000
PLAN_US = 50_000  # between two plans
DEPOSED_REPORTERS = 2  # halve its time-out, which leaves room for two heartbeats if it lives


class Leading:
    """One term of leadership. It starts with one suspicion: a majority would not have voted if the
    leader before (`deposed`) had not been silent. Every other node has a whole time-out."""

    def __init__(
        self, raft: Raft, state: ClusterState, stated: dict[int, Stated], limits: Limits,
        now_us: int, deposed: int = 0,
    ) -> None:  # fmt: skip
        self.term = raft.term
        self.voters = Voters(raft)
        self._raft = raft
        self._stated = stated  # what nodes say that they speak; kept by the control plane
        self._limits = limits
        self._figures = Figures()
        self._detector = Detector(DOWN_AFTER_US, now_us)
        self._watched: dict[int, int] = {}
        self._plan_us = now_us
        self._planned = 0  # the index of the last command of the last plan
        self._settled = -1  # the version of a state in which nothing is to be done
        self._watch(state, now_us)
        others = [voter for voter in raft.membership.voters if voter != deposed]
        for voter in others[:DEPOSED_REPORTERS]:
            self._detector.suspect(deposed, voter, now_us)

    def heard(self, node: int, incarnation: int, now_us: int) -> None:
        """A node lives."""
        if node in self._watched:
            self._detector.heard(node, incarnation, now_us)

    def suspect(self, node: int, by: int, now_us: int) -> None:
        """A node could not reach another."""
        self._detector.suspect(node, by, now_us)

    def next_due(self) -> int:
        """When `commands` may have something new to say."""
        due_us = self._detector.next_due()
        return self._plan_us if due_us is None else min(self._plan_us, due_us)

    def commands(self, state: ClusterState, now_us: int) -> list[Command]:
        """What to propose now; tell `proposed` the index of the last of it."""
        self._watch(state, now_us)
        if self._raft.committed >= self._planned:
            self._correct(state, now_us)
        verdicts: list[Command] = []
        for node, verdict in self._detector.tick(now_us):
            incarnation = self._detector.incarnation_of(node) or 0
            kind = Down if verdict == "down" else Up
            verdicts.append(kind(node, incarnation))
        if now_us < self._plan_us:
            return verdicts
        self._plan_us = now_us + PLAN_US
        if verdicts or self._raft.committed < self._planned:
            return verdicts
        higher = next_raise(state, self._stated)
        steps = self._plan(state, now_us)
        return steps if higher is None else [higher, *steps]

    def _plan(self, state: ClusterState, now_us: int) -> list[Command]:
        """Looks at all shards only if something has changed, or time may change it: a plan for
        nodes that are all there follows from the state alone."""
        if state.version == self._settled:
            return []
        self._figures.observe(state, now_us)
        steps = plan(state, self._figures, now_us, self._limits)
        waits = any(node.status == "down" for node in state.nodes.values())
        if not steps and not waits:
            self._settled = state.version
        return steps

    def proposed(self, index: int) -> None:
        """Nothing more is planned before this is decided: it would only be planned twice."""
        self._planned = max(self._planned, index)

    def _watch(self, state: ClusterState, now_us: int) -> None:
        for number, node in state.nodes.items():
            if node.status == "left":
                if self._watched.pop(number, None) is not None:
                    self._detector.forget(number)
            elif self._watched.get(number) != node.incarnation:
                self._watched[number] = node.incarnation
                self._detector.watch(number, node.incarnation, now_us, node.status == "down")
        for number in self._watched.keys() - state.nodes.keys():
            del self._watched[number]
            self._detector.forget(number)

    def _correct(self, state: ClusterState, now_us: int) -> None:
        """A verdict that was not taken, or got lost with a leader, has to be found anew."""
        for number, node in state.nodes.items():
            down = node.status == "down"
            if number in self._watched and self._detector.takes_for_down(number) != down:
                self._detector.watch(number, node.incarnation, now_us, down)
