"""Replicas come and go, keep up or do not; owners change, each in an epoch of its own."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.cluster.commands import (
    AddReplica,
    DropReplica,
    GrowInSync,
    Promote,
    SetReplication,
    ShrinkInSync,
    Transfer,
    Withdraw,
)
from penstock.cluster.map import ShardPlace
from penstock.cluster.tables import FIRST, RefusedError, Tables


def next_epoch(place: ShardPlace, owner: int, version: int) -> ShardPlace:
    """The place under an owner, one of its in-sync replicas, in a new epoch."""
    replicas = (owner, *(node for node in place.replicas if node != owner))
    in_sync = tuple(node for node in replicas if node in place.in_sync)
    return ShardPlace(place.epoch + 1, replicas, in_sync, place.joining, version)


def shrink(tables: Tables, command: ShrinkInSync) -> int:
    """The owner goes on without replicas that do not keep up."""
    place = _from_owner(tables, command)
    if place.owner in command.removed:
        raise RefusedError("unsafe", f"node {place.owner} owns shard {command.shard}")
    if not set(command.removed) <= set(place.in_sync):
        raise RefusedError("unknown", "not all of these are in sync")
    left = tuple(node for node in place.in_sync if node not in command.removed)
    return _put(tables, command.shard, replace(place, in_sync=left))


def grow(tables: Tables, command: GrowInSync) -> int:
    """A replica has caught up, or the node that joins has, and is a replica from now on.

    One that is down is not taken, and that is final: the place has another version afterwards. The
    owner goes on without it then, and a late copy of the command must not be carried out."""
    place = _from_owner(tables, command)
    if tables.node(command.node).status == "down" and tables.level > FIRST:
        return _put(tables, command.shard, place)
    node = tables.reachable(command.node).id
    if node in place.in_sync:
        raise RefusedError("exists", f"node {node} is in sync")
    in_sync = (*place.in_sync, node)
    if node == place.joining:
        joined = replace(place, replicas=(*place.replicas, node), in_sync=in_sync, joining=0)
        return _put(tables, command.shard, joined)
    if node not in place.replicas:
        raise RefusedError("unknown", f"node {node} has no replica of shard {command.shard}")
    return _put(tables, command.shard, replace(place, in_sync=in_sync))


def withdraw(tables: Tables, command: Withdraw) -> int:
    """An heir that is down is waited for: it has all that was acknowledged. Value: how many of the
    shards changed."""
    node = tables.node(command.id)
    if node.incarnation != command.incarnation:
        raise RefusedError("stale", f"node {node.id} is in incarnation {node.incarnation}")
    if max(command.shards) >= len(tables.shards):
        raise RefusedError("unknown", f"there is no shard {max(command.shards)}")
    changed = [
        shard for shard in sorted(set(command.shards))
        if node.id in tables.shards[shard].in_sync and len(tables.shards[shard].in_sync) > 1
    ]  # fmt: skip
    version = tables.next_version() if changed else tables.version
    for shard in changed:
        place = tables.shards[shard]
        left = tuple(other for other in place.in_sync if other != node.id)
        if place.owner == node.id:
            heirs = [other for other in left if tables.nodes[other].status != "down"]
            place = next_epoch(place, (heirs or left)[0], version)
            left = tuple(other for other in place.in_sync if other != node.id)
        tables.put_place(shard, replace(place, in_sync=left, version=version))
    return len(changed)


def promote(tables: Tables, command: Promote) -> int:
    """Only who has all that was acknowledged may own. The owner itself may: a new epoch."""
    place = _current(tables, command.shard, command.expected_epoch)
    return _hand_over(tables, command.shard, place, command.node)


def transfer(tables: Tables, command: Transfer) -> int:
    """As Promote, but from an owner that is there to hand over."""
    place = _current(tables, command.shard, command.expected_epoch)
    tables.reachable(place.owner)
    if command.to == place.owner:
        raise RefusedError("exists", f"node {command.to} owns shard {command.shard}")
    return _hand_over(tables, command.shard, place, command.to)


def add(tables: Tables, command: AddReplica) -> int:
    """One node at a time joins a shard, and at most one replica is one too many."""
    place = _current(tables, command.shard, command.expected_epoch)
    node = tables.node(command.node)
    if node.status != "up":
        raise RefusedError("unsafe", f"node {node.id} is {node.status}")
    if node.id in place.replicas:
        raise RefusedError("exists", f"node {node.id} has shard {command.shard}")
    if place.joining:
        raise RefusedError("limit", f"node {place.joining} joins shard {command.shard} already")
    if len(place.replicas) > tables.replication:
        raise RefusedError("limit", f"shard {command.shard} has {len(place.replicas)} replicas")
    return _put(tables, command.shard, replace(place, joining=node.id))


def drop(tables: Tables, command: DropReplica) -> int:
    """The owner is in sync and stays: the last in-sync member is never dropped."""
    place = _current(tables, command.shard, command.expected_epoch)
    node = command.node
    if node == place.owner:
        raise RefusedError("unsafe", f"node {node} owns shard {command.shard}; transfer it first")
    if node == place.joining:
        return _put(tables, command.shard, replace(place, joining=0))
    if node not in place.replicas:
        raise RefusedError("unknown", f"node {node} has no replica of shard {command.shard}")
    replicas = tuple(other for other in place.replicas if other != node)
    in_sync = tuple(other for other in place.in_sync if other != node)
    return _put(tables, command.shard, replace(place, replicas=replicas, in_sync=in_sync))


def set_replication(tables: Tables, command: SetReplication) -> int:
    """Value: the replication."""
    if command.replication != tables.replication:
        tables.next_version()
        tables.replication = command.replication
    return command.replication


def _current(tables: Tables, shard: int, epoch: int) -> ShardPlace:
    if shard >= len(tables.shards):
        raise RefusedError("unknown", f"there is no shard {shard}")
    place = tables.shards[shard]
    if place.epoch != epoch:
        raise RefusedError("stale", f"shard {shard} is in epoch {place.epoch}, not {epoch}")
    return place


def _from_owner(tables: Tables, command: ShrinkInSync | GrowInSync) -> ShardPlace:
    """A late copy of a command must not undo what was decided after it: the version says so."""
    place = _current(tables, command.shard, command.epoch)
    if command.owner != place.owner:
        raise RefusedError("stale", f"node {place.owner} owns shard {command.shard}")
    if command.expected_version != place.version:
        raise RefusedError("stale", f"shard {command.shard} changed in version {place.version}")
    return place


def _hand_over(tables: Tables, shard: int, place: ShardPlace, node: int) -> int:
    if node not in place.in_sync:
        raise RefusedError("unsafe", f"node {node} is not in sync with shard {shard}")
    tables.reachable(node)
    version = tables.next_version()
    tables.put_place(shard, next_epoch(place, node, version))
    return version


def _put(tables: Tables, shard: int, place: ShardPlace) -> int:
    version = tables.next_version()
    tables.put_place(shard, replace(place, version=version))
    return version
