"""Publications when a node was replaced and does not know it yet."""

from __future__ import annotations

import pytest
import xxhash
from tests.cluster.members.world import World

from penstock.errors import MovedError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.frames import Verb

PARTITION = 1


def key_at(world: World, node: int) -> str:
    """A key whose home is on a node."""
    known = world.map()
    for number in range(1000):
        name = m.publication_name("default", f"key-{number}").encode()
        if known.owner_of(xxhash.xxh3_64_intdigest(name) % len(known.shards)) == node:
            return f"key-{number}"
    raise AssertionError("no such key")


def test_a_node_that_was_replaced_does_not_say_that_a_stage_is_gone():
    """It may have been written where the shard is now."""
    world = World(5)
    world.topic("t", 3)
    old = world.map().owner_of(PARTITION)
    parts = [m.StagesOf(PARTITION, [m.StagedPart(bytes(16), 1)])]
    call = m.pack(m.PublishStaged(key_at(world, old), 1, parts))
    with pytest.raises(NotFoundError):
        world.request(old, Verb.CALL, call)
    world.part(*[(old, number) for number in (1, 2, 3) if number != old])
    with pytest.raises((MovedError, TimeoutError)):
        world.request(old, Verb.CALL, call)
