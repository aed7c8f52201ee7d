"""The map: routing, bytes, deltas, and what nobody may send."""

from __future__ import annotations

from time import process_time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.world import node

from penstock.cluster.map import (
    MAX_NODES,
    ClusterMap,
    MapDelta,
    NodeInfo,
    ShardPlace,
    diff,
    pack,
    patch,
    read_delta,
    read_map,
)
from penstock.cluster.ring import assign
from penstock.errors import ConflictError, InvalidError, ProtocolError


def cluster(nodes: int, shards: int, replication: int = 3, version: int = 1) -> ClusterMap:
    known = tuple(node(f"node-{number}", number=number) for number in range(1, nodes + 1))
    places = assign({info.id: 1 for info in known}, shards, replication)
    return ClusterMap(7, version, known, places, replication)


@st.composite
def places(draw: st.DrawFn, nodes: list[int]) -> ShardPlace:
    order = draw(st.permutations(nodes))
    replicas = tuple(order[: draw(st.integers(1, min(4, len(order))))])
    in_sync = tuple(n for n in replicas if n == replicas[0] or draw(st.booleans()))
    others = [n for n in nodes if n not in replicas]
    joining = draw(st.sampled_from([0, *others]))
    return ShardPlace(draw(st.integers(0, 2**40)), replicas, in_sync, joining)


@st.composite
def maps(draw: st.DrawFn, shards: int, version: int) -> ClusterMap:
    numbers = sorted(draw(st.sets(st.integers(1, 12), min_size=1)))
    infos = tuple(
        NodeInfo(n, f"n{n}", "h", 1, draw(st.sampled_from(["up", "down"])), draw(st.integers(0, 2)))
        for n in numbers
    )
    drawn = tuple(draw(places(numbers)) for _ in range(shards))
    return ClusterMap(7, version, infos, drawn, draw(st.integers(1, 7)))


@given(st.integers(0, 8).flatmap(lambda shards: st.tuples(maps(shards, 3), maps(shards, 9))))
def test_what_changed_makes_the_new_map_of_the_old(pair):
    old, new = pair
    delta = read_delta(pack(diff(old, new)))
    assert patch(old, delta) == new
    assert read_map(pack(new)) == new
    again = patch(new, diff(new, new))
    assert again == new
    assert all(new.shards[shard] != old.shards[shard] for shard, _ in delta.shards)


def test_lookups():
    found = cluster(3, 8, replication=2)
    assert found.owner_of(5) == found.shards[5].owner == found.shards[5].replicas[0]
    assert found.shards_of(2) == tuple(n for n in range(8) if 2 in found.shards[n].replicas)
    assert found.shards_of(99) == ()
    assert found.node(3) == found.nodes[2]
    assert found.node(4) is None


def test_a_map_is_newer_only_in_its_own_cluster():
    found = cluster(1, 4)
    assert found.newer_than(None)
    assert replace(found, version=2).newer_than(found)
    assert not found.newer_than(found)
    assert not replace(found, version=2, cluster=8).newer_than(found)


def test_a_map_is_small_and_a_change_of_it_smaller():
    found = cluster(64, 256)
    assert len(pack(found)) < 10 << 10
    place = replace(found.shards[9], epoch=70_000, version=2**33)
    shards = (*found.shards[:9], place, *found.shards[10:])
    assert len(pack(diff(found, replace(found, version=2, shards=shards)))) < 50


def test_the_largest_cluster_is_built_read_and_found_in_within_two_seconds():
    started_s = process_time()
    known = tuple(node(f"node-{number}", number=number) for number in range(1, 8001))
    shards = []
    for shard in range(65_536):
        replicas = tuple((shard + step) % 8000 + 1 for step in (0, 17, 4001))
        shards.append(ShardPlace(1, replicas, replicas))
    found = read_map(pack(ClusterMap(7, 1, known, tuple(shards), 3)))
    assert len(found.shards_of(8000)) == 24
    assert found.node(found.owner_of(65_535)) == found.nodes[1535]
    assert process_time() - started_s < 2


def test_a_delta_for_another_map_is_refused():
    old, new = cluster(2, 4), cluster(3, 4, version=5)
    delta = diff(old, new)
    with pytest.raises(ConflictError):
        patch(replace(old, version=2), delta)
    with pytest.raises(ConflictError):
        patch(replace(old, cluster=8), delta)
    for other in (replace(new, cluster=8), cluster(3, 5, version=5), replace(new, version=0)):
        with pytest.raises(InvalidError):
            diff(old, other)


@pytest.mark.parametrize(
    "place",
    [
        ShardPlace(1, (1, 1), (1,)),
        ShardPlace(1, (1, 2), (2,)),
        ShardPlace(1, (1, 2), (1, 3)),
        ShardPlace(1, (1, 2), (1, 1)),
        ShardPlace(1, (1, 2), (1,), 2),
        ShardPlace(1, (1, 9), (1,)),
        ShardPlace(1, (1, 2), (1,), 9),
        ShardPlace(1, (), ()),
        ShardPlace(-1, (1,), (1,)),
        ShardPlace(2**63, (1,), (1,)),
        ShardPlace(1, (1,), (1,), -1),
        ShardPlace(1, (0,), (0,)),
        ShardPlace(1, tuple(range(1, 10)), (1,)),
    ],
)
def test_a_place_that_cannot_be_is_refused(place):
    found = cluster(3, 2)
    body = pack(replace(found, shards=(found.shards[0], place)))
    with pytest.raises(ProtocolError):
        read_map(body)
    delta = MapDelta(7, 1, 2, 3, (), (), ((0, place),))
    with pytest.raises(ProtocolError):
        patch(found, read_delta(pack(delta)))


def hostile_maps() -> list[ClusterMap]:
    good = cluster(3, 2)
    one = good.nodes[0]
    return [
        replace(good, nodes=good.nodes[::-1]),
        replace(good, nodes=(one, one, *good.nodes[1:])),
        replace(good, nodes=(replace(one, id=0), *good.nodes)),
        replace(good, nodes=(replace(one, status="odd"), *good.nodes[1:])),
        replace(good, nodes=(replace(one, name="x" * 256), *good.nodes[1:])),
        replace(good, nodes=(replace(one, port=65_536), *good.nodes[1:])),
        replace(good, nodes=(replace(one, weight=0), *good.nodes[1:])),
        replace(good, replication=8),
        replace(good, replication=0),
        replace(good, version=-1),
        replace(good, shards=good.shards[:1] * 65_537),
        replace(good, nodes=tuple(replace(one, id=n) for n in range(1, MAX_NODES + 2))),
    ]


@pytest.mark.parametrize("found", hostile_maps(), ids=range(len(hostile_maps())))
def test_a_map_that_cannot_be_is_refused(found):
    with pytest.raises(ProtocolError):
        read_map(pack(found))


def test_a_delta_that_cannot_be_is_refused():
    old = cluster(3, 2)
    place = old.shards[0]
    for delta in (
        MapDelta(7, 1, 0, 3, (), (), ()),
        MapDelta(7, 1, 2, 3, (), (), ((2, place),)),
        MapDelta(7, 1, 2, 3, (), (1,), ()),
        MapDelta(7, 1, 2, 3, (replace(old.nodes[0], id=0),), (), ()),
        MapDelta(7, 1, 2, 3, tuple(node("x", number=n) for n in range(4, MAX_NODES + 2)), (), ()),
    ):
        with pytest.raises(ProtocolError):
            patch(old, delta)
    with pytest.raises(ProtocolError):
        read_delta(pack(MapDelta(7, 1, 2, 3, (), (), ((65_536, place),))))


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_no_bytes_break_the_readers(junk, at, byte):
    body = bytearray(pack(cluster(3, 8)))
    body[at % len(body)] = byte
    for hostile in (junk, bytes(body), b"\x91" * 5000):
        for read in (read_map, read_delta):
            try:
                read(hostile)
            except ProtocolError:
                continue
    with pytest.raises(ProtocolError):
        read_map(bytes(18 << 20))


def test_strings_that_are_no_text_are_refused():
    body = msgspec.msgpack.encode([7, 1, [[1, "ab", "h", 1, "up", 1, 1]], [], 1])
    assert read_map(body)
    with pytest.raises(ProtocolError):
        read_map(body.replace(b"ab", b"\xff\xfe"))
