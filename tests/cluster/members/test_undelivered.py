"""Messages that were leased when their shard moved, and never left: the new owner hears of it, and
gives them to others long before the lease runs out."""

from __future__ import annotations

import pytest
from tests.cluster.members.test_feeding import Case, Subscribed
from tests.cluster.members.world import World

from penstock.engine.undelivered import MOST_GRANTS, UndeliveredLeases, Unheard, pack_unheard
from penstock.errors import ProtocolError
from penstock.wire.frames import POP, Verb

SOON_US = 500_000  # a tenth of the lease


class Moving(Case):
    """A message of each shard is leased in one delivery. The new owner has the lease of the one
    that moves in its log; but nothing leaves, as the other waits for a node that was killed."""

    def __init__(self) -> None:
        super().__init__()
        self.push(self.stays, b"stays")
        self.push(self.moves, b"moves")
        self.world.kill(self.away)

    def pop(self) -> list[bytes | None]:
        """The same by a pop, whose answer comes into the list."""
        answers: list[bytes | None] = []
        body = POP.pack(self.stream, 100, 1 << 20, 0, 0, 0)
        self.world.send(self.node, Verb.POP, body, answers.append, 20_000_000)
        self.world.run(10_000)
        assert answers == []
        return answers


def test_the_new_owner_gives_a_message_to_others_that_never_left():
    case = Moving()
    Subscribed(case.world, case.node, case.stream)
    heir = Subscribed(case.world, case.heir, case.stream)
    case.world.run(10_000)
    case.transfer()
    case.world.run(SOON_US)
    assert heir.deliveries == [[b"moves"]]


def test_a_pop_that_failed_leaves_nothing_behind_on_either_node():
    """Its last lease is of the shard that moves, so it fails; the other message is still here."""
    case = Moving()
    answers = case.pop()
    heir = Subscribed(case.world, case.heir, case.stream)
    here = Subscribed(case.world, case.node, case.stream)
    case.transfer()
    case.world.run(SOON_US)
    assert len(answers) == 1
    assert heir.deliveries == [[b"moves"]]
    case.world.run(3_000_000)  # until the node that was killed counts for nothing
    assert here.deliveries == [[b"stays"]]


def test_older_nodes_are_told_nothing():
    case = Moving()
    member = case.world.hosts[case.heir].member
    assert member is not None
    told: list[int] = []
    leases = UndeliveredLeases(
        case.heir, member.engine.fabric, lambda node, _: told.append(node), lambda _: True
    )
    lose = member.engine.fabric.queues.undelivered.on_lost
    for enabled in (False, True):
        leases.enabled = enabled
        lose(case.moves, 0, case.stream, [1])
        leases.advance(case.world.map(), case.world.now_us)
        assert told == [case.node] * enabled


def test_what_makes_no_sense_does_nothing():
    case = Moving()
    member = case.world.hosts[case.heir].member
    assert member is not None
    shard = case.world.map().shards[case.moves]
    with pytest.raises(ProtocolError):
        member.undelivered.receive(Unheard(99, 0, case.stream, [1]))
    member.undelivered.receive(Unheard(case.moves, shard.epoch, 12345, [1, 2]))
    member.undelivered.receive(Unheard(case.moves, 0, case.stream, list(range(MOST_GRANTS + 1))))
    case.transfer()
    heir = Subscribed(case.world, case.heir, case.stream)
    case.world.run(SOON_US)
    assert heir.deliveries == [[b"moves"]]


def test_a_node_that_has_just_started_hears_of_leases_before_it_has_a_map():
    world = World(1)
    world.kill(3)
    world.run(3_000_000)
    world.start(3)
    member = world.hosts[3].member
    assert member is not None
    assert not member.plane.state.map().shards
    message = b"u" + pack_unheard(Unheard(0, 1, 50, [1]))
    member.receive(1, [memoryview(message)], world.now_us)
    world.run(1_000_000)
    assert member.plane.state.map().shards
    assert member.undelivered._heard == [], "it is not the owner"
