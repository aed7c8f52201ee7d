"""Many batches are damaged at once: nodes ask each other for a part of them at a time."""

from __future__ import annotations

import pytest
from tests.cluster.members.world import SHARDS, World
from tests.engine.test_repairs import damage, fetch, forget_recent, member, push, repaired, stored

from penstock.cluster.replication import tail
from penstock.engine import lending, repairs
from penstock.engine.member import Member
from penstock.engine.repair_messages import Held, Wanted, pack_repair, unpack_repair
from penstock.errors import PenstockError
from penstock.store.locations import split
from penstock.store.scan import Damage

SHARD = 2
VALUES = [b"value %03d" % n for n in range(60)]
TOGETHER_US = 1_000


class Together(World):
    """What a node sends to another within a millisecond arrives together, as over a socket."""

    def __init__(self, seed: int) -> None:
        self.boxes: dict[tuple[int, int, int], list[memoryview]] = {}
        super().__init__(seed)

    def _deliver(self, source: int, target: int, life: int, data: bytes) -> None:
        key = source, target, life
        if key in self.boxes:
            self.boxes[key].append(memoryview(data))
            return
        self.boxes[key] = [memoryview(data)]

        def arrive() -> None:
            host = self.hosts[target]
            if self._later(host, arrive):
                return
            messages = self.boxes.pop(key)
            if self.links.get(frozenset((source, target))) == life and host.member is not None:
                host.member.receive(source, messages, self.now_us)
                self._settle(host)

        self._at(TOGETHER_US, arrive)


def damaged(seed: int = 3) -> tuple[Together, int, int]:
    """A world; a topic; and its owner, who has no batch of it whole."""
    world = Together(seed)
    stream = world.topic("t", SHARDS)
    for value in VALUES:
        push(world, stream, SHARD, [value], partition=SHARD)
    world.run(1_000_000)
    owner = world.map().owner_of(SHARD)
    forget_recent(world)
    damage(world, owner, SHARD)
    return world, stream, owner


def test_a_fetch_gets_all_of_it():
    world, stream, owner = damaged()
    assert fetch(world, owner, stream, SHARD) == VALUES
    world.run(1_000_000)
    assert repaired(world, owner) == len(VALUES)


def test_what_is_too_long_to_come_together_comes_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(repairs, "MAX_ASKED_BYTES", 1)
    world, stream, owner = damaged()
    assert fetch(world, owner, stream, SHARD) == VALUES


def test_all_that_is_found_when_a_file_is_read_through_is_repaired():
    world, _, owner = damaged(4)
    found: dict[int, list[Damage]] = {}
    for each in stored(world, owner, SHARD):
        file, offset = split(each.location)
        found.setdefault(file, []).append(Damage("", offset, each.length, "damaged"))
    for file, damages in found.items():
        member(world, owner).repairs.look(file, damages)
    world.run(2_000_000)
    assert repaired(world, owner) == len(VALUES)


def test_a_replica_that_does_not_answer_is_passed_over_for_all():
    world, stream, owner = damaged(6)
    place = world.map().shards[SHARD]
    world.pause(next(node for node in place.in_sync if node != owner), 30_000_000)
    assert fetch(world, owner, stream, SHARD) == VALUES


def test_all_of_it_is_in_a_copy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tail, "MAX_TAIL_RECORDS", 0)  # a new node gets a copy, not the log
    world, _, _ = damaged(8)
    world.join(4)
    world.run(20_000_000)
    assert SHARD in world.map().shards_of(4)
    places = [(each.location, each.length, each.base) for each in stored(world, 4, SHARD)]
    found = member(world, 4).engine.reader.wait(places)
    assert len(found) == len(VALUES)
    assert not [each for each in found if isinstance(each, PenstockError)]


# --- the side that is asked ----------------------------------------------------------------


def ask(world: World, owner: int) -> Member:
    """An owner asks a follower, at once, for all batches of the shard."""
    holder = next(node for node in world.map().shards[SHARD].in_sync if node != owner)
    held = member(world, holder)
    wanted = [
        Wanted(SHARD, meta.stream, meta.partition, each.stamped, each.span, each.arrived_us)
        for meta, each in held.engine.fabric.kernel.shards[SHARD].batches()
    ]
    questions = [memoryview(b"d" + pack_repair(each)) for each in wanted]
    held.receive(owner, questions, world.now_us)
    return held


def answers(holder: Member) -> list[bool]:
    """Of each answer, once all is read, whether the batch is in it."""
    engine = holder.engine
    while engine.jobs:
        job = engine.jobs.popleft()
        job.run()
        engine.end_job(job)
    parts = [b"".join(parts) for _, parts in holder.peers]
    messages = [unpack_repair(data[1:]) for data in parts if data[:1] == b"d"]
    return [bool(each.payload) for each in messages if isinstance(each, Held)]


def test_what_is_asked_for_together_is_read_in_turn():
    world, _, owner = damaged()
    holder = ask(world, owner)
    assert len(holder.engine.jobs) == lending.MAX_READS
    assert answers(holder) == [True] * len(VALUES)
    assert not holder.engine.reading


def test_what_is_asked_for_beyond_the_limit_is_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lending, "MAX_QUESTIONS", 20)
    world, _, owner = damaged()
    found = answers(ask(world, owner))
    assert sorted(found) == [False] * (len(VALUES) - 36) + [True] * 36


def test_what_a_node_has_given_up_is_not_read():
    world, _, owner = damaged()
    holder = ask(world, owner)
    holder.engine.tick(world.now_us + lending.PATIENCE_US)
    assert answers(holder) == [True] * lending.MAX_READS


def test_what_a_node_without_a_link_has_asked_for_is_not_read():
    world, _, owner = damaged()
    holder = ask(world, owner)
    holder.unlinked(owner, world.now_us)
    assert answers(holder) == [True] * lending.MAX_READS
