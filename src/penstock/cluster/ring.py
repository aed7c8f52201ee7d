"""Placement: which nodes get which shards at first, and in which order a producer visits shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

import xxhash

from penstock.cluster.map import MAX_COPIES, MAX_SHARDS, ClusterMap, ShardPlace
from penstock.cluster.shares import Owners, Shares
from penstock.errors import InvalidError

_SINGLES = 8  # single messages that stay on a shard before the walk goes on


def assign(weights: Mapping[int, int], shards: int, replication: int) -> tuple[ShardPlace, ...]:
    """Places for all shards of a new cluster, by the nodes' weights: every node's replicas and
    owned shards are its fair share, rounded up or down. The same nodes give the same places."""
    if not weights or not 1 <= shards <= MAX_SHARDS or not 1 <= replication < MAX_COPIES:
        raise InvalidError(f"{shards} shards of {replication} replicas on {len(weights)} nodes")
    copies = min(replication, len(weights))
    groups = _groups(Shares(weights, shards * copies, shards).whole(shards * copies), shards)
    owner_of = _owners(groups, weights)
    places = []
    for shard, group in enumerate(groups):
        owner = owner_of[shard]
        replicas = (owner, *(node for node in group if node != owner))
        places.append(ShardPlace(1, replicas, replicas))
    return tuple(places)


def _groups(quota: dict[int, int], shards: int) -> list[tuple[int, ...]]:
    """Nodes for each shard. Those that still need most come first, which always ends well. Nodes
    that need the same come in an order by chance, another each time: so the shards of a node have
    their other replicas on many nodes, which share its load when it fails."""
    copies = sum(quota.values()) // shards
    heap = [(-need, _mixed(node, need), node) for node, need in quota.items() if need]
    heapify(heap)
    groups = []
    for _ in range(shards):
        taken = [heappop(heap) for _ in range(copies)]
        groups.append(tuple(node for _, _, node in taken))
        for need, _, node in taken:
            if need < -1:
                heappush(heap, (need + 1, _mixed(node, -need - 1), node))
    return groups


def _owners(groups: list[tuple[int, ...]], weights: Mapping[int, int]) -> dict[int, int]:
    owners = Owners(weights, Shares(weights, len(groups), len(groups)))
    owner_of = {}
    for shard, group in enumerate(groups):
        owner_of[shard] = min(group, key=lambda node: owners.count(node) / weights[node])
        owners.add(shard, owner_of[shard], group)
    while chain := owners.next_chain(len(weights)):
        owner_of.update(chain)
    return owner_of


def permutation(places: int, seed: int) -> list[int]:
    """The numbers below `places` in an order that looks random, always the same for a seed."""
    return sorted(range(places), key=lambda place: _mixed(place, seed))


def walk_order(cluster: ClusterMap, producer: int) -> list[int]:
    """All shards, in the order in which a producer visits them: spread over the nodes that own
    them, so that any part of it loads the nodes alike. It differs between producers."""
    owned: dict[int, list[int]] = {}
    for shard in permutation(len(cluster.shards), producer):
        owned.setdefault(cluster.owner_of(shard), []).append(shard)
    visits = []
    for node, shards in owned.items():
        turn = _mixed(node, producer)
        step = 1 / len(shards)  # each node's shards lie evenly in the round
        visits += [((at + 0.5) * step, turn, shard) for at, shard in enumerate(shards)]
    visits.sort()
    return [shard for _, _, shard in visits]


class Walk:
    """Goes through an order again and again: even by construction."""

    __slots__ = ("_at", "_next", "_order", "_singles")

    def __init__(self, order: Sequence[int]) -> None:
        self._order = self._next = order
        self._at = -1
        self._singles = 0

    def batch(self) -> int:
        """Where the next batch goes."""
        self._singles = 0
        return self._step()

    def single(self) -> int:
        """Where the next single message goes; a few in a row go to the same place."""
        if self._singles == 0:
            self._step()
            self._singles = _SINGLES
        self._singles -= 1
        return self._order[self._at]

    def follow(self, order: Sequence[int]) -> None:
        """Another order of the same places, because their owners changed. It counts from the next
        round on, so that no place is left out or visited twice in this one."""
        if len(order) != len(self._order):
            raise InvalidError(f"an order of {len(order)} places after {len(self._order)}")
        self._next = order

    def _step(self) -> int:
        self._at += 1
        if self._at == len(self._order):
            self._at = 0
            self._order = self._next
        return self._order[self._at]


def _mixed(number: int, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(number.to_bytes(8, "little"), seed)
