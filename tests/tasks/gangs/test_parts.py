"""The parts of a gang's members: whatever is late or dies, all survivors hear the same end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.tasks.gangs.names import HERE, OVER, GangNames, read_member
from penstock.tasks.gangs.parts import (
    End,
    Ending,
    EndKind,
    Look,
    ManagerPart,
    MemberPart,
    Met,
    Put,
    pack_over,
    part_of,
)

LATE_US = 1000
Change = tuple[bytes, bytes | None]


@dataclass
class Actor:
    """A member whose function meets the others so often, then returns, or raises."""

    rank: int
    part: ManagerPart | MemberPart
    meetings: int
    well: bool
    news: list[Change] = field(default_factory=list)
    met: list[list[bytes]] = field(default_factory=list)
    ending: Ending | None = None
    dead: bool = False
    joined: bool = False
    waits: bool = False
    finished: bool = False


class World:
    """A table that members write to, and hear of in their own time."""

    def __init__(self, meetings: list[int], failing: int | None = None) -> None:
        size = len(meetings)
        self.actors = [
            Actor(rank, part_of(rank, size, LATE_US), often, rank != failing)
            for rank, often in enumerate(meetings)
        ]
        self.over: bytes | None = None

    def write(self, actor: Actor, word: bytes, value: bytes | None) -> None:
        if actor.rank:
            self.actors[0].news.append((b"%d/%s" % (actor.rank, word), value))
        else:
            for other in self.actors[1:]:
                other.news.append((word, value))

    def step(self, actor: Actor) -> bool:
        """One thing that this member can do; whether there was one."""
        if actor.dead or actor.ending is not None:
            return False
        if not actor.joined:
            actor.joined = True
            self.write(actor, HERE, b"")
        elif actor.news:
            actor.part.changed(*actor.news.pop(0))
        elif actor.waits or actor.finished:
            return False
        elif len(actor.met) < actor.meetings:
            actor.waits = True
            actor.part.meet(b"%d.%d" % (actor.rank, len(actor.met)))
        else:
            actor.finished = True
            actor.part.finish(actor.well, b"out %d" % actor.rank)
        self.carry_out(actor)
        return True

    def carry_out(self, actor: Actor) -> None:
        for effect in actor.part.take():
            if isinstance(effect, Put):
                self.write(actor, effect.word, effect.value)
            elif isinstance(effect, Met):
                actor.waits = False
                actor.met.append(effect.values)
            elif isinstance(effect, Look):
                assert isinstance(actor.part, MemberPart)
                if self.over is None:
                    actor.part.manager_lost()
                else:
                    actor.part.changed(OVER, self.over)
                self.carry_out(actor)
            else:
                self.end(actor, effect)

    def end(self, actor: Actor, effect: End) -> None:
        actor.ending = effect.ending
        if not actor.rank:
            self.over = pack_over(effect.ending)
            self.write(actor, OVER, self.over)
        self.write(actor, HERE, None)  # it leaves

    def die(self, actor: Actor) -> None:
        if not actor.dead and actor.ending is None:
            actor.dead = True
            if actor.joined:
                self.write(actor, HERE, None)

    def time_passes(self) -> None:
        for actor in self.actors:
            if not actor.dead and actor.ending is None:
                actor.part.tick(LATE_US)
                self.carry_out(actor)

    def run(self, data: st.DataObject, deaths: set[int]) -> None:
        """In an order by chance, until nothing happens any more."""
        while True:
            able = [actor for actor in self.actors if not actor.dead and actor.ending is None]
            if not able:
                return
            actor = data.draw(st.sampled_from(able))
            if actor.rank in deaths and data.draw(st.integers(0, 5)) == 0:
                self.die(actor)
            elif not self.step(actor) and not any(map(self.step, able)):
                for rank in deaths:
                    self.die(self.actors[rank])
                self.time_passes()
                if not any(map(self.step, self.actors)):
                    return


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(0, 3))
def test_without_trouble_all_meet_and_end_well(data, size, meetings):
    world = World([meetings] * size)
    world.run(data, set())
    wanted = [[b"%d.%d" % (rank, n) for rank in range(size)] for n in range(meetings)]
    for actor in world.actors:
        assert actor.met == wanted
        assert actor.ending is not None
        assert actor.ending.kind == EndKind.DONE
    manager = world.actors[0].ending
    assert manager is not None
    assert manager.outcomes == [b"out %d" % rank for rank in range(size)]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 5), st.integers(0, 3))
def test_whoever_dies_all_survivors_hear_an_end(data, size, meetings):
    world = World([meetings] * size)
    deaths = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    world.run(data, deaths)
    survivors = [actor for actor in world.actors if not actor.dead]
    assert all(actor.ending is not None for actor in survivors)
    manager = world.actors[0]
    if manager.ending is not None and manager.ending.kind == EndKind.DONE:
        assert len(manager.ending.outcomes) == size
    if manager.ending is not None:  # the others have its word, or never heard of an end
        kinds = {actor.ending.kind for actor in survivors if actor.ending is not None}
        assert kinds == {manager.ending.kind}
    for actor in world.actors:  # nobody meets before all have come
        for number, values in enumerate(actor.met):
            assert values == [b"%d.%d" % (rank, number) for rank in range(size)]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 5), st.integers(0, 2))
def test_a_function_that_raises_fails_all(data, size, meetings):
    failing = data.draw(st.integers(0, size - 1))
    world = World([meetings] * size, failing)
    world.run(data, set())
    for actor in world.actors:
        assert actor.ending is not None
        assert (actor.ending.kind, actor.ending.rank) == (EndKind.FAILED, failing)
    assert world.actors[0].ending is not None
    assert world.actors[0].ending.outcomes == [b"out %d" % failing]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.lists(st.integers(0, 3), min_size=2, max_size=4))
def test_who_waits_for_one_that_has_returned_is_told(data, meetings):
    world = World(meetings)
    world.run(data, set())
    even = len(set(meetings)) == 1
    for actor in world.actors:
        assert actor.ending is not None
        assert actor.ending.kind == (EndKind.DONE if even else EndKind.FAILED)


def test_a_member_that_never_joins_is_missed():
    manager, member = ManagerPart(3, LATE_US), MemberPart(LATE_US)
    manager.changed(b"1/here", b"")
    manager.tick(LATE_US - 1)
    member.tick(LATE_US - 1)
    assert manager.take() == member.take() == []
    manager.tick(LATE_US)
    member.tick(LATE_US)
    assert manager.take() == [End(Ending(EndKind.LOST, 2, "member 2 has not joined"))]
    assert member.take() == [Look()]


def test_a_gang_whose_lease_is_lost_ends_once():
    manager = ManagerPart(2, LATE_US)
    manager.lost(-1, "lease")
    manager.lost(1, "member")
    manager.finish(True, b"")
    assert manager.take() == [End(Ending(EndKind.LOST, -1, "lease"))]
    manager.meet(b"")
    assert manager.take() == []


def test_one_meeting_at_a_time():
    part = MemberPart(LATE_US)
    part.meet(b"")
    with pytest.raises(InvalidError):
        part.meet(b"")


def test_names():
    names = GangNames.of("ab12", 2, 7)
    assert names.of_member(3, HERE) == b"gang/ab12/2.7/up/3/here"
    assert names.of_manager(OVER) == b"gang/ab12/2.7/down/over"
    assert read_member(b"3/here") == (3, b"here")
    for strange in (b"", b"here", b"x/here", b"3/other", b"3", b"-1/here"):
        assert read_member(strange) is None
