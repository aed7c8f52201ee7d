"""What the commands change: nodes, places of shards, definitions."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from penstock.cluster.commands import Refused
from penstock.cluster.map import MAX_NUMBER, NodeInfo, ShardPlace, Speaks

FIRST = 1  # the level of the releases before there were levels: they say nothing about it


class RefusedError(Exception):
    """A command is refused before it changed anything. Never leaves `ClusterState.apply`."""

    def __init__(self, kind: Refused, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Definition(NamedTuple):
    """What a name stands for, since a version of the state."""

    version: int
    data: bytes


class Tables:
    """The agreed state. `version` grows with every change; all else is read through it."""

    def __init__(self) -> None:
        self.cluster = 0
        self.version = 0
        self.replication = 1
        self.level = FIRST  # what all nodes speak
        self.speaks: dict[int, Speaks] = {}  # what each said, from the second level on
        self.next_node = 1  # all ids below it are or were used
        self.nodes: dict[int, NodeInfo] = {}
        self.draining: set[int] = set()  # also while they are down
        self.shards: list[ShardPlace] = []
        self.definitions: dict[str, Definition] = {}
        self.definition_bytes = 0
        self.held: Counter[int] = Counter()  # shards that each node has or joins

    def next_version(self) -> int:
        """A change begins. All its checks are done."""
        self.version += 1
        return self.version

    def node(self, number: int) -> NodeInfo:
        """A node that has not left."""
        node = self.nodes.get(number)
        if node is None:
            raise RefusedError("unknown", f"there is no node {number}")
        if node.status == "left":
            raise RefusedError("unsafe", f"node {number} has left; it can only join anew")
        return node

    def reachable(self, number: int) -> NodeInfo:
        """A node that is neither down nor gone."""
        node = self.node(number)
        if node.status == "down":
            raise RefusedError("unsafe", f"node {number} is down")
        return node

    def put_place(self, shard: int, place: ShardPlace) -> None:
        """Another place for a shard."""
        for node in holders(self.shards[shard]):
            self.held[node] -= 1
        self.held.update(holders(place))
        self.shards[shard] = place

    def full(self) -> bool:
        """Whether versions have run out: 2^63 changes."""
        return self.version >= MAX_NUMBER


def holders(place: ShardPlace) -> tuple[int, ...]:
    """All nodes that have a shard or are about to."""
    return (*place.replicas, place.joining) if place.joining else place.replicas
