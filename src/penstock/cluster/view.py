"""What the planner sees: the agreed state, since when things are so, and what is on its way."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.cluster.map import ShardPlace
from penstock.cluster.shares import Shares
from penstock.cluster.state import ClusterState
from penstock.cluster.tables import holders


class Limits(msgspec.Struct, frozen=True):
    """How much the planner does at once. Promotions are bounded by `commands` alone."""

    grace_us: int = 600_000_000  # a node may be down so long before its replicas are replaced
    moves: int = 64  # nodes that join a shard at the same time, in the whole cluster
    moves_per_node: int = 4  # of those, where one node joins or is the owner that feeds it
    transfers: int = 64  # planned changes of owner in one plan
    commands: int = 1024  # in one plan


class Figures:
    """Since when nodes are down and shards are joined, as far as one leader saw it: a new leader
    counts anew, which only makes it wait longer."""

    def __init__(self) -> None:
        self.down_since_us: dict[int, int] = {}
        self.joining_since_us: dict[tuple[int, int], int] = {}  # by shard and node

    def observe(self, state: ClusterState, now_us: int) -> None:
        """Call it before every plan."""
        self.down_since_us = {
            number: self.down_since_us.get(number, now_us)
            for number, node in state.nodes.items()
            if node.status == "down"
        }
        self.joining_since_us = {
            (shard, place.joining): self.joining_since_us.get((shard, place.joining), now_us)
            for shard, place in enumerate(state.shards)
            if place.joining
        }


class View:
    """The nodes by what may be asked of them, and what each has once all that began is finished."""

    def __init__(self, state: ClusterState, figures: Figures, now_us: int, limits: Limits) -> None:
        self.state = state
        self.limits = limits
        self.up: set[int] = set()  # may get replicas and shards to own
        self.alive: set[int] = set()  # also those that drain: they serve what they have
        self.members: dict[int, int] = {}  # by weight: those that should have replicas
        for number, node in state.nodes.items():
            down_us = now_us - figures.down_since_us.get(number, now_us)
            drains = number in state.draining
            if node.status in ("up", "draining"):
                self.alive.add(number)
            if node.status == "up":
                self.up.add(number)
            if node.status == "up" or (
                node.status == "down" and down_us < limits.grace_us and not drains
            ):
                self.members[number] = node.weight
        self.copies = min(state.replication, len(self.members))
        self.held: Counter[int] = Counter()
        self.owned: Counter[int] = Counter()
        self.busy: Counter[int] = Counter()  # joins that a node takes part in
        self.moving = 0
        self.wanted = 0  # replicas in all that are there or can be made
        # Shards with more members than copies; who may go, who should first.
        self.crowded: dict[int, list[int]] = {}
        self.needy: list[int] = []  # shards with fewer, that somebody can feed
        self._survey()
        self.shares = Shares(self.members, self.wanted, len(state.shards))
        for shard in self.crowded:
            self.crowded[shard] = self._foresee(state.shards[shard])

    def _survey(self) -> None:
        for shard, place in enumerate(self.state.shards):
            self.owned[place.owner] += 1
            if place.joining:
                self.moving += 1
                self.busy[place.joining] += 1
                self.busy[place.owner] += 1
            kept = self.kept(place)
            self.held.update(kept)
            if len(kept) > self.copies:
                self.crowded[shard] = []
            if len(kept) < self.copies and self.available(place):
                self.needy.append(shard)
                self.wanted += self.copies
            else:
                self.wanted += min(len(kept), self.copies)

    def _foresee(self, place: ShardPlace) -> list[int]:
        """Who may go, those first who have too much; the first are counted as gone already."""
        order = sorted(
            (node for node in place.replicas if node in self.members),
            key=lambda node: (
                node not in self.up,
                -self.shares.excess(node, self.held[node]),
                node == place.owner,
                node == place.replicas[-1],  # it came last: others should make room for it
                node,
            ),
        )
        for node in order[: len(self.kept(place)) - self.copies]:
            self.held[node] -= 1
        return order

    def kept(self, place: ShardPlace) -> list[int]:
        """The members that have a shard or join it."""
        return [node for node in holders(place) if node in self.members]

    def available(self, place: ShardPlace) -> bool:
        """Whether a node that is there owns the shard or may be promoted."""
        return not self.alive.isdisjoint(place.in_sync)

    def sound(self, place: ShardPlace, without: int) -> int:
        """Copies that are complete and reachable, without those of a node."""
        return sum(node in self.alive and node != without for node in place.in_sync)

    def resting(self) -> bool:
        """Whether a member is down and expected back."""
        return not self.members.keys() <= self.up

    def heir(self, place: ShardPlace, without: int) -> int | None:
        """The best next owner: one that stays, in sync, up, with the least to do for its weight."""
        fit = [node for node in place.in_sync if node in self.alive and node != without]
        return min(fit, key=self._heir_order, default=None)

    def _heir_order(self, node: int) -> tuple[bool, float, int]:
        weight = self.state.nodes[node].weight
        return node not in self.up, self.owned[node] / weight, node

    def may_join(self, node: int) -> bool:
        """Whether the limits let another shard be fed to or by a node."""
        return self.busy[node] < self.limits.moves_per_node

    def neediest(self) -> list[int]:
        """Nodes that may get another replica, those with the least of their share first."""
        ready = [node for node in self.members if node in self.up and self.may_join(node)]
        return sorted(ready, key=lambda node: (self.shares.excess(node, self.held[node]), node))
