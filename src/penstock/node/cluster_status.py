"""The cluster as one node knows it, in plain data: `penstock cluster status`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.cluster.commands import AddReplica, Command, DropReplica, Promote, Transfer
from penstock.cluster.explain import explain
from penstock.cluster.map import NodeInfo
from penstock.cluster.planner import plan
from penstock.cluster.view import Figures
from penstock.engine.member import Member


def cluster_status(
    member: Member, linked: set[int], figures: Figures, now_us: int, planned: bool = False
) -> dict[str, Any]:
    """Nodes and what they have, what is not as it should be, who decides; and, if it is asked for,
    what the planner would do next."""
    state, raft = member.plane.state, member.plane.raft
    told: dict[str, Any] = {
        "cluster": f"{state.cluster:x}",
        "node": member.node,
        "present": member.present,
        "version": state.version,
        "replication": state.replication,
        "level": state.level,
        "shards": len(state.shards),
        "in_sync": sum(
            len(place.in_sync) == len(place.replicas) and not place.joining
            for place in state.shards
        ),
        "moves": sum(place.joining != 0 for place in state.shards),
        "streams": len(state.definitions),
        "consensus": {
            "role": raft.role.value,
            "term": raft.term,
            "leader": raft.leader,
            "voters": list(raft.membership.voters),
            "learners": list(raft.membership.learners),
        },
        "nodes": _nodes(member, linked | {member.node}),
        "rows": [list(row) for row in explain(state, figures, now_us)],
    }
    if planned:
        told["plan"] = [_say(command) for command in plan(state, figures, now_us)]
    return told


def _nodes(member: Member, linked: set[int]) -> list[dict[str, Any]]:
    state = member.plane.state
    owned: Counter[int] = Counter(place.owner for place in state.shards)
    in_sync: Counter[int] = Counter(node for place in state.shards for node in place.in_sync)
    return [
        {
            "id": number,
            "name": node.name,
            "address": f"{node.host}:{node.port}" if node.port else "",
            "status": node.status,
            "drains": number in state.draining,
            "incarnation": node.incarnation,
            "owns": owned[number],
            "has": state.held[number],
            "in_sync": in_sync[number],
            "linked": number in linked,
            **_release(member, node),
        }
        for number, node in sorted(state.nodes.items())
    ]


def _release(member: Member, node: NodeInfo) -> dict[str, Any]:
    """What a node is known to speak in its present life."""
    stated = member.plane.stated.get(node.id)
    speaks = member.plane.state.speaks.get(node.id)
    if stated is not None and stated.incarnation == node.incarnation:
        speaks = stated.speaks
    if speaks is None:
        return {"release": "", "speaks": []}
    return {"release": speaks.release, "speaks": [speaks.lowest, speaks.highest]}


def _say(command: Command) -> str:
    """A step of the planner, for people."""
    if isinstance(command, AddReplica):
        return f"shard {command.shard}: copied to node {command.node}"
    if isinstance(command, DropReplica):
        return f"shard {command.shard}: dropped from node {command.node}"
    if isinstance(command, Transfer):
        return f"shard {command.shard}: handed over to node {command.to}"
    if isinstance(command, Promote):
        return f"shard {command.shard}: taken over by node {command.node}"
    return str(command)
