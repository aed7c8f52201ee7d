"""Requests and answers about a cluster itself: its map, its nodes, where messages are."""

from __future__ import annotations

import msgspec

from penstock.wire.request import ColdRequest


class ClusterMap(ColdRequest, omit_defaults=True):
    """The map of the cluster, for one who has a version of it (0: none). Answer: bytes: `m` and the
    packed map, or `d` and what changed since, or nothing if that version is the newest here and
    there is no newer one within `wait_ms`."""

    version: int = 0
    wait_ms: int = 0


class WhereIs(ColdRequest):
    """Which nodes have messages of a queue; asked of the node that keeps the queue's list.
    `emptied` are nodes that were found empty, each with the fill that is over. Answer: a list of
    (node, fill); an empty one if there is none within `wait_ms`."""

    stream: int
    emptied: list[tuple[int, int]] = msgspec.field(default_factory=list)
    wait_ms: int = 0


class ClusterStatus(ColdRequest):
    """The cluster as this node knows it. Answer: dict. With `plan`, also what would move next."""

    plan: bool = False


class ClusterChange(ColdRequest):
    """`drain`, `undrain` or `remove` a node, or set the `replication` to a value. Answer: int, the
    version of the map after it."""

    action: str
    node: int = 0
    value: int = 0


class ClusterJoin(ColdRequest, omit_defaults=True):
    """A new node asks to be let in, under a name of its own. Answer: ClusterJoined; the same name
    gets the same answer."""

    name: str
    lowest: int = 1  # the levels that it speaks with other nodes
    highest: int = 1
    release: str = ""


class ClusterJoined(msgspec.Struct):
    """What a new node has to know: its id, the cluster, and where the others are."""

    node: int
    cluster: int
    shards: int
    peers: list[tuple[int, str, int]]
