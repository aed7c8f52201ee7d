"""Replicas of one node, step by step: what it owns, loses, gets back and is told."""

from __future__ import annotations

import pytest
from tests.cluster.members.world import SHARDS, World

from penstock.cluster.map import ClusterMap, NodeInfo, ShardPlace
from penstock.cluster.plane import plane
from penstock.cluster.replication.messages import (
    Accepted,
    Confirm,
    Confirmed,
    Message,
    Position,
    Probe,
    Stale,
)
from penstock.cluster.replication.owner import Link
from penstock.core.fabric import Fabric
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.shard import CONTROL
from penstock.engine.replicas import Replicas
from penstock.errors import PenstockError
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

NODES = tuple(NodeInfo(n, f"n{n}", "h", 1, "up", 1) for n in (1, 2))


class Node:
    """Node 1, with a journal that does what the test says; node 2 is the other replica."""

    def __init__(self) -> None:
        self.fabric = Fabric(2, 0)
        self.journal: list[Entry] = []
        for shard in self.fabric.kernel.shards:
            self.fabric.end_shard(shard)
        self.replicas = Replicas(1, self.fabric, self.journal.append, lambda: True)
        self.version = 0

    def placed(self, *epochs: int, owner: int = 1, in_sync: tuple[int, ...] = (1, 2)) -> None:
        """The map says that a node owns all shards, in these epochs."""
        self.version += 1
        replicas = (owner, 3 - owner)
        places = tuple(ShardPlace(e, replicas, in_sync, 0, self.version) for e in epochs)
        self.replicas.placed(ClusterMap(9, self.version, NODES, places, 2), 0)

    def said(self) -> list[Message]:
        messages, self.replicas.out.messages = self.replicas.out.messages, []
        return [message for _, message in messages]

    def log(self, shard: int) -> Entry:
        """A push, as the core logs it."""
        state = self.fabric.kernel.shards[shard]
        meta = pack_push(PushMeta(99, 0, 0, 1, 5, state.last, 0))
        entry = self.fabric.kernel.log(state, Kind.PUSH, meta, Durability.REPLICATED)
        self.fabric.take_effects()
        state.invisible.add(entry.number)
        self.replicas.appended(entry, 0)
        return entry

    def serve_alone(self) -> None:
        self.placed(1, 1, in_sync=(1,))
        self.replicas.take_committed()


def barrier(failures: list[PenstockError]) -> Entry:
    level = Durability.REPLICATED
    return Entry(CONTROL, Kind.BARRIER, 0, 0, b"", None, level, failed=failures.append)


def test_a_barrier_that_two_shards_give_up_is_over_once_and_leaves_nothing():
    node = Node()
    node.serve_alone()
    node.placed(1, 1)  # node 2 has caught up: it has to confirm from now on
    failures: list[PenstockError] = []
    node.replicas.appended(barrier(failures), 0)
    node.placed(2, 2, owner=2)
    assert len(failures) == 1
    node.replicas.take_committed()
    # An entry that is made now may lie where the barrier lay.
    assert not node.replicas._ready
    assert not node.replicas._needs


def test_what_was_logged_before_a_shard_is_owned_anew_is_folded():
    node = Node()
    node.serve_alone()
    entry = node.log(0)
    node.placed(2, 1, in_sync=(1,))
    shard = node.fabric.kernel.shards[0]
    assert not shard.owned, "what it has is not on its disk"
    node.replicas.finished([entry], 0)
    node.replicas.take_committed()
    assert not shard.invisible
    assert shard.owned


def test_a_node_that_lost_a_shard_does_not_claim_to_have_synced_what_it_has_not():
    node = Node()
    node.serve_alone()
    entry = node.log(0)
    node.placed(2, 2, owner=2)
    node.said()
    node.replicas.receive(2, Probe(0, 2, 1), 0)
    assert Accepted(0, 2, 1, 1, 0) in node.said()
    node.replicas.finished([entry], 0)
    assert Accepted(0, 2, 1, 1, 1) in node.said()


def test_nobody_is_answered_before_the_map_knows_of_this_start():
    node = Node()
    node.replicas.receive(2, Probe(0, 1, 1), 0)
    node.replicas.receive(2, Confirm(0, 1, 1), 0)
    assert node.said() == []
    node.placed(1, 1, owner=2)
    assert node.said() == [Position(0, 1, 1, 0, 0), Accepted(0, 1, 1, 0, 0), Confirmed(0, 1, 1)]
    node.replicas.receive(2, Probe(0, 1, 2), 0)
    assert len(node.said()) == 2
    node.placed(1, 1, owner=2)
    assert node.said() == [], "it was answered"


def test_of_what_was_asked_before_the_map_the_last_is_answered():
    node = Node()
    for number in range(1, 1000):
        node.replicas.receive(2, Probe(0, 1, number), 0)
        node.replicas.receive(2, Probe(1, 1, number), 0)
        node.replicas.receive(2, Confirm(1, 1, number), 0)
    assert len(node.replicas._early) == 3
    node.placed(1, 1, owner=2)
    assert [m for m in node.said() if not isinstance(m, Accepted)] == [
        Position(0, 1, 999, 0, 0), Position(1, 1, 999, 0, 0), Confirmed(1, 1, 999)
    ]  # fmt: skip


def test_an_owner_of_before_the_map_that_knows_better_is_told_so():
    node = Node()
    node.replicas.receive(2, Probe(0, 1, 1), 0)
    node.replicas.receive(2, Probe(1, 5, 1), 0)
    node.placed(3, 3)
    assert Stale(0, 3) in node.said(), "that owner's time is over"
    node.replicas.take_committed()
    assert not node.fabric.kernel.shards[1].owned, "this node's is"


def test_what_was_asked_over_a_link_that_is_gone_gets_no_answer():
    node = Node()
    node.replicas.linked(2, 0)
    node.replicas.receive(2, Probe(0, 1, 1), 0)
    node.replicas.unlinked(2, 0)
    node.placed(1, 1, owner=2)
    assert node.said() == []


def test_a_shard_is_served_when_the_set_has_its_log():
    node = Node()
    node.replicas.linked(2, 0)
    node.placed(1, 1)
    shard = node.fabric.kernel.shards[0]
    assert not shard.owned
    node.replicas.receive(2, Position(0, 1, 1, 0, 0), 0)
    node.replicas.receive(2, Accepted(0, 1, 1, 0, 0), 0)
    node.replicas.receive(2, Confirmed(0, 1, 1), 0)
    assert shard.owned


def test_an_owner_that_heard_of_a_later_epoch_does_not_rise_by_an_old_map():
    node = Node()
    node.serve_alone()
    node.replicas.receive(2, Probe(0, 5, 1), 0)
    node.placed(1, 1, in_sync=(1,))
    assert not node.fabric.kernel.shards[0].owned
    node.placed(6, 1, in_sync=(1,))
    assert node.fabric.kernel.shards[0].owned


def test_owners_without_an_answer_do_not_fill_the_control_plane(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plane, "MAX_ASKED", 24)
    world = World(1)
    world.part((1, 2), (1, 3), (2, 3))
    world.run(30_000_000)
    member = world.hosts[1].member
    assert member is not None
    assert len(member.plane._asked) < 24


def wait_until_streamed_to(world: World, node: int, limit_us: int) -> None:
    """All owners send a node what they log, after so long at most."""
    end_us = world.now_us + limit_us
    while True:
        world.run(1_000)
        members = [host.member for n, host in world.hosts.items() if n != node and host.member]
        owned = [each for member in members for each in member.replicas._owned.values()]
        links = [each.followers[node].link for each in owned if node in each.followers]
        if len(links) == SHARDS and set(links) == {Link.STREAMED}:
            return
        assert world.now_us < end_us, f"{links} after {limit_us} us"


@pytest.mark.parametrize("seed", range(3))
def test_a_restarted_node_follows_as_soon_as_the_cluster_knows_of_it(seed: int):
    world = World(seed)
    world.kill(3)
    world.run(3_000_000)
    world.start(3)
    wait_until_streamed_to(world, 3, 100_000)
