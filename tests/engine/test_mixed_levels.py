"""Nodes that speak different levels in one cluster, as they are restarted one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.members import world as members
from tests.cluster.members.client import Client

from penstock.cluster.map import Speaks, Stated
from penstock.engine.member import Member

OLD, NEW = Speaks(1, 1, "0.1"), Speaks(1, 2, "0.2")


class MixedWorld(members.World):
    """Nodes say over their links what they speak: the first level, until they are upgraded."""

    upgraded: set[int]

    def speaks(self, number: int) -> Speaks:
        return NEW if number in self.upgraded else OLD

    def link(self, one: int, two: int) -> None:
        before = frozenset((one, two)) in self.links
        super().link(one, two)
        if not before and frozenset((one, two)) in self.links:
            for here, there in ((one, two), (two, one)):
                host = self.hosts[there]
                stated = Stated(there, host.incarnation, self.speaks(there))
                self.member(here).plane.stated[there] = stated

    def member(self, number: int) -> Member:
        found = self.hosts[number].member
        assert found is not None
        return found

    def levels(self) -> set[int]:
        return {host.member.level for host in self.hosts.values() if host.member is not None}


def mixed_world(monkeypatch: pytest.MonkeyPatch) -> MixedWorld:
    """A world in which all nodes speak the first level."""
    MixedWorld.upgraded = set()

    make_member: Any = Member  # with whatever the world gives it

    def make(engine: Any, number: int, *rest: Any) -> Any:
        speaks = NEW if number in MixedWorld.upgraded else OLD
        return make_member(engine, number, *rest, speaks=speaks)

    monkeypatch.setattr(members, "Member", make)
    return MixedWorld(1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> MixedWorld:
    return mixed_world(monkeypatch)


def test_a_rolling_upgrade_under_work(world: MixedWorld):
    history = Client(world, world.queue("q"))
    for number in (2, 3, 1):
        history.work(30)
        assert world.levels() == {1}
        assert not any(world.member(n).plane.state.speaks for n in world.hosts)
        world.kill(number)
        world.upgraded.add(number)
        history.work(10)
        world.start(number)
        world.run(8_000_000)
    assert world.levels() == {2}
    history.work(30)
    history.drain()
    assert history.check() == []
    assert world.member(1).plane.state.speaks == {1: NEW, 2: NEW, 3: NEW}


def test_an_upgraded_node_that_is_down_does_not_hold_it_up_and_an_old_one_does(world: MixedWorld):
    for number in (2, 3):
        world.kill(number)
        world.upgraded.add(number)
        world.start(number)
        world.run(8_000_000)
    world.kill(1)
    world.run(8_000_000)
    assert world.levels() == {1}
    world.upgraded.add(1)
    world.start(1)
    world.run(8_000_000)
    assert world.levels() == {2}


def test_a_node_that_goes_back_to_an_old_release_is_not_taken_back(world: MixedWorld):
    for number in (2, 3, 1):
        world.kill(number)
        world.upgraded.add(number)
        world.start(number)
        world.run(8_000_000)
    assert world.levels() == {2}
    world.kill(3)
    world.upgraded.discard(3)
    world.start(3)
    world.run(8_000_000)
    assert not world.member(3).present
    world.kill(3)
    world.upgraded.add(3)
    world.start(3)
    world.run(8_000_000)
    assert world.member(3).present
    assert world.member(1).plane.state.speaks[3] == NEW
