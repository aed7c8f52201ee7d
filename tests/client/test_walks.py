"""Where pushes to a queue of a cluster go: evenly over its nodes, by the client's own code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from penstock.client.producer import Producer
from penstock.client.routing import Routes
from penstock.client.rows import Rows
from penstock.client.state import FabricState, QueueState
from penstock.client.steps import Steps
from penstock.cluster.map import ClusterMap, NodeInfo, ShardPlace, pack
from penstock.cluster.ring import ALONE_TURNS, assign
from penstock.sim.scenarios import fabriq
from penstock.wire.messages import StreamInfo

NODES, SHARDS = 64, 256
TURNS = 8  # of a node on one of its shards
EACH = 4 * ALONE_TURNS  # visits of each of 8 threads: whole rounds over 16 places
ROWS = Rows([b"x"], None, None)


def new_map(version: int = 1, nodes: int = NODES, shards: int = SHARDS) -> ClusterMap:
    infos = tuple(NodeInfo(each, f"n{each}", "h", each, "up", 1) for each in range(1, nodes + 1))
    places = assign({node.id: 1 for node in infos}, shards, 2)
    return ClusterMap(7, version, infos, places, 2)


def moved(found: ClusterMap, version: int, away_from: int, to: int) -> ClusterMap:
    """The same with one node's shards given to another."""
    places = [
        ShardPlace(place.epoch + 1, (to,), (to,)) if place.owner == away_from else place
        for place in found.shards
    ]
    return ClusterMap(7, version, found.nodes, tuple(places), 2)


def learnt(*maps: ClusterMap) -> Routes:
    routes = Routes(1.0)
    for each in maps:
        assert routes.learn(b"m" + pack(each))
    return routes


def new_queue(routes: Routes | None, chance: Random, shards: int = SHARDS) -> QueueState:
    producer = Producer(chance.getrandbits(63) | 1, shards, chance.getrandbits(64))
    fabric = FabricState("default", producer)
    fabric._routes = routes
    fabric._run = _not_run
    return QueueState(fabric, StreamInfo(1, "queue", "q", "default", {}))


def _not_run(steps: Steps[Any]) -> Any:
    raise AssertionError("nothing is sent")


def singles(queue: QueueState, count: int) -> list[int]:
    return [queue._place_for(None, None).shard for _ in range(count)]


def batches(queue: QueueState, count: int) -> list[int]:
    return [place.shard for _ in range(count) for place, _ in queue._spread(ROWS)]


def loads(found: ClusterMap, shards: list[int]) -> Counter[int]:
    counted = Counter({node.id: 0 for node in found.nodes})
    counted.update(found.owner_of(shard) for shard in shards)
    return counted


@pytest.mark.parametrize("push", [singles, batches])
@pytest.mark.parametrize("seed", range(3))
def test_pushes_of_many_producers_are_even(seed, push):
    chance, found = Random(seed), new_map()
    routes = learnt(found)
    pushed = [shard for _ in range(64) for shard in push(new_queue(routes, chance), 1000)]
    counted = loads(found, pushed)
    assert max(abs(load - 1000) for load in counted.values()) <= 50


def test_the_nodes_take_turns_for_one_producer():
    found = new_map(nodes=3, shards=16)
    queue = new_queue(learnt(found), Random(1), 16)
    for push in (singles, batches):
        counted = loads(found, push(queue, 16 * 8))
        assert max(counted.values()) - min(counted.values()) <= 8  # 16 shards are not 3 times 5
        owners = [found.owner_of(shard) for shard in push(queue, 15)]
        assert all(before != after for before, after in pairwise(owners))


def test_a_node_alone_gets_many_singles_in_a_row_on_a_shard_and_all_shards_in_turn():
    order = Producer(1, SHARDS, 5).walk_over(SHARDS)
    queue = new_queue(None, Random(0))
    alone = Producer(1, SHARDS, 5).walk_shards(None)
    shards = [order.batch() for _ in range(SHARDS)]
    expected = [shard for shard in shards for _ in range(ALONE_TURNS)]
    assert [alone.single() for _ in expected] == expected
    taken = batches(queue, TURNS * SHARDS)
    assert Counter(taken) == dict.fromkeys(range(SHARDS), TURNS)
    assert all(len(set(taken[at : at + TURNS])) == 1 for at in range(0, len(taken), TURNS))


def test_a_walk_goes_on_when_owners_change():
    first = new_map()
    routes = learnt(first)
    queue = new_queue(routes, Random(3))
    visited = batches(queue, 100)
    assert routes.learn(b"m" + pack(moved(first, 2, 1, 2)))
    visited += batches(queue, TURNS * SHARDS - 100)
    each = dict.fromkeys(range(SHARDS), TURNS)
    assert Counter(visited) == each, "each shard as often in the round"
    after = batches(queue, TURNS * SHARDS)
    assert Counter(after) == each
    fresh = new_queue(learnt(moved(first, 2, 1, 2)), Random(3))
    assert after == batches(fresh, TURNS * SHARDS), "in the order that the new map asks for"


def test_a_map_that_moves_nothing_changes_no_walk():
    first = new_map()
    routes = learnt(first)
    placed = routes.placed
    assert routes.learn(b"m" + pack(ClusterMap(7, 2, first.nodes, first.shards, 2)))
    assert (routes.version, routes.placed) == (2, placed)
    assert routes.learn(b"m" + pack(moved(first, 3, 1, 2)))
    assert routes.placed.version == 3


def test_the_scenario_walks_as_the_client_does(monkeypatch):
    asked = []
    walk_shards = Producer.walk_shards

    def spy(producer: Producer, routes: Routes | None):
        asked.append(routes)
        return walk_shards(producer, routes)

    monkeypatch.setattr(Producer, "walk_shards", spy)
    counted = fabriq.push(new_map(), 64, Random(1))
    assert len(asked) == 64
    assert fabriq.furthest(counted) <= 0.05


@pytest.mark.parametrize("way", ["single", "batch"])
def test_threads_share_a_walk(way: str) -> None:
    """Each place is visited as often as the others, however the threads take turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            walk = Producer(1, 16, 5).walk_shards(None)
            step = getattr(walk, way)
            with ThreadPoolExecutor(8) as pool:
                visits = [place for part in pool.map(_walked, [step] * 8) for place in part]
            assert set(Counter(visits).values()) == {8 * EACH // 16}
    finally:
        sys.setswitchinterval(before)


def _walked(step: Callable[[], int]) -> list[int]:
    return [step() for _ in range(EACH)]
