"""Staged batches are live data: they are copied to other nodes, repaired, and survive promotions;
nodes of an older release hold them up."""

from __future__ import annotations

import msgspec
import pytest
from tests.cluster.members.world import SHARDS, World
from tests.cluster.outbox import test_late_stages as late_stages
from tests.cluster.outbox.fabric import Fabric
from tests.cluster.outbox.test_growing import grow, info_of
from tests.engine import test_mixed_levels as mixed_levels
from tests.engine.test_repairs import damage, fetch, forget_recent, member, repaired

from penstock.cluster.map import Speaks
from penstock.cluster.replication import tail
from penstock.errors import ConflictError, DamagedError, NotFoundError, PenstockError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import PUSH, PushExtra, Verb

VALUES = [b"value %03d" % n for n in range(40)]


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def stage(world: World, stream: int, partition: int, number: int, values: list[bytes]) -> None:
    """Stages a batch for a partition, which is in the shard of the same number."""
    packed = m.pack(PushExtra(stage=name(number)))
    extra = len(packed).to_bytes(4, "little") + packed
    extra += bytes(-len(extra) % 8)
    batch = bytes(encode_batch(values, timestamp_us=5))
    owner = world.map().owner_of(partition)
    head = PUSH.pack(stream, partition, partition, 0, len(extra))
    world.request(owner, Verb.PUSH, head + extra + batch)


def publish(world: World, number: int, partitions: list[int], messages: int) -> m.Publication:
    shards = [m.StagesOf(each, [m.StagedPart(name(number), messages)]) for each in partitions]
    call = m.PublishStaged("job", number, shards)
    fabric = member(world, world.alive()).engine.fabric
    home = fabric.kernel.place_of(m.publication_name("default", "job").encode())
    for _ in range(20):
        try:
            body = world.request(world.map().owner_of(home), Verb.CALL, m.pack(call))
        except NotFoundError:
            raise
        except (PenstockError, TimeoutError):
            world.run(1_000_000)
        else:
            return msgspec.msgpack.decode(body, type=m.Publication)
    raise AssertionError("it cannot be published")


def read(world: World, stream: int, partition: int) -> list[bytes]:
    return fetch(world, world.map().owner_of(partition), stream, partition)


def test_what_was_damaged_while_it_was_staged_is_repaired():
    world = World(3)
    stream = world.topic("t", SHARDS)
    stage(world, stream, 2, 1, VALUES)
    owner = world.map().owner_of(2)
    forget_recent(world)
    damage(world, owner, 2)
    assert publish(world, 1, [2], len(VALUES)).outcome == "published"
    world.run(1_000_000)
    assert read(world, stream, 2) == VALUES
    world.run(1_000_000)
    assert repaired(world, owner) == 1
    forget_recent(world)
    assert read(world, stream, 2) == VALUES
    assert repaired(world, owner) == 1
    forget_recent(world)
    damage(world, owner, 2)
    assert read(world, stream, 2) == VALUES, "also once it is published"


def test_it_is_part_of_a_copy_and_survives_its_owners(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 4)
    world = World(4)
    stream = world.topic("t", SHARDS)
    world.kill(3)
    world.run(8_000_000)
    for partition in range(SHARDS):
        stage(world, stream, partition, 1, VALUES[:10])
        stage(world, stream, partition, 2, VALUES[10:20])
        for _ in range(5):
            stage(world, stream, partition, 3, VALUES[20:22])
    assert publish(world, 1, list(range(SHARDS)), 10).outcome == "published"
    world.run(1_000_000)
    world.start(3)
    world.run(30_000_000)
    for shard in range(SHARDS):
        states = [member(world, n).engine.fabric.kernel.shards[shard] for n in (1, 2, 3)]
        seen = [[(each.stream, row.stamped) for each, row in s.batches()] for s in states]
        assert seen[0] == seen[1] == seen[2]
        assert [list(state.staging.stages) for state in states] == 3 * [[name(2), name(3)]]
    world.kill(1)
    world.run(8_000_000)
    assert publish(world, 2, list(range(SHARDS)), 10).outcome == "published"
    world.start(1)
    world.run(20_000_000)
    world.kill(2)
    world.run(8_000_000)
    assert publish(world, 3, list(range(SHARDS)), 10).outcome == "published"
    world.run(2_000_000)
    for partition in range(SHARDS):
        assert read(world, stream, partition) == VALUES[:20] + 5 * VALUES[20:22]


def test_one_that_is_not_whole_publishes_nothing_anywhere():
    world = World(5)
    stream = world.topic("t", SHARDS)
    for partition in range(3):
        stage(world, stream, partition, 1, VALUES[:3])
    with pytest.raises(NotFoundError):
        publish(world, 1, [0, 1, 2, 3], 3)
    world.run(1_000_000)
    for shard in range(3):
        owner = member(world, world.map().owner_of(shard)).engine.fabric.kernel.shards[shard]
        assert not owner.staging.stages[name(1)].secured, "it lasts no longer than it would have"
    assert publish(world, 1, [0, 1, 2], 3).outcome == "published"
    world.run(1_000_000)
    assert [read(world, stream, each) for each in range(4)] == [VALUES[:3]] * 3 + [[]]


def test_older_nodes_hold_it_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mixed_levels, "NEW", Speaks(1, 3, "0.3"))
    world = mixed_levels.mixed_world(monkeypatch)
    stream, queue = world.topic("t", SHARDS), world.queue("q")
    for number in (2, 3, 1):
        with pytest.raises(ConflictError):
            stage(world, stream, 2, 1, VALUES)
        with pytest.raises(ConflictError):
            world.request(1, Verb.CALL, m.pack(m.Reserve(queue, "job", 1, 1, 1000)))
        world.kill(number)
        world.upgraded.add(number)
        world.start(number)
        world.run(8_000_000)
    assert world.levels() == {3}
    stage(world, stream, 2, 1, VALUES)
    assert publish(world, 1, [2], len(VALUES)).outcome == "published"


def test_a_copy_that_lacks_a_damaged_batch_can_be_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 4)
    world = World(6)
    stream = world.topic("t", SHARDS)
    stage(world, stream, 2, 1, VALUES)
    publish(world, 1, [2], len(VALUES))
    world.run(1_000_000)
    away = next(n for n in (1, 2, 3) if n != world.map().owner_of(2))
    world.kill(away)
    world.run(8_000_000)
    for number in range(2, 9):
        stage(world, stream, 2, number, VALUES[:2])
    forget_recent(world)
    for number in (1, 2, 3):
        if number != away:
            damage(world, number, 2)
    world.start(away)
    world.run(40_000_000)
    shard = member(world, away).engine.fabric.kernel.shards[2]
    lost = [row.location == 0 for _, row in shard.batches()]
    assert lost == [False, *7 * [True]], "the first was there before it was away, and is kept"
    world.kill(away)
    world.start(away)
    world.run(5_000_000)
    assert member(world, away).engine.recovered["damages"] == []


def test_a_damaged_one_of_a_topic_that_has_grown_is_repaired_and_passed_on():
    fabric = Fabric(6)
    topic = fabric.topic("t", 2)
    stored = late_stages.stage(fabric, topic, 1)
    grow(fabric, topic, 6)
    forget_recent(fabric)
    for shard in stored:
        damage(fabric, fabric.owner(shard), shard)
    assert late_stages.publish(fabric, 1, stored).outcome == "published"
    late_stages.check(fabric, topic, {1: 1})


def test_one_of_a_topic_that_has_grown_and_that_nobody_can_read_is_damaged_where_it_is():
    fabric = Fabric(7)
    topic = fabric.topic("t", 2)
    stored = late_stages.stage(fabric, topic, 1)
    grow(fabric, topic, 6)
    forget_recent(fabric)
    shard = next(iter(stored))
    for node in fabric.hosts:
        damage(fabric, node, shard)
    assert late_stages.publish(fabric, 1, stored).outcome == "published"
    fabric.calm()
    assert not fabric.shard(shard).staging.stages
    partition = info_of(fabric, topic).placement.index(shard)
    with pytest.raises(DamagedError):
        fabric.values(topic, partition, shard)
