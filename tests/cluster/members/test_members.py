"""Pushes, pops and acks on whole nodes while nodes die, part and return."""

from __future__ import annotations

import pytest
from tests.cluster.members.client import Client
from tests.cluster.members.world import SHARDS, World


def test_a_push_is_on_two_nodes_when_it_is_acknowledged():
    world = World(1)
    stream = world.queue("q")
    for shard in range(SHARDS):
        owner = world.map().owner_of(shard)
        assert world.push(owner, stream, shard, b"v%d" % shard, 5, 0)
        place = world.map().shards[shard]
        assert len(place.in_sync) == 2
        for node in place.in_sync:
            member = world.hosts[node].member
            assert member is not None
            assert member.engine.fabric.kernel.shards[shard].last >= 1


def test_it_survives_the_loss_of_each_node_in_turn():
    world = World(2)
    stream = world.queue("q")
    history = Client(world, stream)
    for victim in (2, 1, 3):
        history.work(40)
        world.kill(victim)
        history.work(40)
        world.start(victim)
        world.run(8_000_000)
        history.work(20)
    history.drain()
    assert history.check() == []
    assert len(history.pushed) > 100


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_and_nothing_acked_twice(seed: int):
    world = World(seed)
    stream = world.queue("q")
    history = Client(world, stream)
    for _ in range(14):
        history.work(12)
        _break_something(world)
        world.run(world.random.randint(10_000, 2_500_000))
    world.part()
    for number, host in world.hosts.items():
        if host.member is None:
            world.start(number)
    world.run(20_000_000)
    history.drain()
    assert history.check() == []


def _break_something(world: World) -> None:
    number = world.random.choice([1, 2, 3])
    chance = world.random.random()
    if world.hosts[number].member is None:
        world.start(number)
    elif chance < 0.35:
        world.kill(number)
    elif chance < 0.7:
        one, two = world.random.sample([1, 2, 3], 2)
        world.part((one, two))
    elif chance < 0.85:
        world.part(*((number, other) for other in (1, 2, 3) if other != number))
    else:
        world.part()
