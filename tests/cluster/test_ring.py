"""Placement of shards, and the walk of producers over them: even by construction."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.world import node

from penstock.cluster.map import ClusterMap, place_problem
from penstock.cluster.ring import Walk, assign, permutation, walk_order
from penstock.cluster.shares import Shares
from penstock.errors import InvalidError

SEEDS = st.integers(0, 2**64 - 1)
WEIGHTS = st.dictionaries(st.integers(1, 99), st.integers(1, 5), min_size=1, max_size=12)


def cluster(nodes: int, shards: int) -> ClusterMap:
    known = tuple(node(f"node-{number}", number=number) for number in range(1, nodes + 1))
    return ClusterMap(7, 1, known, assign({info.id: 1 for info in known}, shards, 3), 3)


@given(st.integers(1, 20), st.integers(1, 80), st.integers(1, 7))
def test_owners_and_replicas_are_even_at_first(nodes, shards, replication):
    places = assign(dict.fromkeys(range(1, nodes + 1), 1), shards, replication)
    copies = min(nodes, replication)
    owned = Counter(place.owner for place in places)
    held = Counter(number for place in places for number in place.replicas)
    for counts, total in ((owned, shards), (held, copies * shards)):
        found = [counts[number] for number in range(1, nodes + 1)]
        assert sum(found) == total
        assert max(found) - min(found) <= 1
    assert all(place_problem(place, range(1, nodes + 1)) == "" for place in places)
    assert all(len(place.replicas) == copies for place in places)


@given(WEIGHTS, st.integers(1, 60), st.integers(1, 4))
def test_weights_count_at_first(weights, shards, replication):
    copies = min(len(weights), replication)
    places = assign(weights, shards, replication)
    shares = Shares(weights, copies * shards, shards)
    held = Counter(number for place in places for number in place.replicas)
    assert all(shares.low(n) <= held[n] <= shares.high(n) for n in weights)
    assert all(len(set(place.replicas)) == copies for place in places)


def test_the_other_replicas_of_a_nodes_shards_are_on_many_nodes():
    places = assign(dict.fromkeys(range(1, 17), 1), 256, 3)
    for number in range(1, 17):
        beside = Counter(n for place in places if number in place.replicas for n in place.replicas)
        assert len(beside) > 12


def test_what_cannot_be_placed_is_refused():
    for weights, shards, replication in (({}, 4, 1), ({1: 1}, 0, 1), ({1: 1}, 4, 8)):
        with pytest.raises(InvalidError):
            assign(weights, shards, replication)


@given(WEIGHTS, st.integers(0, 500), st.integers(0, 200))
def test_shares_sum_up_and_respect_the_cap(weights, total, cap):
    shares = Shares(weights, min(total, cap * len(weights)), cap)
    counts = shares.whole(min(total, cap * len(weights)))
    assert sum(counts.values()) == min(total, cap * len(weights))
    assert all(shares.low(n) <= count <= shares.high(n) <= cap for n, count in counts.items())


@given(st.integers(1, 300), st.integers(1, 5), SEEDS)
def test_batches_are_spread_evenly(places, rounds, seed):
    walk = Walk(permutation(places, seed))
    counts = Counter(walk.batch() for _ in range(places * rounds))
    assert counts == dict.fromkeys(range(places), rounds)


@given(st.integers(2, 64), SEEDS)
def test_single_messages_stay_for_eight(places, seed):
    walk = Walk(permutation(places, seed))
    taken = [walk.single() for _ in range(8 * places)]
    assert Counter(taken) == dict.fromkeys(range(places), 8)
    assert all(len(set(taken[at : at + 8])) == 1 for at in range(0, len(taken), 8))


def test_a_batch_ends_the_stay_of_single_messages():
    walk = Walk(permutation(16, 1))
    first = walk.single()
    second = walk.batch()
    assert len({first, second, walk.single()}) == 3


def test_many_producers_load_all_shards_alike():
    first = Counter(Walk(permutation(16, seed)).batch() for seed in range(3200))
    assert set(first) == set(range(16))
    assert max(first.values()) < 2 * min(first.values())


def test_an_order_is_that_of_its_producer_for_ever():
    assert permutation(8, 5) == [0, 1, 4, 3, 5, 2, 6, 7]
    found = cluster(4, 16)
    assert walk_order(found, 5) == walk_order(replace(found, version=9), 5)
    assert walk_order(found, 5) != walk_order(found, 6)


@given(st.integers(1, 20), st.integers(1, 100), SEEDS)
def test_every_part_of_a_round_loads_all_nodes_alike(nodes, shards, producer):
    found = cluster(nodes, shards)
    order = walk_order(found, producer)
    assert sorted(order) == list(range(shards))
    counts = dict.fromkeys((found.owner_of(shard) for shard in order), 0)
    for shard in order:
        counts[found.owner_of(shard)] += 1
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_new_order_counts_from_the_next_round_on():
    walk = Walk([0, 1, 2])
    assert walk.batch() == 0
    walk.follow([2, 1, 0])
    assert [walk.batch() for _ in range(5)] == [1, 2, 2, 1, 0]
    with pytest.raises(InvalidError):
        walk.follow([0, 1])


def loads_of(found: ClusterMap, producers: list[int]) -> Counter[int]:
    """Messages for each server, when the producers push 64,000 one by one."""
    loads: Counter[int] = Counter()
    for at, producer in enumerate(producers):
        walk = Walk(walk_order(found, producer))
        pushes = 64_000 // len(producers) + (at < 64_000 % len(producers))
        loads.update(found.owner_of(walk.single()) for _ in range(pushes))
    return loads


@pytest.mark.parametrize("producers", [1, 2, 3, 7, 10, 16])
def test_64000_single_pushes_load_64_servers_within_five_percent(producers):
    found = cluster(64, 256)
    for trial in range(5):
        loads = loads_of(found, permutation(1000, trial)[:producers])
        assert loads.total() == 64_000
        assert len(loads) == 64
        assert max(abs(load - 1000) for load in loads.values()) <= 50


@pytest.mark.parametrize("producers", [1, 2, 4])
def test_servers_that_own_unequally_many_shards_are_loaded_within_five_percent(producers):
    """1,000 shards on 64 servers: some own 15, some 16."""
    loads = loads_of(cluster(64, 1000), list(range(producers)))
    assert max(abs(load - 1000) for load in loads.values()) <= 50
