"""The agreed state, command by command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.world import World, node

from penstock.cluster import commands as c
from penstock.cluster import definitions, members
from penstock.cluster.check import check
from penstock.cluster.map import ShardPlace, Speaks, Stated
from penstock.cluster.state import ClusterState
from penstock.errors import ProtocolError


def three(shards: int = 1) -> World:
    """Nodes 1, 2 and 3; every shard on all of them, in sync, owned by 1 in epoch 1."""
    world = World(shards, replication=3)
    world.join(2)
    for shard in range(shards):
        for number in (2, 3):
            world.accept(c.AddReplica(shard, 1, number))
            version = world.state.shards[shard].version
            world.accept(c.GrowInSync(shard, 1, 1, number, version))
    return world


def place(world: World, shard: int = 0) -> ShardPlace:
    return world.state.shards[shard]


def status(world: World, number: int) -> str:
    return world.state.nodes[number].status


def refused(world: World, command: c.Command) -> str:
    before = world.state.snapshot()
    outcome = world.do(command)
    assert outcome.reason
    assert world.state.snapshot() == before
    return outcome.refused


def test_nothing_comes_before_the_founding():
    state = ClusterState()
    assert state.apply(c.Join(node("a"))).refused == "unsafe"
    assert state.apply(c.Found(7, 4, 3, node("a"))) == c.Outcome(1, value=1)
    assert state.apply(c.Found(7, 4, 3, node("a"))).refused == "exists"
    assert state.map().shards == (ShardPlace(1, (1,), (1,), 0, 1),) * 4


def test_a_node_joins_once_however_often_it_asks():
    world = World()
    assert world.join() == [2]
    version = world.state.version
    assert world.accept(c.Join(node("n2"))) == 2
    assert world.state.version == version
    assert refused(world, c.Join(node("n2", weight=3))) == "exists"
    assert refused(world, c.Join(node("x", number=2))) == "exists"
    assert world.accept(c.Join(node("x", number=9))) == 9
    assert world.accept(c.Join(node("y"))) == 10


def test_a_cluster_has_only_so_many_nodes(monkeypatch):
    monkeypatch.setattr(members, "MAX_NODES", 2)
    world = World()
    world.join()
    assert refused(world, c.Join(node("n3"))) == "limit"
    assert refused(world, c.Join(node("é" * 200))) == "limit"


def test_an_id_is_never_used_again():
    world = World()
    world.join()
    world.accept(c.Leave(2))
    assert refused(world, c.Up(2, 1)) == "unsafe"
    assert world.accept(c.Join(node("n2"))) == 3
    world.accept(c.Remove(2))
    world.accept(c.Remove(3))
    assert refused(world, c.Remove(3)) == "unknown"
    assert world.accept(c.Join(node("n2"))) == 4


def test_a_node_with_replicas_does_not_go():
    world = World(shards=2)
    world.join()
    assert refused(world, c.Leave(1)) == "unsafe"
    world.accept(c.AddReplica(0, 1, 2))
    assert refused(world, c.Remove(2)) == "unsafe"
    world.accept(c.DropReplica(0, 1, 2))
    world.accept(c.Remove(2))


def test_only_the_watched_incarnation_goes_down():
    world = World()
    world.join()
    assert refused(world, c.Down(2, 0)) == "stale"
    world.fail(2)
    assert status(world, 2) == "down"
    assert refused(world, c.Up(2, 7)) == "stale"
    world.restart(2)
    assert status(world, 2) == "up"
    assert refused(world, c.Down(2, 1)) == "stale"
    assert refused(world, c.Rejoin(2, "h", 1, 1)) == "stale"
    assert refused(world, c.Rejoin(2, "elsewhere", 1, 2)) == "stale"
    world.accept(c.Rejoin(2, "elsewhere", 1, 3))
    assert world.state.nodes[2].host == "elsewhere"


def test_draining_outlives_a_failure():
    world = World()
    world.join()
    world.accept(c.Drain(2))
    world.fail(2)
    world.back(2)
    assert status(world, 2) == "draining"
    assert refused(world, c.AddReplica(0, 1, 2)) == "unsafe"
    world.fail(2)
    world.accept(c.Undrain(2))
    world.restart(2)
    assert status(world, 2) == "up"


def test_an_owner_that_starts_again_owns_in_a_new_epoch():
    world = three(2)
    world.accept(c.Transfer(1, 1, 2))
    world.restart(1)
    assert (place(world).epoch, place(world).owner) == (2, 1)
    assert (place(world, 1).epoch, place(world, 1).owner) == (2, 2)
    again = c.Rejoin(1, "n1.example", 7000, 2)
    world.accept(again)
    assert place(world).epoch == 2
    world.fail(1)
    world.accept(again)
    assert (place(world).epoch, status(world, 1)) == (2, "up")


def test_only_the_owner_changes_the_in_sync_set():
    world = three()
    version = place(world).version
    assert refused(world, c.ShrinkInSync(0, 1, 2, (3,), version)) == "stale"
    assert refused(world, c.ShrinkInSync(0, 0, 1, (3,), version)) == "stale"
    assert refused(world, c.ShrinkInSync(0, 1, 1, (3,), version - 1)) == "stale"
    assert refused(world, c.ShrinkInSync(0, 1, 1, (1, 3), version)) == "unsafe"
    assert refused(world, c.ShrinkInSync(0, 1, 1, (4,), version)) == "unknown"
    assert refused(world, c.ShrinkInSync(1, 1, 1, (3,), version)) == "unknown"
    assert refused(world, c.GrowInSync(0, 1, 1, 3, version)) == "exists"
    shrunk = world.accept(c.ShrinkInSync(0, 1, 1, (2, 3), version))
    assert place(world).in_sync == (1,)
    assert shrunk == place(world).version
    world.fail(3)
    assert refused(world, c.GrowInSync(0, 1, 1, 3, shrunk)) == "unsafe"
    world.join()
    assert refused(world, c.GrowInSync(0, 1, 1, 4, shrunk)) == "unknown"


def raised(world: World) -> World:
    """All nodes speak level 2."""
    speaks = Speaks(1, 2)
    nodes = world.state.nodes.values()
    world.accept(c.Raise(2, tuple(Stated(node.id, node.incarnation, speaks) for node in nodes)))
    return world


def test_a_replica_that_is_down_is_turned_down_for_good():
    world = raised(three())
    shrunk = world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    world.fail(3)
    grow = c.GrowInSync(0, 1, 1, 3, shrunk)
    world.accept(grow)
    assert (place(world).in_sync, place(world).version > shrunk) == ((1, 2), True)
    world.back(3)
    assert refused(world, grow) == "stale"  # the owner has gone on without it meanwhile
    world.accept(c.GrowInSync(0, 1, 1, 3, place(world).version))
    assert place(world).in_sync == (1, 2, 3)


def test_a_node_withdraws_from_shards_that_it_has_lost():
    world = raised(three(3))
    world.accept(c.Transfer(1, 1, 2))
    assert world.accept(c.Withdraw(1, 1, (0, 1))) == 2
    assert (place(world).owner, place(world).in_sync, place(world).epoch) == (2, (2, 3), 2)
    assert (place(world, 1).owner, place(world, 1).in_sync) == (2, (2, 3))
    assert place(world, 1).epoch == 2
    assert 1 in place(world).replicas
    assert place(world, 2).in_sync == (1, 2, 3)
    version = world.state.version
    assert world.accept(c.Withdraw(1, 1, (0, 1))) == 0
    assert world.state.version == version
    assert refused(world, c.Withdraw(1, 2, (0,))) == "stale"
    assert refused(world, c.Withdraw(1, 1, (3,))) == "unknown"


def test_nobody_withdraws_who_is_the_last_and_an_heir_that_is_down_is_waited_for():
    world = raised(three())
    world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    world.fail(2)
    world.accept(c.Withdraw(1, 1, (0,)))
    assert (place(world).owner, place(world).in_sync) == (2, (2,))
    assert world.accept(c.Withdraw(2, 1, (0,))) == 0
    assert world.plan() == []
    world.back(2)
    assert place(world).owner == 2


def test_a_late_copy_of_a_command_undoes_nothing():
    world = three()
    world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    grow = c.GrowInSync(0, 1, 1, 3, place(world).version)
    world.accept(grow)
    world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    assert refused(world, grow) == "stale"
    assert refused(world, c.Promote(0, 1, 3)) == "unsafe"


def test_only_who_is_in_sync_and_there_is_promoted():
    world = three()
    world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    world.fail(1)
    assert refused(world, c.Promote(0, 1, 3)) == "unsafe"
    assert refused(world, c.Promote(0, 1, 1)) == "unsafe"
    assert refused(world, c.Promote(0, 0, 2)) == "stale"
    assert refused(world, c.Transfer(0, 1, 2)) == "unsafe"
    world.accept(c.Promote(0, 1, 2))
    assert place(world).epoch == 2
    assert place(world).replicas == (2, 1, 3)
    assert place(world).in_sync == (2, 1)
    assert refused(world, c.Promote(0, 1, 2)) == "stale"


def test_a_planned_hand_over():
    world = three()
    assert refused(world, c.Transfer(0, 1, 1)) == "exists"
    assert refused(world, c.Transfer(0, 1, 9)) == "unsafe"
    world.accept(c.Transfer(0, 1, 3))
    assert (place(world).owner, place(world).epoch) == (3, 2)


def test_one_node_at_a_time_joins_a_shard():
    world = three()
    world.join(2)
    assert refused(world, c.AddReplica(0, 1, 2)) == "exists"
    world.accept(c.AddReplica(0, 1, 4))
    assert place(world).joining == 4
    assert refused(world, c.AddReplica(0, 1, 5)) == "limit"
    world.accept(c.Transfer(0, 1, 2))
    assert place(world).joining == 4
    world.accept(c.GrowInSync(0, 2, 2, 4, place(world).version))
    assert place(world).replicas == (2, 1, 3, 4)
    assert refused(world, c.AddReplica(0, 2, 5)) == "limit"


def test_neither_the_owner_nor_the_last_in_sync_is_dropped():
    world = three()
    assert refused(world, c.DropReplica(0, 1, 1)) == "unsafe"
    assert refused(world, c.DropReplica(0, 1, 9)) == "unknown"
    world.accept(c.DropReplica(0, 1, 2))
    world.accept(c.DropReplica(0, 1, 3))
    assert refused(world, c.DropReplica(0, 1, 1)) == "unsafe"


def test_those_who_define_at_once_agree():
    world = World()
    first = world.accept(c.Define("queue/jobs", b"a", 0))
    assert refused(world, c.Define("queue/jobs", b"b", 0)) == "exists"
    second = world.accept(c.Define("queue/jobs", b"b", first))
    assert second > first
    assert refused(world, c.Define("queue/jobs", b"c", first)) == "stale"
    assert refused(world, c.Undefine("queue/jobs", first)) == "stale"
    world.accept(c.Undefine("queue/jobs", second))
    assert refused(world, c.Undefine("queue/jobs", 0)) == "unknown"
    assert refused(world, c.Define("queue/jobs", b"d", second)) == "stale"
    assert world.accept(c.Define("queue/jobs", b"d", 0)) > second


def test_definitions_are_bounded(monkeypatch):
    monkeypatch.setattr(definitions, "MAX_DEFINITIONS", 2)
    monkeypatch.setattr(definitions, "MAX_DEFINITION_TOTAL", 100)
    world = World()
    first = world.accept(c.Define("a", bytes(90), 0))
    assert refused(world, c.Define("b", bytes(10), 0)) == "limit"
    world.accept(c.Define("a", bytes(50), first))
    world.accept(c.Define("b", bytes(10), 0))
    assert refused(world, c.Define("c", b"", 0)) == "limit"


def test_versions_do_not_run_over(monkeypatch):
    monkeypatch.setattr("penstock.cluster.tables.MAX_NUMBER", 2)
    world = World()
    world.join()
    assert refused(world, c.Drain(2)) == "limit"


def test_a_snapshot_is_the_state():
    world = three(4)
    world.accept(c.Define("b", b"2", 0))
    world.accept(c.Define("a", b"1", 0))
    world.join()
    world.accept(c.AddReplica(2, 1, 4))
    world.accept(c.Drain(2))
    world.fail(2)
    found = ClusterState.restore(world.state.snapshot())
    assert found.snapshot() == world.state.snapshot()
    assert vars(found) | {"_map": None} == vars(world.state) | {"_map": None}
    for command in (c.Join(node("z")), c.Up(2, 1), c.Leave(4), c.Define("a", b"", 13)):
        assert found.apply(command) == world.do(command)


@given(st.integers(0, 500), st.integers(0, 255), st.binary(max_size=100))
def test_no_bytes_break_the_reading_of_a_snapshot(at, byte, junk):
    body = bytearray(three(2).state.snapshot())
    body[at % len(body)] = byte
    for hostile in (bytes(body), junk):
        try:
            found = ClusterState.restore(hostile)
        except ProtocolError:
            continue
        assert check(found) == []


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reading_of_a_command(junk):
    good = c.pack_command(c.Promote(3, 4, 5))
    assert c.read_command(good) == c.Promote(3, 4, 5)
    for hostile in (junk, good[:-1], good + junk + b"x", b"\x91" * 5000):
        with pytest.raises(ProtocolError):
            c.read_command(hostile)


@pytest.mark.parametrize(
    "command",
    [
        c.Found(7, 65_537, 3, node("a")),
        c.Found(7, 0, 3, node("a")),
        c.SetReplication(8),
        c.Down(0, 1),
        c.Promote(-1, 1, 1),
        c.ShrinkInSync(0, 1, 1, (), 1),
        c.Define("", b"", 0),
        c.Define("a", bytes(300_000), 0),
        c.Join(node("a", weight=1001)),
    ],
)
def test_a_command_beyond_the_limits_is_not_read(command):
    with pytest.raises(ProtocolError):
        c.read_command(c.pack_command(command))


def test_the_check_finds_what_is_wrong():
    world = three(2)
    state, before = world.state, world.state.map()
    good = state.shards[0]
    for wrong in (
        ShardPlace(0, good.replicas, good.in_sync, 0, 99),
        ShardPlace(1, (2, 1, 3), good.in_sync, 0, 99),
        ShardPlace(2, (2, 1, 3), (1, 3), 0, state.version),
        ShardPlace(2, (1, 1, 3), (1, 3), 0, state.version),
        ShardPlace(2, good.replicas, good.in_sync, 3, state.version),
        ShardPlace(2, good.replicas, good.in_sync, 0, 0),
    ):
        state.shards[0] = wrong
        assert len(check(state, before)) >= 1
    state.shards[0] = good
    assert check(state, before) == check(state) == []
    state.held[2] += 1
    assert check(state) == ["the count of shards held is wrong"]


def test_the_check_finds_an_owner_that_was_not_in_sync():
    world = three()
    world.accept(c.ShrinkInSync(0, 1, 1, (3,), place(world).version))
    before = world.state.map()
    world.state.version += 1
    world.state.shards[0] = ShardPlace(2, (3, 1, 2), (3, 1), 0, world.state.version)
    assert check(world.state, before) == ["shard 0: node 3 was promoted and was not in sync"]
