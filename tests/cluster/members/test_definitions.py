"""Streams of a cluster on a node that was away, and those that a node brings into it."""

from __future__ import annotations

from tests.cluster.members.world import SHARDS, World, node_info

from penstock.cluster.commands import Define, Found, Undefine
from penstock.cluster.state import ClusterState


def streams(world: World, number: int) -> dict[str, int]:
    member = world.hosts[number].member
    assert member is not None
    kernel = member.engine.fabric.kernel
    assert sorted(kernel.names.values()) == sorted(kernel.streams)
    return {name: kernel.names["default", "queue", name] for _, _, name in kernel.names}


def delete(world: World, name: str) -> None:
    state = world.hosts[1].member.plane.state  # type: ignore[union-attr]
    full = f"queue/default/{name}"
    assert world.do(1, Undefine(full, state.definitions[full].version)).accepted


def test_a_node_that_was_away_knows_what_was_deleted_and_created_meanwhile():
    world = World(3)
    world.queue("gone")
    again = world.queue("again")
    kept = world.queue("kept")
    assert streams(world, 3).keys() == {"gone", "again", "kept"}
    world.kill(3)
    world.run(3_000_000)
    delete(world, "gone")
    delete(world, "again")
    newer = world.queue("again")
    world.start(3)
    world.run(8_000_000)
    assert newer > again
    assert streams(world, 3) == streams(world, 1) == {"again": newer, "kept": kept}


def test_a_node_acts_on_no_map_from_before_its_start():
    world = World(4)
    world.kill(1)
    world.run(5_000_000)
    world.part((1, 2), (1, 3))
    world.start(1)
    world.run(5_000_000)
    member = world.hosts[1].member
    assert member is not None
    assert not member.present
    assert not any(shard.owned for shard in member.engine.fabric.kernel.shards)
    world.part()
    world.run(5_000_000)
    assert member.present


def test_ids_of_new_streams_are_above_those_that_a_founder_brings():
    state = ClusterState()
    assert state.apply(Found(9, SHARDS, 3, node_info(1), 40)).version == 41
    assert state.apply(Define("queue/default/q", b"", 0)).value == 42
    assert state.apply(Found(9, SHARDS, 3, node_info(1), 99)).refused == "exists"
    assert ClusterState().apply(Found(9, SHARDS, 3, node_info(1), 2**33)).refused == "limit"
