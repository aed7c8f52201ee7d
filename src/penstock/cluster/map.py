"""The cluster map: which node has which shard. Every node and every client knows all of it."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import ConflictError, InvalidError, ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_FRAME_BYTES

MAX_NODES = 10_000
MAX_SHARDS = 65_536
MAX_REPLICATION = 7
STRONG = 2  # so many copies are waited for; further ones follow as they can
MAX_COPIES = MAX_REPLICATION + 1  # while one replica takes the place of another
MAX_NODE_ID = 2**31 - 1
MAX_NUMBER = 2**63 - 1  # versions, epochs, incarnations
MAX_NAME = 255  # characters, of a node's name and of its host
MAX_WEIGHT = 1000
MAX_LEVEL = 1_000_000
MAX_RELEASE = 32  # characters

Status = Literal["up", "down", "draining", "left"]
NodeId = Annotated[int, Meta(ge=1, le=MAX_NODE_ID)]
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
ShardId = Annotated[int, Meta(ge=0, lt=MAX_SHARDS)]
Replication = Annotated[int, Meta(ge=1, le=MAX_REPLICATION)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Level = Annotated[int, Meta(ge=1, le=MAX_LEVEL)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Copies = Annotated[tuple[NodeId, ...], Meta(min_length=1, max_length=MAX_COPIES)]


class NodeInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node. Its id is never given to another; `incarnation` grows with every start of it."""

    id: Annotated[int, Meta(ge=0, le=MAX_NODE_ID)]  # 0: to be given when it joins
    name: Name
    host: Name
    port: Port
    status: Status
    incarnation: Number
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] = 1


class Speaks(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The levels that a node speaks with others (`cluster/levels.py`), and its release."""

    lowest: Level
    highest: Level
    release: Annotated[str, Meta(max_length=MAX_RELEASE)] = ""


class Stated(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a node speaks in one of its lives."""

    node: NodeId
    incarnation: Number
    speaks: Speaks


class ShardPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a shard is. The first replica owns it, in this epoch and no other."""

    epoch: Number
    replicas: Copies
    in_sync: Copies  # of the replicas: those that have all that was acknowledged
    joining: Annotated[int, Meta(ge=0, le=MAX_NODE_ID)] = 0  # catches up to be one more replica
    version: Number = 0  # of the map when this place last changed

    @property
    def owner(self) -> int:
        """The node that owns the shard."""
        return self.replicas[0]


Nodes = Annotated[tuple[NodeInfo, ...], Meta(max_length=MAX_NODES)]
Places = Annotated[tuple[ShardPlace, ...], Meta(max_length=MAX_SHARDS)]


class ClusterMap(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True
):
    """The whole map, nodes by id. Lookups cost the same whatever its size."""

    cluster: Number
    version: Number
    nodes: Nodes
    shards: Places
    replication: Replication

    def owner_of(self, shard: int) -> int:
        """The node that owns a shard."""
        return self.shards[shard].replicas[0]

    def node(self, number: int) -> NodeInfo | None:
        """A node by its id."""
        return self._by_id.get(number)

    def shards_of(self, node: int) -> tuple[int, ...]:
        """The shards of which a node has a replica, in order."""
        return self._held.get(node, ())

    def newer_than(self, other: ClusterMap | None) -> bool:
        """Whether to use this map instead; never one of another cluster."""
        return other is None or (self.cluster == other.cluster and self.version > other.version)

    @cached_property
    def _by_id(self) -> dict[int, NodeInfo]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def _held(self) -> dict[int, tuple[int, ...]]:
        held: dict[int, list[int]] = {}
        for shard, place in enumerate(self.shards):
            for node in place.replicas:
                held.setdefault(node, []).append(shard)
        return {node: tuple(shards) for node, shards in held.items()}


class MapDelta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What changed from one version of a map to a later one."""

    cluster: Number
    base: Number
    version: Number
    replication: Replication
    nodes: Nodes  # new or changed
    gone: Annotated[tuple[NodeId, ...], Meta(max_length=MAX_NODES)]
    shards: Annotated[tuple[tuple[ShardId, ShardPlace], ...], Meta(max_length=MAX_SHARDS)]


def diff(old: ClusterMap, new: ClusterMap) -> MapDelta:
    """What a client with the old map must be told; InvalidError if it needs the whole new one."""
    if old.cluster != new.cluster or len(old.shards) != len(new.shards):
        raise InvalidError("the maps are of different clusters")
    if new.version < old.version:
        raise InvalidError(f"version {new.version} is older than {old.version}")
    changed = tuple(node for node in new.nodes if old.node(node.id) != node)
    gone = tuple(node.id for node in old.nodes if new.node(node.id) is None)
    moved = tuple(
        (shard, after)
        for shard, (before, after) in enumerate(zip(old.shards, new.shards, strict=True))
        if before is not after and before != after
    )
    return MapDelta(new.cluster, old.version, new.version, new.replication, changed, gone, moved)


def patch(old: ClusterMap, delta: MapDelta) -> ClusterMap:
    """The later map. ConflictError if the delta starts from another version than the old map has:
    ask for the whole map. ProtocolError if what comes out is no map."""
    if (delta.cluster, delta.base) != (old.cluster, old.version):
        raise ConflictError(f"a delta from version {delta.base} for a map of {old.version}")
    if delta.version < delta.base:
        raise ProtocolError("a delta that goes back")
    nodes = {node.id: node for node in old.nodes}
    for number in delta.gone:
        nodes.pop(number, None)
    nodes.update((node.id, node) for node in delta.nodes)
    shards = list(old.shards)
    for shard, place in delta.shards:
        if shard >= len(shards):
            raise ProtocolError(f"a delta for shard {shard} of {len(shards)}")
        shards[shard] = place
    ordered = tuple(nodes[number] for number in sorted(nodes))
    return validated(
        ClusterMap(delta.cluster, delta.version, ordered, tuple(shards), delta.replication)
    )


def validated(found: ClusterMap) -> ClusterMap:
    """The map itself; ProtocolError if it contradicts itself."""
    if len(found.nodes) > MAX_NODES:
        raise ProtocolError(f"{len(found.nodes)} nodes; at most {MAX_NODES}")
    ids = [node.id for node in found.nodes]
    if ids and (ids[0] < 1 or any(a >= b for a, b in pairwise(ids))):
        raise ProtocolError("the nodes of a map are not in the order of their ids")
    known = frozenset(ids)
    for shard, place in enumerate(found.shards):
        problem = place_problem(place, known)
        if problem:
            raise ProtocolError(f"shard {shard}: {problem}")
    return found


def place_problem(place: ShardPlace, nodes: Container[int]) -> str:
    """What is wrong with a place; empty if nothing is."""
    replicas, in_sync = place.replicas, place.in_sync
    unique = set(replicas)
    if len(unique) != len(replicas):
        return "a node has it twice"
    if not unique.issuperset(in_sync) or len(set(in_sync)) != len(in_sync):
        return "the in-sync set is no part of the replicas"
    if not replicas or replicas[0] not in in_sync:
        return "its owner is not in sync"
    if place.joining in unique:
        return "a replica joins it"
    if not all(node in nodes for node in replicas):
        return "a replica is on an unknown node"
    if place.joining and place.joining not in nodes:
        return "an unknown node joins it"
    return ""


pack = msgspec.msgpack.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(ClusterMap).decode
_decode_delta = msgspec.msgpack.Decoder(MapDelta).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_map(body: Buffer) -> ClusterMap:
    """The map that `pack` wrote; ProtocolError if it is none."""
    _bounded(body)
    try:
        found: ClusterMap = _decode_map(body)
    except UNREADABLE as error:
        raise ProtocolError(f"a cluster map that cannot be read: {error}") from error
    return validated(found)


def read_delta(body: Buffer) -> MapDelta:
    """The delta that `pack` wrote; ProtocolError if it is none. `patch` checks what it says."""
    _bounded(body)
    try:
        delta: MapDelta = _decode_delta(body)
    except UNREADABLE as error:
        raise ProtocolError(f"a map delta that cannot be read: {error}") from error
    return delta


def _bounded(body: Buffer) -> None:
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"{len(body):,} bytes of cluster map; too large")
