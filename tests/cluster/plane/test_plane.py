"""Found, grow, fail, heal, drain: the control plane on a virtual network."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.cluster.plane.world import World

from penstock.cluster.commands import Command, Define, Drain, Outcome
from penstock.cluster.plane import leading
from penstock.cluster.plane.messages import Ask, Proposal, pack
from penstock.cluster.planner import plan
from penstock.cluster.state import ClusterState
from penstock.errors import ProtocolError


def state_of(world: World, number: int = 1) -> ClusterState:
    plane = world.hosts[number].plane
    assert plane is not None
    return plane.state


def grown(seed: int, nodes: int) -> World:
    world = World(seed)
    for number in range(2, nodes + 1):
        world.join(number)
    world.run(20_000_000)
    return world


def assert_even(state: ClusterState, nodes: set[int], copies: int) -> None:
    owned = Counter(place.owner for place in state.shards)
    held = Counter(node for place in state.shards for node in place.replicas)
    assert set(owned) == nodes
    assert max(owned.values()) - min(owned.values()) <= 1
    assert max(held.values()) - min(held.values()) <= 1
    assert all(len(place.replicas) == copies for place in state.shards)
    assert all(len(place.in_sync) >= min(2, copies) for place in state.shards)


def test_a_cluster_grows_from_one_node_and_is_even():
    world = grown(1, 3)
    assert_even(state_of(world), {1, 2, 3}, 3)
    plane = world.hosts[1].plane
    assert plane is not None
    assert set(plane.raft.membership.voters) == {1, 2, 3}
    assert len({state_of(world, number).snapshot() for number in (1, 2, 3)}) == 1


def test_six_nodes_have_five_voters_and_all_follow():
    world = grown(2, 6)
    assert_even(state_of(world, 6), {1, 2, 3, 4, 5, 6}, 3)
    plane = world.hosts[6].plane
    assert plane is not None
    assert len(plane.raft.membership.voters) == 5


def test_a_cluster_at_rest_is_not_planned_again_and_again(monkeypatch: pytest.MonkeyPatch):
    plans: list[int] = []

    def counted(state: ClusterState, *rest: Any) -> list[Command]:
        plans.append(state.version)
        return plan(state, *rest)

    monkeypatch.setattr(leading, "plan", counted)
    world = grown(1, 3)
    plans.clear()
    world.run(10_000_000)
    assert plans == []
    world.ask(1, Drain(3))
    world.run(20_000_000)
    assert plans
    assert 3 not in {place.owner for place in state_of(world).shards}


@pytest.mark.parametrize("seed", range(6))
def test_a_dead_node_loses_its_shards_within_three_seconds(seed: int):
    world = grown(seed, 3)
    victim = world.leader() if seed % 2 else 2
    assert victim is not None
    world.kill(victim)
    world.run(3_000_000)
    other = next(number for number in (1, 2, 3) if number != victim)
    assert all(place.owner != victim for place in state_of(world, other).shards)
    world.start(victim)
    world.run(20_000_000)
    assert_even(state_of(world, victim), {1, 2, 3}, 3)


def test_the_smaller_side_of_a_partition_decides_nothing():
    world = grown(3, 3)
    alone = world.leader()
    assert alone is not None
    before = state_of(world, alone).version
    world.parted = {frozenset((alone, other)) for other in (1, 2, 3) if other != alone}
    world.ask(alone, Define("queue/default/q", b"x", 0))
    world.run(10_000_000)
    assert state_of(world, alone).version == before
    other = next(number for number in (1, 2, 3) if number != alone)
    assert all(place.owner != alone for place in state_of(world, other).shards)
    world.parted = set()
    world.run(20_000_000)
    assert_even(state_of(world, alone), {1, 2, 3}, 3)
    assert "queue/default/q" in state_of(world, other).definitions


def test_a_drained_node_holds_nothing_and_the_rest_is_even():
    world = grown(4, 4)
    assert world.do(1, Drain(2)).accepted
    world.run(40_000_000)
    state = state_of(world)
    assert all(2 not in place.replicas for place in state.shards)
    assert_even(state, {1, 3, 4}, 3)


@pytest.mark.parametrize("seed", range(8))
def test_it_recovers_from_whatever_happens(seed: int):
    world = grown(seed, 3)
    for _ in range(25):
        chance = world.random.random()
        number = world.random.choice([1, 2, 3])
        if chance < 0.3:
            world.kill(number)
        elif chance < 0.6 and world.hosts[number].plane is None:
            world.start(number)
        elif chance < 0.8:
            one, two = world.random.sample([1, 2, 3], 2)
            world.parted ^= {frozenset((one, two))}
        else:
            world.loss = world.random.choice([0.0, 0.05, 0.2])
        world.run(world.random.randint(100_000, 3_000_000))
    world.parted, world.loss = set(), 0.0
    for number, host in world.hosts.items():
        if host.plane is None:
            world.start(number)
    world.run(60_000_000)
    assert_even(state_of(world), {1, 2, 3}, 3)
    assert len({state_of(world, number).snapshot() for number in (1, 2, 3)}) == 1


def known_leader(world: World, number: int) -> int | None:
    plane = world.hosts[number].plane
    return None if plane is None else plane.raft.leader


def wait_for_leader(world: World, number: int, but: int | None = None) -> None:
    while known_leader(world, number) in (None, but):
        world.run(1_000)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("early", [True, False])
def test_what_is_asked_during_a_failover_is_decided_when_the_new_leader_is_known(
    seed: int, early: bool
):
    world = grown(seed, 3)
    dead = world.leader()
    assert dead is not None
    number = next(number for number in (1, 2, 3) if number != dead)
    world.kill(dead)
    world.run(200_000)
    while not early and known_leader(world, number) is not None:
        world.run(1_000)
    token = world.ask(number, Define("queue/default/q", b"x", 0))  # of the dead one, or of nobody
    wait_for_leader(world, number, dead)
    world.run(30_000)  # to the leader, to the other one's disk and back
    assert world.hosts[number].outcomes[token].accepted


def test_a_node_that_comes_back_is_taken_in_when_it_hears_of_the_leader():
    world = grown(1, 3)
    number = next(number for number in (2, 3) if number != world.leader())
    world.kill(number)
    world.run(3_000_000)
    world.start(number)
    assert known_leader(world, number) is None, "it asked nobody to come back"
    wait_for_leader(world, number)
    world.run(30_000)
    assert state_of(world, number).nodes[number].incarnation == 2


def test_a_command_that_was_decided_meanwhile_is_asked_again_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
):
    world = grown(1, 3)
    leader = world.leader()
    assert leader is not None
    number = next(number for number in (1, 2, 3) if number != leader)
    outcomes: list[Outcome] = []
    apply = ClusterState.apply

    def noted(state: ClusterState, command: Command) -> Outcome:
        outcome = apply(state, command)
        if isinstance(command, Define) and state is state_of(world, number):
            outcomes.append(outcome)
        return outcome

    monkeypatch.setattr(ClusterState, "apply", noted)
    token = world.ask(number, Define("queue/default/q", b"x", 0))
    world.run(3_001)  # the leader has it, and this node no outcome
    world.parted = {frozenset((leader, number))}
    world.run(5_000_000)
    assert known_leader(world, number) is None
    assert not outcomes
    world.parted = set()
    world.run(5_000_000)
    assert [outcome.refused for outcome in outcomes] == ["", "exists"]
    assert world.hosts[number].outcomes[token] == outcomes[0]
    assert len({state_of(world, each).snapshot() for each in (1, 2, 3)}) == 1


def test_a_proposal_that_no_node_could_read_is_refused():
    world = grown(1, 3)
    leader = world.leader()
    assert leader is not None
    plane = world.hosts[leader].plane
    assert plane is not None
    unreadable = pack(Proposal(2, 1, 1, b"\xc1"))
    for proposal in (b"\xc1", unreadable):
        with pytest.raises(ProtocolError):
            plane.receive(2, pack(Ask(proposal)), world.now_us)
    world.run(2_000_000)
    assert world.do(1, Define("queue/default/q", b"x", 0)).accepted
