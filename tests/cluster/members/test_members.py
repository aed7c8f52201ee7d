"""Pushes, pops and acks on whole nodes while nodes die, part and return."""

from __future__ import annotations

import pytest
import xxhash
from tests.cluster.members.client import Client
from tests.cluster.members.world import SHARDS, World

from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.frames import Verb


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


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 30))]


@pytest.mark.parametrize("seed", SEEDS)
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


def test_an_owner_that_was_replaced_answers_no_read():
    world = World(5)
    stream, key = world.table("k"), b"a"
    shard = xxhash.xxh3_64_intdigest(key) % SHARDS
    old = world.map().owner_of(shard)
    world.request(old, Verb.CALL, m.pack(m.Put(stream, key, b"old")))
    # It hears nothing of its own replacement.
    place = world.map().shards[shard]
    heir = next(node for node in place.in_sync if node != old)
    world.part((old, heir), (old, 6 - old - heir))
    read = m.pack(m.Get(stream, key))
    with pytest.raises((PenstockError, TimeoutError)):
        world.request(old, Verb.CALL, read, wait_us=900_000)
    world.run(8_000_000)
    assert world.map(heir).owner_of(shard) != old
    with pytest.raises((PenstockError, TimeoutError)):
        world.request(old, Verb.CALL, read, wait_us=900_000)
