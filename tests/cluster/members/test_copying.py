"""A node that was away for long, or went a wrong way, gets the whole state of its shards."""

from __future__ import annotations

import pytest
from tests.cluster.members.client import Client
from tests.cluster.members.world import SHARDS, World

from penstock.cluster.replication import tail


@pytest.fixture(autouse=True)
def _short_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 4)


def assert_equal_copies(world: World) -> None:
    """All replicas have the same messages of every shard."""
    for shard, place in enumerate(world.map().shards):
        assert len(place.replicas) == 3
        seen = []
        for node in place.replicas:
            member = world.hosts[node].member
            assert member is not None
            state = member.engine.fabric.kernel.shards[shard]
            rows = sorted((m.stream, s.base, s.live) for m, s in state.batches())
            seen.append((state.last, rows))
            for _, stored in state.batches():
                where = (stored.location, stored.length, stored.base)
                (found,) = member.engine.reader.wait([where], member.engine.reader.known([where]))
                assert not isinstance(found, Exception), f"shard {shard} on node {node}: {found}"
        assert seen[0] == seen[1] == seen[2], f"shard {shard}"


def test_a_node_that_was_away_for_long_gets_a_copy():
    world = World(3)
    stream = world.queue("q")
    client = Client(world, stream)
    client.work(30)
    world.kill(3)
    for _ in range(12):
        for shard in range(SHARDS):
            client.push(shard, tries=12)
    world.start(3)
    world.run(30_000_000)
    assert_equal_copies(world)
    world.kill(1)
    world.run(8_000_000)
    client.drain()
    assert client.check() == []


@pytest.mark.parametrize("seed", range(5))
def test_copies_under_faults(seed: int):
    world = World(seed)
    stream = world.queue("q")
    client = Client(world, stream)
    for _ in range(8):
        client.work(25)
        number = world.random.choice([1, 2, 3])
        if world.hosts[number].member is None:
            world.start(number)
        elif world.random.random() < 0.6:
            world.kill(number)
        else:
            one, two = world.random.sample([1, 2, 3], 2)
            world.part((one, two))
        world.run(world.random.randint(10_000, 3_000_000))
    world.part()
    for number, host in world.hosts.items():
        if host.member is None:
            world.start(number)
    world.run(40_000_000)
    assert_equal_copies(world)
    client.drain()
    assert client.check() == []
