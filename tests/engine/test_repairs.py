"""Damaged batches of a node in a cluster are fetched from another replica, and stay repaired."""

from __future__ import annotations

import pytest
from tests.cluster.members.world import SHARDS, World

from penstock.cluster.replication import tail
from penstock.core.index import Stored
from penstock.engine.cache import RecentPayloads
from penstock.engine.maintenance import Pace
from penstock.engine.member import Member
from penstock.errors import DamagedError, MovedError, PenstockError
from penstock.store.checkpoint import read_checkpoint
from penstock.store.files import Limits
from penstock.store.locations import CHECKPOINT, file_name, split
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FETCH, FETCH_HEAD, PUSH, Verb

PAYLOAD_AT = 200  # past the header of a record and of its batch


def member(world: World, number: int) -> Member:
    found = world.hosts[number].member
    assert found is not None
    return found


def forget_recent(world: World) -> None:
    """What was just written is read from the disk as well."""
    for host in world.hosts.values():
        if host.member is not None:
            host.member.engine.reader.recent = RecentPayloads(0)


def stored(world: World, node: int, shard: int) -> list[Stored]:
    batches = member(world, node).engine.fabric.kernel.shards[shard].batches()
    return [each for _, each in batches]


def damage(world: World, node: int, shard: int) -> None:
    """Flips a bit of every batch of a shard on the disk of a node."""
    engine = member(world, node).engine
    for each in stored(world, node, shard):
        number, offset = split(each.location)
        world.hosts[node].disk.flip(engine.files[number].name, offset + PAYLOAD_AT)


def push(world: World, stream: int, shard: int, values: list[bytes], partition: int = 0) -> None:
    batch = encode_batch(values, timestamp_us=5)
    owner = world.map().owner_of(shard)
    world.request(owner, Verb.PUSH, PUSH.pack(stream, partition, shard, 0, 0) + bytes(batch))


def fetch(world: World, node: int, stream: int, partition: int) -> list[bytes]:
    body = world.request(node, Verb.FETCH, FETCH.pack(stream, partition, 0, 1 << 20, 0))
    _, _, count = FETCH_HEAD.unpack_from(body)
    found, at = [], FETCH_HEAD.size
    for _ in range(count):
        batch = Batch.parse(body[at : at + int.from_bytes(body[at + 4 : at + 8], "little")])
        found += batch.values
        at += batch.header.length
    return found


def repaired(world: World, node: int) -> int:
    return member(world, node).repairs.repaired


VALUES = [b"value %03d" % n for n in range(40)]


def test_a_pop_gets_what_was_pushed_and_the_damage_is_gone():
    world = World(1)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    owner = world.map().owner_of(shard)
    forget_recent(world)
    damage(world, owner, shard)
    (before,) = stored(world, owner, shard)
    popped = world.pop(owner, stream)
    assert [value for value, _ in popped] == VALUES
    assert not member(world, owner).engine.read_damage
    world.run(1_000_000)
    (after,) = stored(world, owner, shard)
    assert after.location != before.location
    assert (after.base, after.rows, after.length) == (before.base, before.rows, after.length)
    assert repaired(world, owner) == 1
    assert member(world, owner).engine.fabric.figures()["repaired"] == 1
    world.kill(owner)  # the checkpoint after the repair lasts
    world.start(owner)
    assert member(world, owner).engine.recovered["damages"] == []


def test_the_replacement_is_what_the_producer_wrote_byte_for_byte():
    world = World(2)
    stream, shard = world.queue("q"), 5
    push(world, stream, shard, VALUES)
    owner = world.map().owner_of(shard)
    engine = member(world, owner).engine
    places = [(each.location, each.length, each.base) for each in stored(world, owner, shard)]
    (before,) = engine.reader.wait(places)
    assert not isinstance(before, PenstockError)
    forget_recent(world)
    damage(world, owner, shard)
    world.pop(owner, stream)
    world.run(1_000_000)
    places = [(each.location, each.length, each.base) for each in stored(world, owner, shard)]
    (after,) = engine.reader.wait(places)
    assert not isinstance(after, PenstockError)
    assert bytes(after) == bytes(before)


def test_a_fetch_of_a_topic_is_repaired():
    world = World(3)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    owner = world.map().owner_of(2)
    forget_recent(world)
    damage(world, owner, 2)
    assert fetch(world, owner, stream, 2) == VALUES
    world.run(1_000_000)
    assert repaired(world, owner) == 1
    forget_recent(world)
    assert fetch(world, owner, stream, 2) == VALUES
    assert repaired(world, owner) == 1


def test_without_a_whole_copy_it_is_damaged_as_on_a_single_node():
    world = World(4)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    world.run(1_000_000)
    owner = world.map().owner_of(2)
    forget_recent(world)
    for number in world.hosts:
        damage(world, number, 2)
    with pytest.raises(DamagedError):
        fetch(world, owner, stream, 2)
    assert member(world, owner).engine.read_damage


def test_one_node_alone_repairs_nothing():
    world = World(5, nodes=1)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    forget_recent(world)
    damage(world, 1, shard)
    assert world.pop(1, stream) == []
    assert member(world, 1).engine.read_damage


def test_a_replica_that_does_not_answer_is_passed_over():
    world = World(6)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    owner = world.map().owner_of(2)
    forget_recent(world)
    damage(world, owner, 2)
    place = world.map().shards[2]
    assert (len(place.replicas), len(place.in_sync)) == (3, 2)
    world.pause(next(node for node in place.in_sync if node != owner), 30_000_000)
    assert fetch(world, owner, stream, 2) == VALUES


def test_a_copy_of_a_damaged_shard_is_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 0)  # a new node gets a copy, not the log
    world = World(8)
    stream = world.topic("t", SHARDS)
    for shard in range(SHARDS):
        push(world, stream, shard, VALUES, partition=shard)
    world.run(1_000_000)
    forget_recent(world)
    for shard in range(SHARDS):
        damage(world, world.map().owner_of(shard), shard)
    world.join(4)
    world.run(20_000_000)
    held = world.map().shards_of(4)
    assert held
    for shard in held:
        (copied,) = stored(world, 4, shard)
        (found,) = member(world, 4).engine.reader.wait(
            [(copied.location, copied.length, copied.base)]
        )
        assert not isinstance(found, PenstockError)
        assert Batch.parse(found).values == VALUES


def test_batches_that_lie_nowhere_on_the_owner_are_copied_each_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
):
    """As a copy leaves them that nobody could read at the time: all of them at location 0."""
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 0)  # a new node gets a copy, not the log
    world = World(8)
    streams = [world.topic(name, SHARDS) for name in ("a", "b", "c")]
    for shard in range(SHARDS):
        for stream in streams:
            push(world, stream, shard, [b"%d %d" % (stream, shard)], partition=shard)
    world.run(1_000_000)
    forget_recent(world)
    for shard in range(SHARDS):
        member(world, world.map().owner_of(shard)).engine.fabric.kernel.shards[shard].relocate({})
    world.join(4)
    world.run(20_000_000)
    held = world.map().shards_of(4)
    assert held
    engine = member(world, 4).engine
    for shard in held:
        for meta, copied in engine.fabric.kernel.shards[shard].batches():
            (found,) = engine.reader.wait([(copied.location, copied.length, copied.base)])
            assert not isinstance(found, PenstockError)
            assert Batch.parse(found).values == [b"%d %d" % (meta.stream, shard)]


def test_a_node_that_gets_a_copy_is_asked_for_what_the_owner_lost(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 4)
    world = World(14)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    world.run(1_000_000)
    place = world.map().shards[shard]
    away = next(node for node in place.in_sync if node != place.owner)
    world.kill(away)
    world.run(5_000_000)
    for _ in range(12):  # more than owners keep for those who are away
        push(world, stream, shard, VALUES)
    forget_recent(world)
    for node in world.map().shards[shard].in_sync:
        oldest = stored(world, node, shard)[0]
        engine = member(world, node).engine
        number, offset = split(oldest.location)
        world.hosts[node].disk.flip(engine.files[number].name, offset + PAYLOAD_AT)
    restart(world, away)
    assert away in world.map().shards[shard].in_sync
    found = stored(world, away, shard)
    assert len(found) == 13
    (payload,) = member(world, away).engine.reader.wait(
        [(found[0].location, found[0].length, found[0].base)]
    )
    assert not isinstance(payload, PenstockError)
    assert Batch.parse(payload).values == VALUES


def test_a_node_starts_with_a_copy_of_what_nobody_could_read():
    world = World(9, nodes=1)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    engine = member(world, 1).engine
    engine.fabric.kernel.shards[2].relocate({})  # as a copy leaves a batch that did not come
    engine.maintenance.want_checkpoint()
    world.run(1_000_000)
    assert engine.maintenance.checkpoints
    world.kill(1)
    restart(world, 1)
    assert [each.location for each in stored(world, 1, 2)] == [0]
    with pytest.raises(DamagedError):
        fetch(world, 1, stream, 2)


def test_a_follower_that_finds_damage_asks_the_owner():
    pace = Pace(limits=Limits(keep_journal=0, dead_percent=1, dead_bytes=0))
    world = World(7, pace=pace)
    stream = world.topic("t", SHARDS)
    push(world, stream, 2, VALUES, partition=2)
    world.run(1_000_000)
    place = world.map().shards[2]
    follower = next(node for node in place.in_sync if node != place.owner)
    forget_recent(world)
    damage(world, follower, 2)
    for _ in range(40):  # until the journal rolls, and its old segments are cleaned
        for shard in range(SHARDS):
            push(world, stream, shard, [bytes(4000)], partition=shard)
        if repaired(world, follower):
            break
    assert repaired(world, follower) == 1


@pytest.mark.parametrize("seed", range(4))
def test_bits_flip_under_work_and_nothing_is_lost(seed: int):
    world = World(10 + seed)
    stream = world.queue("q")
    pushed, popped = [], []
    for number in range(40):
        values = [b"%d.%d" % (number, n) for n in range(world.random.randint(1, 5))]
        push(world, stream, number % SHARDS, values)
        pushed += values
    forget_recent(world)
    for shard in range(SHARDS):
        damage(world, world.map().owner_of(shard), shard)
    world.run(500_000)
    for number in world.hosts:
        while some := world.pop(number, stream):
            for value, token in some:
                popped.append(value)
                assert world.ack(number, token)
    assert sorted(popped) == sorted(pushed)


def restart(world: World, node: int) -> None:
    world.start(node)
    world.run(12_000_000)


def kill_and_damage(world: World, node: int, shard: int) -> None:
    """The journal is replayed over the damage at the next start; later records tell that it was
    synced once, and is no torn end."""
    damage(world, node, shard)
    world.queue("later")
    world.queue("latest")
    world.kill(node)


def test_an_owner_that_starts_with_damage_hands_over_and_gets_a_copy():
    world = World(21)  # the owner is one that is wanted in sync afterwards, too
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    world.run(1_000_000)
    owner = world.map().owner_of(shard)
    kill_and_damage(world, owner, shard)
    world.start(owner)  # before anybody takes it for down
    assert member(world, owner).engine.damaged_shards == {shard}
    # The owner itself knows of no map yet.
    other = next(node for node in world.hosts if node != owner)
    while world.map(other).owner_of(shard) == owner:
        world.run(10_000)
    assert owner not in world.map(other).shards[shard].in_sync
    world.run(12_000_000)
    assert owner in world.map().shards[shard].in_sync
    assert member(world, owner).engine.fabric.kernel.shards[shard].damaged == []
    assert [each.rows for each in stored(world, owner, shard)] == [len(VALUES)]
    keeper = world.map().owner_of(shard)
    assert [value for value, _ in world.pop(keeper, stream)] == VALUES


def test_a_follower_that_starts_with_damage_gets_a_copy():
    world = World(21)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    world.run(1_000_000)
    place = world.map().shards[shard]
    follower = next(node for node in place.in_sync if node != place.owner)
    kill_and_damage(world, follower, shard)
    restart(world, follower)
    assert follower in world.map().shards[shard].in_sync
    assert member(world, follower).engine.fabric.kernel.shards[shard].damaged == []
    assert [each.rows for each in stored(world, follower, shard)] == [len(VALUES)]
    world.kill(follower)
    restart(world, follower)
    assert member(world, follower).engine.damaged_shards == set()


def test_the_only_node_serves_what_is_left():
    world = World(22, nodes=1)
    stream = world.queue("q")
    push(world, stream, 3, VALUES)
    push(world, stream, 4, VALUES)
    kill_and_damage(world, 1, 3)
    restart(world, 1)
    assert member(world, 1).engine.fabric.figures()["damaged"] == len(VALUES)
    assert [value for value, _ in world.pop(1, stream)] == VALUES


def test_a_shard_whose_state_is_lost_is_copied():
    world = World(23)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    world.run(1_000_000)
    owner = world.map().owner_of(shard)
    maintenance = member(world, owner).engine.maintenance
    maintenance.want_checkpoint()
    world.run(1_000_000)
    assert maintenance.checkpoints
    world.kill(owner)
    break_section(world, owner, f"shard-{shard}")
    world.start(owner)
    assert member(world, owner).engine.broken_shards == {shard}
    world.run(12_000_000)
    assert owner in world.map().shards[shard].in_sync
    assert [each.rows for each in stored(world, owner, shard)] == [len(VALUES)]


def break_section(world: World, node: int, name: str) -> None:
    """Flips a bit of a section of the checkpoint of a node that is down."""
    disk = world.hosts[node].disk
    checkpoint = read_checkpoint(disk)
    assert checkpoint is not None
    file = file_name(CHECKPOINT, checkpoint.number)
    disk.flip(file, bytes(disk.inodes[file].data).index(checkpoint.sections[name]))


def test_a_shard_whose_state_is_lost_is_not_served_by_the_only_node():
    world = World(24, nodes=1)
    stream = world.queue("q")
    push(world, stream, 3, VALUES)
    push(world, stream, 4, VALUES)
    member(world, 1).engine.maintenance.want_checkpoint()
    world.run(1_000_000)
    world.kill(1)
    break_section(world, 1, "shard-3")
    restart(world, 1)
    with pytest.raises(MovedError):
        push(world, stream, 3, VALUES)
    assert [value for value, _ in world.pop(1, stream)] == VALUES
    assert "its state is lost" in member(world, 1).engine.read_damage[0]


@pytest.mark.parametrize("section", ["", "shard-3"])
def test_a_node_that_cannot_ask_yet_does_not_forget_its_damage(section: str):
    world = World(26)
    stream, shard = world.queue("q"), 3
    push(world, stream, shard, VALUES)
    world.run(1_000_000)
    owner = world.map().owner_of(shard)
    if section:
        member(world, owner).engine.maintenance.want_checkpoint()
        world.run(1_000_000)
        world.kill(owner)
        break_section(world, owner, section)
    else:
        kill_and_damage(world, owner, shard)
    others = [node for node in world.hosts if node != owner]
    world.part(*((owner, node) for node in others))
    for _ in range(3):  # cut off from all others, it takes checkpoints, and starts again
        world.start(owner)
        maintenance = member(world, owner).engine.maintenance
        maintenance.want_checkpoint()
        world.run(1_000_000)
        assert maintenance.checkpoints
        assert member(world, owner).replicas.withheld == {shard}
        world.kill(owner)
    world.part()
    restart(world, owner)
    assert not member(world, owner).replicas.withheld
    assert owner in world.map().shards[shard].in_sync
    assert [each.rows for each in stored(world, owner, shard)] == [len(VALUES)]


def test_a_lost_part_of_the_control_plane_keeps_a_node_from_starting():
    world = World(25)
    member(world, 2).engine.maintenance.want_checkpoint()
    world.run(1_000_000)
    world.kill(2)
    break_section(world, 2, "consensus")
    with pytest.raises(DamagedError, match="consensus"):
        world.start(2)
