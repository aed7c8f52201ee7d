"""A node that was away for long, or went a wrong way, gets the whole state of its shards."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cluster.members import world as members_world
from tests.cluster.members.client import Client
from tests.cluster.members.world import SHARDS, World

from penstock.cluster.replication import tail
from penstock.cluster.replication.messages import Position
from penstock.cluster.replication.owner import Link
from penstock.engine import copies
from penstock.engine.copy_messages import Batches, Begin, CopyMessage, State, Taken, unpack_copy
from penstock.engine.copying import PATIENCE_US, WINDOW
from penstock.engine.member import Member
from penstock.errors import ProtocolError


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


def member(world: World, number: int) -> Member:
    found = world.hosts[number].member
    assert found is not None
    return found


def said(of: Member) -> list[tuple[int, CopyMessage]]:
    """What a node says about copies, since the last time."""
    peers, of.peers = of.peers, []
    parts = [(node, b"".join(parts)) for node, parts in peers]
    return [(node, unpack_copy(data[1:])) for node, data in parts if data[:1] == b"k"]


class Beginning:
    """A follower to which the owner of a shard sends a copy that begins with a later version of the
    definitions than the follower knows."""

    def __init__(self) -> None:
        self.world = World(1)
        place = self.world.map().shards[3]
        self.owner, self.epoch = place.owner, place.epoch
        self.follower = member(self.world, place.in_sync[1])
        self.version = self.follower.replicas.out.version + 1
        self.copies = self.follower.copies
        said(self.follower)

    def receive(self, message: CopyMessage) -> None:
        self.copies.receive(self.owner, message, self.world.now_us)

    def begin(self, copy: int, shard: int = 3) -> None:
        self.receive(Begin(shard, self.epoch, copy, self.version))

    def defined(self) -> list[tuple[int, CopyMessage]]:
        """What the follower says once it knows the definitions."""
        self.follower.replicas.defined(self.version)
        self.copies.advance(self.world.now_us)
        return said(self.follower)


def test_a_copy_that_begins_before_its_definitions_are_known_waits_for_them():
    world = Beginning()
    world.begin(7)
    world.receive(State(3, world.epoch, 7, b"part"))
    world.copies.advance(world.world.now_us)
    assert said(world.follower) == []
    assert world.defined() == [(world.owner, Taken(3, world.epoch, 7))] * 2
    world.receive(State(3, world.epoch, 7, b"part"))  # from then on nothing waits
    assert said(world.follower) == [(world.owner, Taken(3, world.epoch, 7))]


def test_of_copies_that_wait_the_latest_of_a_shard_counts():
    world = Beginning()
    world.begin(7)
    world.receive(State(3, world.epoch, 7, b"part"))
    world.begin(8)
    assert world.defined() == [(world.owner, Taken(3, world.epoch, 8))]


def test_a_copy_that_waits_is_lost_with_its_link():
    world = Beginning()
    world.begin(7)
    world.copies.unlinked(world.owner, world.world.now_us)
    assert world.defined() == []


def test_no_more_of_a_copy_waits_than_an_owner_sends_without_an_answer():
    world = Beginning()
    world.begin(7)
    for _ in range(WINDOW):
        world.receive(State(3, world.epoch, 7, b"part"))
    assert world.defined() == []


def test_of_too_many_copies_that_wait_the_first_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "MAX_HELD", 1)
    world = Beginning()
    world.begin(7)
    world.begin(8, shard=4)
    assert (world.owner, Taken(3, world.epoch, 7)) not in world.defined()


def test_a_copy_that_waits_is_checked_when_it_comes():
    """Later its link could not be cut for it."""
    world = Beginning()
    world.begin(7)
    with pytest.raises(ProtocolError):
        world.receive(Batches(3, world.epoch, 7, [(1, b"meta", b"payload")]))


def streamed(world: World, node: int) -> bool:
    """Whether a node gets all that others log, of every shard."""
    followers = [
        owned.followers[node]
        for number, host in world.hosts.items()
        if number != node and host.member is not None
        for shard in range(SHARDS)
        if (owned := host.member.replicas.owned(shard)) is not None and node in owned.followers
    ]
    return bool(followers) and all(each.link is Link.STREAMED for each in followers)


def test_a_node_whose_disk_is_slow_is_copied_to_at_once(monkeypatch: pytest.MonkeyPatch):
    """Every copy that is done changes the map: owners know that before a follower whose disk is
    slow, and begin the next copies with it."""
    world = World(3)
    client = Client(world, world.queue("q"))
    world.kill(3)
    world.run(3_000_000)
    for _ in range(12):
        for shard in range(SHARDS):
            assert client.push(shard, tries=12)
    monkeypatch.setattr(members_world, "FLUSH_US", 40_000)
    world.start(3)
    started_us = world.now_us
    while not streamed(world, 3):
        world.run(100_000)
    assert world.now_us - started_us < PATIENCE_US // 2


def ask_for_copy(owner: Member, shard: int, node: int, now_us: int) -> None:
    """A follower says that its log went a wrong way."""
    owned = owner.replicas.owned(shard)
    assert owned is not None
    assert node not in owned.in_sync
    owned.linked(node, now_us)
    where = Position(shard, owned.epoch, owned.followers[node].round, 1 << 40, owned.epoch)
    owner.replicas.receive(node, where, now_us)
    owner.pump(now_us)


def sent_to(owner: Member, now_us: int) -> set[int]:
    """The nodes to which copies begin."""
    owner.pump(now_us)
    return {node for node, message in said(owner) if isinstance(message, Begin)}


def owner_of_three(world: World) -> tuple[Member, list[tuple[int, int]]]:
    """A node that owns three shards, and each of them with who is not in sync: first two of the
    same node, then one of another."""
    found: dict[int, list[tuple[int, int]]] = {}
    for shard, place in enumerate(world.map().shards):
        (outside,) = {*place.replicas} - {*place.in_sync}
        found.setdefault(place.owner, []).append((shard, outside))
    for number, shards in found.items():
        count = Counter(node for _, node in shards)
        if len(shards) == 3 and len(count) == 2:
            return member(world, number), sorted(shards, key=lambda each: -count[each[1]])
    raise AssertionError("there is none")


def test_copies_to_a_node_without_a_link_keep_no_others_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "MAX_SENDING", 1)
    world = World(3)
    owner, shards = owner_of_three(world)
    now_us, lost, other = world.now_us, shards[0][1], shards[2][1]
    for shard, node in shards:
        ask_for_copy(owner, shard, node, now_us)
    assert sent_to(owner, now_us) == {lost}
    owner.unlinked(lost, now_us)
    assert sent_to(owner, now_us) == {other}


def test_a_copy_that_waits_is_not_sent_to_a_node_that_was_asked_anew(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(copies, "MAX_SENDING", 1)
    world = World(3)
    owner, shards = owner_of_three(world)
    now_us = world.now_us
    for shard, node in shards:
        ask_for_copy(owner, shard, node, now_us)
    first, second, third = shards
    assert sent_to(owner, now_us) == {first[1]}
    owned = owner.replicas.owned(second[0])
    assert owned is not None
    owned.linked(second[1], now_us)
    owner.copies.tick(now_us + PATIENCE_US)  # the first is given up
    assert sent_to(owner, now_us) == {third[1]}
