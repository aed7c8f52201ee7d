"""ZHT's scale: what it costs to find the address of a key, in clusters of 2 to 8,000 nodes.

ZHT is zero-hop: everybody knows all members, so a lookup asks nobody and should cost the same
whatever the size. All nodes and clients of a simulated cluster share one map.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from penstock.client.producer import shard_of
from penstock.cluster.map import ClusterMap, pack, read_map
from penstock.errors import UnavailableError
from penstock.sim.scenarios.clusters import new_cluster
from penstock.sim.scenarios.outcome import Chart, Check, Outcome

SIZES = (2, 64, 1000, 8000)
SHARDS_PER_NODE = 8  # 64,000 of 65,536 shards at most
FLAT = 1.5  # the slowest size against the fastest; less cannot be told from noise
FEW = 64  # keys that are looked up again and again
MANY = 20_000
ROUNDS = 7


class Costs(NamedTuple):
    """Of one size."""

    nodes: int
    shards: int
    few_ns: float  # of one lookup, when what it reads is in the processor's cache
    many_ns: float  # when every key is another
    map_bytes: int
    build_ms: float
    read_ms: float  # a client that gets the map


def run(seed: int = 1, sizes: Sequence[int] = SIZES) -> Outcome:
    """Builds clusters and looks keys up. Of all rounds the fastest counts: the rest is noise."""
    chance = Random(seed)
    keys = [chance.randbytes(16) for _ in range(MANY)]
    costs = _measure(sizes, keys)
    few, many = ([getattr(cost, name) for cost in costs] for name in ("few_ns", "many_ns"))
    figures = {
        f"{name}_{cost.nodes}": value
        for cost in costs
        for name, value in cost._asdict().items()
        if name != "nodes"
    }
    columns = (
        "nodes", "shards", f"lookup of {FEW} keys, ns", f"of {MANY:,} keys, ns", "map, bytes",
        "build, ms", "read, ms",
    )  # fmt: skip
    note = (
        f"With {MANY:,} different keys, {sizes[-1]:,} nodes take {many[-1] / many[0]:.1f} times as "
        f"long as {sizes[0]:,}: the steps are the same, but what they read is not in the "
        "processor's cache. No goal is set for that."
    )
    return Outcome(
        "zht-8000",
        columns,
        costs,
        figures,
        [Check(f"slowest size against fastest, {FEW} keys", max(few) / min(few), FLAT)],
        Chart(
            "Key to shard to owner to address",
            "nodes",
            "ns for one lookup",
            list(sizes),
            {f"{FEW} keys": few, f"{MANY:,} keys": many},
            logarithmic=True,
        ),
        [note],
    )


def address_of(cluster: ClusterMap, key: bytes) -> tuple[str, int]:
    """Where a key lives: what a client does for every lookup."""
    node = cluster.node(cluster.owner_of(shard_of(key, len(cluster.shards))))
    if node is None:
        raise UnavailableError("the map has no such node")
    return node.host, node.port


def _measure(sizes: Sequence[int], keys: Sequence[bytes]) -> list[Costs]:
    built = [_built(nodes) for nodes in sizes]
    few = list(keys[:FEW]) * (len(keys) // FEW)
    best: dict[tuple[int, int], float] = {}
    for _ in range(ROUNDS):  # one size after the other: a slow moment of the machine hits all
        for at, (cluster, _) in enumerate(built):
            for which, chosen in enumerate((few, keys)):
                took = _lookup_ns(cluster, chosen)
                best[at, which] = min(took, best.get((at, which), took))
    costs = []
    for at, (cluster, build_ms) in enumerate(built):
        body = pack(cluster)
        begun = time.perf_counter()
        read_map(body)
        read_ms = 1000 * (time.perf_counter() - begun)
        head = (len(cluster.nodes), len(cluster.shards), best[at, 0], best[at, 1])
        costs.append(Costs(*head, len(body), build_ms, read_ms))
    return costs


def _built(nodes: int) -> tuple[ClusterMap, float]:
    begun = time.perf_counter()
    cluster = new_cluster(nodes, nodes * SHARDS_PER_NODE)
    return cluster, 1000 * (time.perf_counter() - begun)


def _lookup_ns(cluster: ClusterMap, keys: Sequence[bytes]) -> float:
    begun = time.perf_counter_ns()
    for key in keys:
        address_of(cluster, key)
    return (time.perf_counter_ns() - begun) / len(keys)
