"""Scenarios: what the planner makes of failures, restarts, nodes that come and nodes that go."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace
from tests.cluster.world import GRACE_US, LIMITS, SECOND_US, World, node

from penstock.cluster import commands as c
from penstock.cluster.explain import MAX_ROWS, explain
from penstock.cluster.planner import plan
from penstock.cluster.state import ClusterState
from penstock.cluster.view import Figures


def settled(nodes: int, shards: int = 12, replication: int = 3) -> World:
    world = World(shards, replication)
    world.join(nodes - 1)
    world.settle()
    assert world.unfairness() == []
    world.moves = world.handovers = 0
    return world


def rows(world: World) -> list[str]:
    world.figures.observe(world.state, world.now_us)
    found = explain(world.state, world.figures, world.now_us, world.limits)
    return [str(row) for row in found]


def test_nothing_is_planned_before_the_founding():
    assert plan(ClusterState(), Figures(), 0) == []
    assert explain(ClusterState(), Figures(), 0) == []


@pytest.mark.parametrize(
    ("replication", "moves"),
    [
        # 12 shards: what new nodes must get at least or old ones give, whichever is more.
        (1, {2: 6, 3: 4, 5: 4, 4: 2}),
        (2, {2: 12, 3: 8, 5: 9, 4: 4}),
        (3, {2: 12, 3: 12, 5: 14, 4: 7}),
    ],
)
def test_one_node_then_two_three_five_and_four(replication, moves):
    world = World(12, replication)
    counted = {}
    for size in (2, 3, 5):
        world.moves = 0
        world.join(size - len(world.state.nodes))
        world.settle()
        counted[size] = world.moves
        assert world.unfairness() == []
        assert sorted(world.replicas().values()) == even(12 * min(replication, size), size)
        assert sorted(world.owned().values()) == even(12, size)
    world.moves = 0
    leaver = max(world.replicas(), key=lambda number: -world.replicas()[number])
    world.accept(c.Drain(leaver))
    world.settle()
    counted[4] = world.moves
    world.accept(c.Leave(leaver))
    assert world.unfairness() == []
    assert counted == moves


def even(total: int, parts: int) -> list[int]:
    low, more = divmod(total, parts)
    return [low] * (parts - more) + [low + 1] * more


def test_a_failed_owner_is_replaced_at_once_by_who_owns_least():
    world = settled(4)
    world.fail(1)
    lost = [shard for shard, place in enumerate(world.state.shards) if place.owner == 1]
    planned = world.lead()
    assert [command.shard for command in planned if isinstance(command, c.Promote)] == lost
    assert len(planned) == len(lost) == 3
    assert sorted(world.owned().values()) == [4, 4, 4]
    assert world.moves == 0


def test_a_short_failure_moves_nothing_but_ownership():
    world = settled(3)
    for number in (1, 2, 3):  # a rolling restart
        world.fail(number)
        world.settle()
        world.wait(GRACE_US - SECOND_US)
        world.settle()
        world.restart(number)
        world.settle()
    assert world.moves == 0
    assert world.handovers <= 3 * 8
    assert world.unfairness() == []


@pytest.mark.parametrize(
    ("nodes", "had", "moves"),
    # Of five nodes the last of the lost replicas fits only where it makes one node's share too
    # large: no choice of seven targets is even, as trying all of them shows.
    [(4, 9, 9), (5, 7, 8), (6, 6, 6)],
)
def test_after_the_grace_time_replicas_are_replaced(nodes, had, moves):
    world = settled(nodes)
    assert world.replicas()[2] == had
    world.fail(2)
    world.settle()
    assert world.moves == 0
    world.wait(GRACE_US)
    world.settle()
    assert world.moves == moves
    assert world.replicas()[2] == 0
    assert world.unfairness() == []
    world.restart(2)
    world.settle()
    assert world.unfairness() == []
    assert world.moves == moves + had


def test_a_new_leader_waits_for_the_grace_time_of_its_own():
    world = settled(4)
    world.fail(2)
    world.wait(10 * GRACE_US)
    world.figures = Figures()
    world.settle()
    assert world.moves == 0


def test_without_a_replacement_the_replica_of_a_dead_node_is_kept():
    world = settled(3)
    world.fail(3)
    world.wait(2 * GRACE_US)
    world.settle()
    assert world.replicas()[3] == 12
    world.restart(3)
    world.settle()
    assert world.moves == 0


def test_a_dead_node_is_drained_so_that_it_can_be_removed():
    world = settled(3)
    world.fail(3)
    world.accept(c.Drain(3))
    world.settle()
    world.accept(c.Remove(3))
    assert world.replicas() == {1: 12, 2: 12}


def test_nobody_is_promoted_who_may_lack_messages():
    world = settled(3, shards=1)
    owner = world.state.shards[0].owner
    first, second = (number for number in (1, 2, 3) if number != owner)
    world.fail(first)
    world.feed()  # the owner goes on without it
    world.back(first)
    world.fail(second)
    world.fail(owner)
    assert set(world.state.shards[0].in_sync) == {owner, second}
    assert world.plan() == []


def test_without_anybody_in_sync_a_shard_waits_and_is_reported():
    world = settled(3, shards=2)
    for number in (1, 2):
        world.fail(number)
        world.settle()
    assert all(place.in_sync == (3,) for place in world.state.shards)
    world.fail(3)
    for number in (1, 2):
        world.back(number)
    world.wait(2 * GRACE_US)
    assert world.plan() == []
    found = rows(world)
    assert found[0].startswith("unavailable: shard 0: all in-sync replicas are down: node 3; node")
    assert "under-replicated: 2 shards: 2 in-sync replicas are wanted" in found
    assert "down: node 3: for 120 s, 2 shards left; being replaced" in found
    world.back(3)
    world.settle()
    assert world.unfairness() == []
    assert rows(world) == []


def test_draining_moves_everything_step_by_step():
    world = settled(4)
    world.accept(c.Drain(2))
    steps = 0
    while world.state.held[2]:
        world.lead()
        assert all(len(place.in_sync) >= 3 for place in world.state.shards)
        assert sum(place.joining != 0 for place in world.state.shards) <= LIMITS.moves
        world.feed()
        steps += 1
        assert steps < 50
    world.settle()
    world.accept(c.Leave(2))
    assert world.unfairness() == []
    assert world.moves == 9


def test_draining_can_be_taken_back():
    world = settled(4)
    world.accept(c.Drain(2))
    world.lead()
    world.feed()
    assert "draining: node 2: 9 shards left" in rows(world)
    world.accept(c.Undrain(2))
    world.settle()
    assert world.unfairness() == []


def test_a_join_to_a_node_that_fails_for_good_is_given_up():
    world = settled(3)
    world.join()
    world.lead()
    joined = [shard for shard, place in enumerate(world.state.shards) if place.joining == 4]
    assert joined
    assert rows(world)[0] == f"moving: shard {joined[0]}: to node 4, for 0 s"
    world.fail(4)
    world.settle()
    assert all(world.state.shards[shard].joining == 4 for shard in joined)
    world.wait(GRACE_US)
    world.settle()
    assert all(place.joining == 0 for place in world.state.shards)
    assert world.unfairness() == []


@pytest.mark.parametrize("replication", [1, 2])
def test_moves_are_bounded_in_the_cluster_and_for_each_node(replication):
    world = World(64, replication)
    world.limits = replace(LIMITS, moves=5, moves_per_node=2)
    world.join(7)
    for _ in range(20):
        world.lead()
        joins = [place for place in world.state.shards if place.joining]
        parts = Counter(number for place in joins for number in (place.owner, place.joining))
        assert 0 < len(joins) <= 5
        assert max(parts.values()) <= 2
        world.feed()


def test_a_plan_is_bounded():
    world = settled(3, shards=100)
    world.limits = replace(LIMITS, commands=7)
    world.fail(1)
    assert len(world.plan()) == 7
    world.settle()
    assert world.owned()[1] == 0


def test_replication_is_raised_and_lowered():
    world = settled(5, replication=2)
    world.accept(c.SetReplication(4))
    world.settle()
    assert world.unfairness() == []
    assert world.moves == 24
    world.accept(c.SetReplication(1))
    world.settle()
    assert world.unfairness() == []
    assert world.moves == 24


def test_heavier_nodes_get_more():
    world = World(60, replication=2)
    world.join(1, weight=1)
    world.join(1, weight=2)
    world.join(1, weight=2)
    world.settle()
    assert world.unfairness() == []
    assert world.replicas() == {1: 20, 2: 20, 3: 40, 4: 40}
    assert world.owned() == {1: 10, 2: 10, 3: 20, 4: 20}


def test_a_heavy_node_has_at_most_one_replica_of_each_shard():
    world = World(12, replication=2)
    world.accept(c.Join(node("heavy", weight=100)))
    world.join()
    world.settle()
    assert world.replicas() == {1: 6, 2: 12, 3: 6}
    assert world.unfairness() == []


def test_replicas_are_moved_on_by_way_of_others_if_need_be():
    """Node 5 has one too many and node 3 one too few, but all that 5 has is on 3 already."""
    places = [(3, 5)] * 9 + [(3, 2)] * 3 + [(3, 4)] * 3 + [(2, 4)]
    world = World.of({2: 1, 3: 4, 4: 1, 5: 2}, places)
    world.settle()
    assert world.unfairness() == []
    assert world.moves == 2


def test_ownership_is_passed_on_by_way_of_others_if_need_be():
    """Node 1 owns one too many and node 3 one too few, but they have no shard in common."""
    places = [(1, 2), (1, 2), (1, 4), (4, 1), (2, 3), (2, 3), (3, 4), (4, 3)]
    world = World.of(dict.fromkeys(range(1, 5), 1), places)
    world.settle()
    assert world.unfairness() == []
    assert (world.moves, world.handovers) == (0, 2)


def test_no_replica_is_dropped_before_enough_others_are_in_sync():
    world = settled(4, shards=1)
    place = world.state.shards[0]
    (spare,) = {1, 2, 3, 4} - set(place.replicas)
    world.accept(c.AddReplica(0, place.epoch, spare))
    world.feed()
    place = world.state.shards[0]
    behind = place.in_sync[2:]
    world.accept(c.ShrinkInSync(0, place.epoch, place.owner, behind, place.version))
    assert world.plan() == []
    world.feed()  # three are in sync, one is behind: it can go
    late = set(place.replicas) - set(world.state.shards[0].in_sync)
    assert world.plan() == [c.DropReplica(0, place.epoch, late.pop())]


def test_a_shard_changes_hands_once_in_a_plan():
    """Two nodes with room for the same shard: the second must not get it from the first."""
    world = World.of({1: 2, 2: 2, 3: 2, 4: 1}, [(4, 1, 3), (4, 2, 1), (2, 3, 4), (4, 1, 2)])
    shards = [getattr(command, "shard", None) for command in world.plan()]
    assert len(shards) == len(set(shards))
    world.settle()
    assert world.unfairness() == []


def test_owners_are_not_evened_out_while_a_node_is_expected_back():
    world = settled(4)
    for shard, place in enumerate(world.state.shards):
        if place.owner != 2 and 2 in place.in_sync:
            world.accept(c.Transfer(shard, place.epoch, 2))
    world.fail(1)
    world.settle()
    assert world.owned()[2] >= 8
    world.back(1)
    world.settle()
    assert world.unfairness() == []


def test_two_nodes_lost_out_of_a_crowd_are_both_replaced():
    world = settled(6, shards=1)
    shard = world.state.shards[0]
    target = next(number for number in range(1, 7) if number not in shard.replicas)
    world.accept(c.AddReplica(0, shard.epoch, target))
    world.feed()
    *_, second, third = world.state.shards[0].replicas
    world.accept(c.Drain(second))
    world.accept(c.Drain(third))
    world.settle()
    assert world.unfairness() == []


def test_long_lists_are_cut():
    world = settled(2, shards=150, replication=1)
    world.fail(1)
    world.fail(2)
    found = rows(world)
    assert len(found) == MAX_ROWS + 4
    assert found[MAX_ROWS] == "unavailable: 50 more: not listed"


def test_an_owner_that_is_down_is_reported_until_another_takes_over():
    world = settled(3, shards=3)
    world.fail(1)
    shard = next(n for n, place in enumerate(world.state.shards) if place.owner == 1)
    assert f"owner down: shard {shard}: another takes over from node 1" in rows(world)
