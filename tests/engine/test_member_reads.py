"""Reads of a node in a cluster, what they cost, and how much may wait for other nodes."""

from __future__ import annotations

import msgspec
import pytest
import xxhash
from tests.cluster.members.world import SHARDS, World

from penstock.cluster.levels import HIGHEST
from penstock.engine import engine as engine_module
from penstock.engine.member import Member
from penstock.errors import PenstockError, StorageError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FRAME_BYTES, PUSH, Flag, Verb


def member(world: World, number: int) -> Member:
    found = world.hosts[number].member
    assert found is not None
    return found


def call(world: World, node: int, request: m.Request, wait_us: int = 3_000_000) -> object:
    return msgspec.msgpack.decode(world.request(node, Verb.CALL, m.pack(request), wait_us))


def shard_of(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key) % SHARDS


def test_a_read_writes_nothing():
    world = World(1)
    stream = world.table("t")
    owner = world.map().owner_of(shard_of(b"k"))
    call(world, owner, m.Put(stream, b"k", b"v"))
    world.run(1_000_000)
    journal = member(world, owner).engine.journal
    before = journal.appended_records
    for _ in range(20):
        entry = call(world, owner, m.Get(stream, b"k"))
        assert isinstance(entry, dict | list)
    assert journal.appended_records == before


def test_a_read_waits_for_what_was_written_before_it():
    world = World(2)
    stream = world.table("t")
    place = world.map().shards[shard_of(b"k")]
    follower = next(node for node in place.in_sync if node != place.owner)
    world.pause(follower, 400_000)
    answers: list[str] = []
    put, get = m.Put(stream, b"k", b"new"), m.Get(stream, b"k")
    world.send(place.owner, Verb.CALL, m.pack(put), lambda _: answers.append("put"), 3_000_000)
    world.run(50_000)
    world.send(place.owner, Verb.CALL, m.pack(get), lambda _: answers.append("get"), 3_000_000)
    world.run(200_000)
    assert answers == []
    world.run(800_000)
    assert sorted(answers) == ["get", "put"]  # in the same moment; answers travel separately


def test_the_ends_of_a_partition_are_told_by_its_owner_only():
    world = World(3)
    stream = world.topic("t", SHARDS)
    old = world.map().owner_of(2)
    head = PUSH.pack(stream, 2, 2, 0, 0)
    world.request(old, Verb.PUSH, head + bytes(encode_batch([b"one"], timestamp_us=5)))
    asks = m.Offsets(stream, [2]), m.OffsetAt(stream, 0, [2])
    assert call(world, old, asks[0]) == [[0, 1]]
    world.part(*((old, other) for other in world.hosts if other != old))
    for ask in asks:
        with pytest.raises((PenstockError, TimeoutError)):
            call(world, old, ask, wait_us=900_000)
    world.run(8_000_000)
    new = world.map(next(n for n in world.hosts if n != old)).owner_of(2)
    world.request(new, Verb.PUSH, head + bytes(encode_batch([b"two"], timestamp_us=5)))
    assert call(world, new, asks[0]) == [[0, 2]]
    for ask in asks:
        with pytest.raises((PenstockError, TimeoutError)):
            call(world, old, ask, wait_us=900_000)


def test_an_owner_with_slow_followers_pushes_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "BUSY_BYTES", 100_000)
    world = World(4)
    stream, shard = world.queue("q"), 0
    place = world.map().shards[shard]
    engine = member(world, place.owner).engine
    assert not engine.busy
    world.pause(next(node for node in place.in_sync if node != place.owner), 600_000)
    body = PUSH.pack(stream, 0, shard, 0, 0) + bytes(encode_batch([bytes(50_000)], timestamp_us=5))
    for _ in range(3):
        world.send(place.owner, Verb.PUSH, body, lambda _: None, 5_000_000)
    world.run(100_000)
    assert engine.journal.pending_bytes == 0
    assert engine.busy
    engine.fabric.kernel.refusing = StorageError("the disk is full")  # then it goes on refusing
    assert not engine.busy
    engine.fabric.kernel.refusing = None
    world.run(3_000_000)
    assert not engine.busy
    assert member(world, place.owner).replicas.waiting_bytes == 0


def event(world: World, node: int, request: int) -> m.Event | None:
    """The last event that a watch was told of."""
    answer = world.hosts[node].answers.get(request)
    if answer is None or answer[4] != Verb.EVENT:
        return None
    assert not answer[5] & Flag.ERROR
    return msgspec.msgpack.decode(answer[FRAME_BYTES:], type=m.Event)


def test_whoever_watches_hears_that_events_may_be_lost_with_an_owner():
    world = World(5)
    stream = world.table("t")
    old = world.map().owner_of(shard_of(b"k"))
    call(world, old, m.Put(stream, b"k", b"v"))
    watches = {}
    for node in world.hosts:
        if node != old:
            world.request(node, Verb.CALL, m.pack(m.Watch(stream, b"")))
            watches[node] = world._requests
    world.run(1_000_000)
    assert [event(world, node, watch) for node, watch in watches.items()] == [None, None]
    world.kill(old)
    world.run(5_000_000)
    heir = world.map().owner_of(shard_of(b"k"))
    told = event(world, heir, watches[heir])
    assert told is not None
    assert told.lost


def test_all_speak_the_level_of_this_release():
    world = World(6)
    assert {member(world, number).level for number in world.hosts} == {HIGHEST}
