"""Who votes when nodes drain and go: the cluster can always decide without them."""

from __future__ import annotations

import pytest
from tests.cluster.plane.test_plane import grown, state_of
from tests.cluster.plane.world import World

from penstock.cluster.commands import Define, Drain, Remove, Undrain
from penstock.cluster.consensus.membership import Membership


def membership_of(world: World, number: int) -> Membership:
    plane = world.hosts[number].plane
    assert plane is not None
    return plane.raft.membership


def leader_of(world: World) -> int:
    leader = world.leader()
    assert leader is not None
    return leader


def go(world: World, number: int, through: int) -> None:
    """Drains a node, removes it, and switches it off as soon as that is decided."""
    assert world.do(through, Drain(number)).accepted
    world.run(40_000_000)
    assert world.do(through, Remove(number)).accepted
    world.kill(number)


@pytest.mark.parametrize("seed", range(4))
def test_leaders_go_one_after_the_other_and_the_last_node_decides_alone(seed: int):
    world = grown(seed, 3)
    left = {1, 2, 3}
    while len(left) > 1:
        leader = leader_of(world)
        left.discard(leader)
        go(world, leader, through=leader if seed % 2 else min(left))
        world.run(5_000_000)
    (last,) = left
    assert world.do(last, Define("queue/default/q", b"x", 0)).accepted
    assert membership_of(world, last) == Membership((last,))


def test_who_drains_votes_no_more_but_follows():
    world = grown(4, 4)
    for number in list(membership_of(world, 1).voters)[:2]:
        assert world.do(4, Drain(number)).accepted
        world.run(10_000_000)
        assert number in membership_of(world, 4).learners
        assert state_of(world, number).version == state_of(world, 4).version


@pytest.mark.parametrize("seed", range(3))
def test_who_drains_may_restart_and_is_heard(seed: int):
    world = grown(seed, 3)
    leader = leader_of(world)
    drained = leader % 3 + 1
    assert world.do(leader, Drain(drained)).accepted
    world.run(5_000_000)
    world.kill(drained)
    world.run(3_000_000)
    assert state_of(world, leader).nodes[drained].status == "down"
    world.start(drained)
    world.run(5_000_000)
    assert state_of(world, leader).nodes[drained].status == "draining"
    assert state_of(world, drained).snapshot() == state_of(world, leader).snapshot()
    assert world.do(drained, Undrain(drained)).accepted
    world.run(10_000_000)
    assert set(membership_of(world, leader).voters) == {1, 2, 3}


def test_another_node_votes_in_place_of_one_that_drains():
    world = grown(6, 4)
    (learner,) = membership_of(world, 1).learners
    drained = leader_of(world)
    assert world.do(1, Drain(drained)).accepted
    world.run(10_000_000)
    members = membership_of(world, 1)
    assert set(members.voters) == {1, 2, 3, 4} - {drained}
    assert learner in members.voters
    assert members.learners == (drained,)


def test_five_voters_are_the_most_while_one_drains():
    world = grown(7, 6)
    drained = leader_of(world)
    assert world.do(1, Drain(drained)).accepted
    world.run(10_000_000)
    assert set(membership_of(world, 1).voters) == {1, 2, 3, 4, 5, 6} - {drained}


@pytest.mark.parametrize("alive", [True, False])
def test_a_voter_without_shards_loses_its_vote_before_it_is_removed(alive: bool):
    world = World(8, shards=1, replication=1)
    for number in (2, 3):
        world.join(number)
    world.run(20_000_000)
    owner = state_of(world).shards[0].owner
    world.kill(owner)  # so that another leads
    world.run(3_000_000)
    world.start(owner)
    world.run(5_000_000)
    gone = leader_of(world)
    assert gone != owner
    if not alive:
        world.kill(gone)
    assert world.do(owner, Remove(gone)).accepted
    assert gone not in membership_of(world, owner).voters
    world.kill(gone)
    world.run(5_000_000)
    assert world.do(owner, Define("queue/default/q", b"x", 0)).accepted


def test_a_voter_with_shards_is_refused_and_votes_on():
    world = grown(9, 3)
    outcome = world.do(1, Remove(2))
    assert outcome.refused == "unsafe"
    world.run(5_000_000)
    assert set(membership_of(world, 1).voters) == {1, 2, 3}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("leads", [False, True])
def test_a_voter_is_drained_removed_and_stopped_while_another_is_down(seed: int, leads: bool):
    world = grown(seed, 4)
    leader = leader_of(world)
    first, second, *_ = (each for each in membership_of(world, leader).voters if each != leader)
    down, drained, stays = (first, leader, second) if leads else (first, second, leader)
    world.kill(down)
    world.run(3_000_000)
    assert world.do(stays, Drain(drained)).accepted
    world.run(50_000_000)
    assert world.do(stays, Remove(drained)).accepted
    world.kill(drained)
    assert world.do(stays, Define("queue/default/q", b"x", 0)).accepted


def test_a_vote_without_which_the_others_could_not_decide_is_kept():
    world = grown(1, 3)
    leader = leader_of(world)
    down, drained = (each for each in membership_of(world, leader).voters if each != leader)
    world.kill(down)
    world.run(3_000_000)
    assert world.do(leader, Drain(drained)).accepted
    world.run(20_000_000)
    plane = world.hosts[leader].plane
    assert plane is not None
    plane.ask(Remove(drained), world.now_us)
    world.run(20_000_000)
    assert drained in membership_of(world, leader).voters
    assert world.do(leader, Define("queue/default/q", b"x", 0)).accepted
