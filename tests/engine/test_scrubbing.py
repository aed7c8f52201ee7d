"""Old files are read through: damage is found, and repaired, before anybody asks for the batch."""

from __future__ import annotations

from tests.cluster.members.world import SHARDS, World
from tests.engine.test_repairs import (
    VALUES,
    damage,
    fetch,
    forget_recent,
    member,
    push,
    repaired,
)

from penstock.engine.maintenance import Pace

OFTEN = Pace(scrub_every_us=2_000_000, scrub_pause_us=10_000)


def roll_journal(world: World, stream: int) -> None:
    """Segments are sealed once they are full; only those are read through."""
    for _ in range(5):
        for shard in range(SHARDS):
            push(world, stream, shard, [bytes(8000)], partition=shard)


def world_with_old_files(seed: int, nodes: int) -> tuple[World, int]:
    world = World(seed, nodes=nodes, pace=OFTEN)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    roll_journal(world, stream)
    forget_recent(world)
    return world, stream


def test_damage_that_nobody_read_is_repaired():
    world, stream = world_with_old_files(31, nodes=3)
    place = world.map().shards[2]
    follower = next(node for node in place.in_sync if node != place.owner)
    damage(world, follower, 2)
    world.run(5_000_000)
    assert repaired(world, follower) >= 1
    world.kill(place.owner)
    world.run(8_000_000)
    assert fetch(world, follower, stream, 2)[: len(VALUES)] == VALUES


def test_one_node_alone_tells_of_it():
    world, _ = world_with_old_files(32, nodes=1)
    world.run(5_000_000)
    scrub = member(world, 1).engine.maintenance.scrub
    assert scrub.passes
    assert not scrub.damages
    assert not member(world, 1).engine.read_damage
    damage(world, 1, 2)
    world.run(5_000_000)
    assert scrub.damages
    assert "found by reading it through" in member(world, 1).engine.read_damage[0]


def test_rounds_are_short_and_passes_go_over_everything():
    world, _ = world_with_old_files(33, nodes=1)
    engine = member(world, 1).engine
    read, rounds = [], engine.maintenance.scrub
    passes = rounds.passes
    while rounds.passes < passes + 2:
        world.run(5_000)
        read.append(rounds.place)
    wanted = {file.name for file in engine.files.all() if file.sealed and file.live}
    assert len(wanted) > 2
    assert wanted <= {engine.files[number].name for number, _ in read if number >= 0}
