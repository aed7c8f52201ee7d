"""Nodes come, go, fail and return."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.cluster.commands import Down, Drain, Found, Join, Leave, Rejoin, Remove, Undrain, Up
from penstock.cluster.levels import SILENT, check_speaks, enter
from penstock.cluster.map import (
    MAX_NAME,
    MAX_NODE_ID,
    MAX_NODES,
    NodeInfo,
    ShardPlace,
    Status,
)
from penstock.cluster.places import next_epoch
from penstock.cluster.tables import RefusedError, Tables

MAX_STREAM_ID = 2**32 - 1  # what a frame has room for


def found(tables: Tables, command: Found) -> int:
    """The cluster begins: every shard on its first node, in epoch 1. Value: the node's id."""
    if tables.shards:
        raise RefusedError("exists", f"cluster {tables.cluster} is founded already")
    if command.after >= MAX_STREAM_ID:
        raise RefusedError("limit", "no version is left for streams")
    number = _new_id(tables, command.node)
    tables.version = max(tables.version, command.after)
    version = tables.next_version()
    tables.cluster = command.cluster
    tables.replication = command.replication
    _enter(tables, number, command.node)
    tables.shards = [ShardPlace(1, (number,), (number,), 0, version)] * command.shards
    tables.held[number] = command.shards
    return number


def join(tables: Tables, command: Join) -> int:
    """Value: the id of the new node."""
    node = command.node
    for known in tables.nodes.values():
        if known.name == node.name and known.status != "left":
            asked = replace(node, id=known.id, status=known.status)
            if node.id in (0, known.id) and asked == known:
                return known.id  # the same request once more
            raise RefusedError(
                "exists", f"node {known.id} has the name {node.name!r}; it may rejoin"
            )
    if len(tables.nodes) >= MAX_NODES:
        raise RefusedError("limit", f"there are {MAX_NODES} nodes; remove those that have left")
    number = _new_id(tables, node)
    if command.speaks is not None:  # if not, it is asked for when the node starts
        check_speaks(tables, command.speaks)
    tables.next_version()
    _enter(tables, number, node)
    enter(tables, number, command.speaks)
    return number


def rejoin(tables: Tables, command: Rejoin) -> int:
    """Value: the id of the node."""
    node = tables.node(command.id)
    _check_host(command.host)
    if command.incarnation < node.incarnation:
        raise RefusedError("stale", f"node {node.id} is in incarnation {node.incarnation} by now")
    again = command.incarnation == node.incarnation
    if again and (command.host, command.port) != (node.host, node.port):
        raise RefusedError("stale", f"another process is node {node.id} in this incarnation")
    if again and node.status != "down":
        return node.id  # the same request once more
    check_speaks(tables, command.speaks or SILENT)
    version = tables.next_version()
    tables.nodes[node.id] = replace(
        node, host=command.host, port=command.port, incarnation=command.incarnation,
        status=_alive(tables, node.id),
    )  # fmt: skip
    if not again:
        enter(tables, node.id, command.speaks)
        for shard, place in enumerate(tables.shards):
            if place.owner == node.id:
                tables.put_place(shard, next_epoch(place, node.id, version))
    return node.id


def leave(tables: Tables, command: Leave) -> int:
    """The entry stays."""
    node = tables.node(command.id)
    _check_empty(tables, node.id)
    tables.next_version()
    tables.draining.discard(node.id)
    tables.nodes[node.id] = replace(node, status="left")
    tables.speaks.pop(node.id, None)
    return node.id


def remove(tables: Tables, command: Remove) -> int:
    """The entry goes."""
    if command.id not in tables.nodes:
        raise RefusedError("unknown", f"there is no node {command.id}")
    _check_empty(tables, command.id)
    tables.next_version()
    tables.draining.discard(command.id)
    del tables.nodes[command.id]
    tables.speaks.pop(command.id, None)
    return command.id


def drain(tables: Tables, command: Drain) -> int:
    """A node that is down is drained, too: its replicas are replaced without a grace time."""
    node = tables.node(command.id)
    if node.id in tables.draining:
        return node.id
    tables.next_version()
    tables.draining.add(node.id)
    if node.status == "up":
        tables.nodes[node.id] = replace(node, status="draining")
    return node.id


def undrain(tables: Tables, command: Undrain) -> int:
    """It is used again once it is up."""
    node = tables.node(command.id)
    if node.id not in tables.draining:
        return node.id
    tables.next_version()
    tables.draining.discard(node.id)
    if node.status == "draining":
        tables.nodes[node.id] = replace(node, status="up")
    return node.id


def down(tables: Tables, command: Down) -> int:
    """Only the incarnation that was watched."""
    node = _incarnation(tables, command.id, command.incarnation)
    if node.status != "down":
        tables.next_version()
        tables.nodes[node.id] = replace(node, status="down")
    return node.id


def up(tables: Tables, command: Up) -> int:
    """It was never away: a new process says Rejoin."""
    node = _incarnation(tables, command.id, command.incarnation)
    if node.status == "down":
        tables.next_version()
        tables.nodes[node.id] = replace(node, status=_alive(tables, node.id))
    return node.id


def _incarnation(tables: Tables, number: int, incarnation: int) -> NodeInfo:
    node = tables.node(number)
    if node.incarnation != incarnation:
        raise RefusedError("stale", f"node {number} is in incarnation {node.incarnation}")
    return node


def _alive(tables: Tables, number: int) -> Status:
    return "draining" if number in tables.draining else "up"


def _new_id(tables: Tables, node: NodeInfo) -> int:
    _check_host(node.host)
    if not node.name or len(node.name.encode()) > MAX_NAME:
        raise RefusedError("limit", f"a node's name has 1 to {MAX_NAME} bytes")
    number = node.id or tables.next_node
    if number < tables.next_node:
        raise RefusedError("exists", f"the id {number} is or was used")
    if number >= MAX_NODE_ID:
        raise RefusedError("limit", "no node id is left")
    return number


def _check_host(host: str) -> None:
    if len(host.encode()) > MAX_NAME:
        raise RefusedError("limit", f"a host has at most {MAX_NAME} bytes")


def _check_empty(tables: Tables, number: int) -> None:
    if tables.held[number]:
        raise RefusedError(
            "unsafe", f"node {number} has or joins {tables.held[number]} shards; drain it first"
        )


def _enter(tables: Tables, number: int, node: NodeInfo) -> None:
    tables.nodes[number] = replace(node, id=number, status="up")
    tables.next_node = number + 1
