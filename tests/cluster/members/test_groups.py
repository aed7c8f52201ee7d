"""Groups when the owner of a partition is replaced: states go with offsets, leases start anew."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.cluster.members.world import World

from penstock.errors import FencedError, InvalidError, MovedError, PenstockError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FETCH, PUSH, Verb

LEASE_MS = 20_000
PARTITION = 1


def ask(world: World, node: int, call: Any) -> Any:
    return msgspec.msgpack.decode(world.request(node, Verb.CALL, m.pack(call)))


@pytest.mark.parametrize("seed", range(3))
def test_a_new_owner_knows_claim_and_state_and_gives_whole_leases(seed: int):
    world = World(seed)
    topic = world.topic("t", 3)
    old = world.map().owner_of(PARTITION)
    claim = ask(world, old, m.Claim(topic, PARTITION, "g", "me", LEASE_MS))
    commit = m.Commit(topic, "g", [(PARTITION, 0, claim["token"])], [b"state"])
    ask(world, old, commit)
    world.run(LEASE_MS * 900)
    renew = m.Renew(topic, "g", "me", [(PARTITION, claim["token"])])
    assert ask(world, old, renew) == [True]
    world.kill(old)
    world.run(8_000_000)  # the lease would be over, but for the renewal
    new = world.map(next(n for n in (1, 2, 3) if n != old)).owner_of(PARTITION)
    assert new != old
    assert ask(world, new, m.Claim(topic, PARTITION, "g", "you", LEASE_MS))["token"] == 0
    (status,) = ask(world, new, m.Claims(topic, "g", [PARTITION], True))
    assert (status["owner"], status["token"], status["state"]) == ("me", 1, b"state")
    assert LEASE_MS - 8_000 <= status["left_ms"] <= LEASE_MS
    assert ask(world, new, renew) == [True]
    world.run(LEASE_MS * 1000)
    assert ask(world, new, m.Claim(topic, PARTITION, "g", "you", LEASE_MS))["token"] == 2
    assert ask(world, new, renew) == [False]
    with pytest.raises(FencedError):
        ask(world, new, commit)


def test_a_node_that_was_replaced_renews_nothing():
    world = World(5)
    topic = world.topic("t", 3)
    old = world.map().owner_of(PARTITION)
    claim = ask(world, old, m.Claim(topic, PARTITION, "g", "me", 1000))
    others = [number for number in (1, 2, 3) if number != old]
    world.part(*[(old, number) for number in others])
    renew = m.Renew(topic, "g", "me", [(PARTITION, claim["token"])])
    with pytest.raises((PenstockError, TimeoutError)):
        ask(world, old, renew)
    world.run(8_000_000)
    new = world.map(others[0]).owner_of(PARTITION)
    assert new != old
    assert ask(world, new, m.Claim(topic, PARTITION, "g", "you", 1000))["token"] == 2


def test_a_node_that_was_replaced_does_not_say_that_an_offset_is_too_high():
    """Whoever has read on elsewhere may come back to it before it knows."""
    world = World(5)
    topic = world.topic("t", 3)
    old = world.map().owner_of(PARTITION)
    wanted = FETCH.pack(topic, PARTITION, 2, 1 << 20, 0)
    with pytest.raises(InvalidError):
        world.request(old, Verb.FETCH, wanted)
    others = [number for number in (1, 2, 3) if number != old]
    world.part(*[(old, number) for number in others])
    with pytest.raises((MovedError, TimeoutError)):
        world.request(old, Verb.FETCH, wanted)
    world.run(8_000_000)
    new = world.map(others[0]).owner_of(PARTITION)
    assert new != old
    batch = bytes(encode_batch([b"a", b"b"], timestamp_us=5))
    world.request(new, Verb.PUSH, PUSH.pack(topic, PARTITION, PARTITION, 0, 0) + batch)
    assert world.request(new, Verb.FETCH, wanted)
    with pytest.raises((MovedError, TimeoutError)):
        world.request(old, Verb.FETCH, wanted)
