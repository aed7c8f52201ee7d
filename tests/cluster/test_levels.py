"""The level that all nodes speak: it rises when all can follow, and never falls."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.world import World, node

from penstock.cluster import commands as c
from penstock.cluster import levels
from penstock.cluster.map import Speaks, Stated
from penstock.cluster.state import ClusterState

OLD, BOTH, NEW = Speaks(1, 1, "0.1"), Speaks(1, 2, "0.2"), Speaks(2, 3, "0.3")


def cluster(nodes: int = 3) -> World:
    world = World(2)
    world.join(nodes - 1)
    return world


def said(world: World, **speaks: Speaks) -> dict[int, Stated]:
    """What nodes n1, n2, ... say in their present lives."""
    numbers = {f"n{number}": number for number in world.state.nodes}
    return {
        numbers[name]: Stated(numbers[name], world.state.nodes[numbers[name]].incarnation, each)
        for name, each in speaks.items()
    }


def test_it_rises_when_all_speak_it():
    world = cluster()
    assert levels.next_raise(world.state, said(world, n1=BOTH, n2=BOTH)) is None
    assert levels.next_raise(world.state, said(world, n1=BOTH, n2=BOTH, n3=OLD)) is None
    everybody = said(world, n1=BOTH, n2=BOTH, n3=Speaks(1, 3))
    raised = levels.next_raise(world.state, everybody)
    assert raised is not None
    assert world.accept(raised) == 2
    assert world.state.level == 2
    assert levels.next_raise(world.state, everybody) is None
    assert world.do(raised).refused == "stale"


def test_a_node_that_is_down_counts():
    world = cluster()
    world.fail(3)
    assert world.do(c.Raise(2, tuple(said(world, n1=BOTH, n2=BOTH).values()))).refused == "unsafe"
    raised = levels.next_raise(world.state, said(world, n1=BOTH, n2=BOTH, n3=BOTH))
    assert raised is not None
    world.accept(raised)


def test_what_was_said_in_an_earlier_life_does_not_count():
    world = cluster()
    everybody = said(world, n1=BOTH, n2=BOTH, n3=BOTH)
    world.restart(3)
    assert levels.next_raise(world.state, everybody) is None
    assert world.do(c.Raise(2, tuple(everybody.values()))).refused == "unsafe"


def test_a_node_that_has_left_does_not_count():
    world = cluster()
    world.accept(c.Leave(3))
    assert levels.next_raise(world.state, said(world, n1=BOTH, n2=BOTH)) is not None


def test_nobody_is_left_behind_by_a_node_that_no_longer_speaks_the_old_one():
    world = cluster(2)
    assert levels.next_raise(world.state, said(world, n1=Speaks(1, 2), n2=Speaks(3, 4))) is None


def test_who_does_not_speak_it_is_refused():
    world = cluster()
    raised = levels.next_raise(world.state, said(world, n1=BOTH, n2=BOTH, n3=BOTH))
    assert raised is not None
    world.accept(raised)
    outcome = world.do(c.Rejoin(2, "h", 1, 2, OLD))
    assert outcome.refused == "unsafe"
    for part in ("at level 2", "Penstock 0.1", "speaks level 1", "release of the other nodes"):
        assert part in outcome.reason
    assert world.do(c.Join(node("n4"), OLD)).refused == "unsafe"
    too_new = world.do(c.Join(node("n4"), Speaks(3, 4, "0.9")))
    assert "Upgrade the other nodes first" in too_new.reason
    world.accept(c.Join(node("n4"), NEW))
    world.accept(c.Rejoin(2, "h", 1, 2, NEW))
    assert world.state.speaks == {1: BOTH, 2: NEW, 3: BOTH, 4: NEW}


def test_it_rises_again_by_what_the_state_knows():
    world = cluster(2)
    world.accept(c.Raise(2, tuple(said(world, n1=BOTH, n2=BOTH).values())))
    world.accept(c.Rejoin(2, "h", 1, 2, NEW))
    world.fail(2)
    raised = levels.next_raise(world.state, said(world, n1=NEW))
    assert raised == c.Raise(3, tuple(said(world, n1=NEW).values()))
    world.accept(raised)
    assert world.state.level == 3


def test_at_the_first_level_all_is_written_as_before_there_were_levels():
    world = cluster()
    fields = msgspec.msgpack.decode(world.state.snapshot())
    assert (fields[0], len(fields)) == (1, 5)
    assert len(msgspec.msgpack.decode(c.pack_command(c.Join(node("x"))))) == 2
    assert len(msgspec.msgpack.decode(c.pack_command(c.Rejoin(2, "h", 1, 2)))) == 5


@pytest.mark.parametrize("command", [c.Join(node("x")), c.Rejoin(2, "h", 1, 2)])
@pytest.mark.parametrize("speaks", [None, BOTH])
def test_what_is_written_is_read(command: c.Join | c.Rejoin, speaks: Speaks | None):
    stated = msgspec.structs.replace(command, speaks=speaks)
    assert c.read_command(c.pack_command(stated)) == stated


def test_a_snapshot_has_the_level():
    world = cluster(2)
    world.accept(c.Raise(2, tuple(said(world, n1=BOTH, n2=BOTH).values())))
    found = ClusterState.restore(world.state.snapshot())
    assert (found.level, found.speaks) == (2, {1: BOTH, 2: BOTH})
    assert found.snapshot() == world.state.snapshot()


RANGES = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda r: Speaks(r[0], r[0] + r[1]))
STEPS = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("join fail say raise"), RANGES))


@given(STEPS)
def test_whatever_happens_every_node_speaks_it_and_it_never_falls(steps):
    world, stated = World(2), {1: Stated(1, 1, Speaks(1, 4))}
    for number, what, speaks in steps:
        before = world.state.level
        info = world.state.nodes.get(number)
        if info is None:
            if what == "join":
                world.do(c.Join(node(f"n{number}", number=number), speaks if before > 1 else None))
        elif what == "fail":
            world.do(c.Down(number, info.incarnation))
        elif what == "say":
            shown = speaks if before > 1 else None
            life = info.incarnation + 1
            if world.do(c.Rejoin(number, "h", 1, life, shown)).accepted:
                stated[number] = Stated(number, life, speaks)
        elif (raised := levels.next_raise(world.state, stated)) is not None:
            world.accept(raised)
        assert world.state.level >= before
        for known in world.state.speaks.values():
            assert not levels.problem(world.state.level, known)
