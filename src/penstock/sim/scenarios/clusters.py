"""Clusters for scenarios: a new map, as the control plane makes it."""

from __future__ import annotations

from penstock.cluster.map import ClusterMap, NodeInfo
from penstock.cluster.ring import assign

_REPLICATION = 3
_PORT = 7411


def new_cluster(nodes: int, shards: int) -> ClusterMap:
    """A map of so many nodes of the same weight, numbered from 1."""
    known = tuple(
        NodeInfo(number, f"node-{number}", f"node-{number}.example", _PORT, "up", 1)
        for number in range(1, nodes + 1)
    )
    places = assign({node.id: node.weight for node in known}, shards, _REPLICATION)
    return ClusterMap(1, 1, known, places, _REPLICATION)
