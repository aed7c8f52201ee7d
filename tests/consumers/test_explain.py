"""Why a partition is where it is, in words."""

from __future__ import annotations

from tests.consumers.conversation import FREE, Conversation

from penstock.consumers import claim_events as e
from penstock.consumers.explain import Explanation, explain
from penstock.consumers.membership import Drain, Member
from penstock.consumers.moves import Moves
from penstock.consumers.rules import Rules
from penstock.consumers.schedule import Schedule, Window

MINE = ("a", 1, 9000)
THEIRS = ("b", 1, 9000)


def told(talk: Conversation, partition: int) -> Explanation:
    return explain(talk.claims, partition, talk.now_us)


def test_before_the_first_look_nothing_is_known():
    assert told(Conversation(), 0)[:2] == ("unknown", "the group was not looked at yet")


def test_a_partition_that_the_topic_does_not_have():
    talk = Conversation()
    talk.owns(0)
    assert told(talk, 9).why == "the topic has no such partition"


def test_one_that_is_where_it_should_be():
    talk = Conversation()
    talk.owns(0, 1)
    assert str(told(talk, 0)).splitlines() == [
        "a has it under token 1, and processes it",
        "it stays with a, whose share is 2 of 2",
        "nothing is to be done",
        "claimed: token 1",
    ]


def test_one_that_moves_from_its_owners_view():
    talk = Conversation(Rules(max_handovers=1))
    talk.owns(0, 1, 2, 3)
    talk.looked(dict.fromkeys(range(4), MINE), members="ab")
    assert told(talk, 2)[:3] == (
        "a has it under token 1, and does not process it",
        "it goes from a, who has 4 and whose share is 2, to b, whose share is 2 of 4",
        "being handed over to b, for 0.0 s",
    )
    assert told(talk, 3).next == "handed over in its turn: 1 at a time"
    talk.give(e.HandedOver(2, 1))
    assert told(talk, 2).next == "being released to b, for 0.0 s"
    talk.give(e.Released(2, 1))
    assert told(talk, 2).next == "given up for b, who was not seen to have it yet"
    assert [move.what for move in told(talk, 2).moves] == ["released", "stopped", "claimed"]


def test_one_that_moves_from_its_heirs_view():
    talk = Conversation(Rules(max_calls=1))
    state = {0: FREE, 1: FREE, 2: THEIRS, 3: THEIRS, 4: THEIRS, 5: ("gone", 3, 4000)}
    talk.looked(state, members="ab")
    assert told(talk, 0).where == "nobody has it, as seen 0.0 s ago"
    assert told(talk, 0).next == "asked for 0.0 s ago"
    assert told(talk, 1).next == "claimed in its turn: 1 at a time"
    assert told(talk, 5).where == "gone had it, who is gone, as seen 0.0 s ago"
    assert told(talk, 5).next == "claimed in 4.1 s"
    assert told(talk, 2).next == "not this member's business"
    talk = Conversation()
    talk.looked({**dict.fromkeys(range(4), THEIRS), 4: None}, members="ab")
    assert told(talk, 3).next == "waits until b hands it over"
    assert told(talk, 4).where == "unknown: its node did not answer, as seen 0.0 s ago"


def test_one_that_stands_still_until_its_claim_is_renewed():
    talk = Conversation()
    talk.owns(0)
    talk.wait(9500)
    assert told(talk, 0).next == "stands still until its claim is renewed"


def test_pins_drains_and_who_is_not_a_member():
    talk = Conversation()
    talk.looked({0: THEIRS, 1: THEIRS}, [Member("a", pins=frozenset({1})), Member("b")])
    assert told(talk, 1).why == "it is pinned to a"
    talk.looked({0: THEIRS, 1: THEIRS}, [Member("a"), Member("b", drain=Drain(0, 0))])
    assert told(talk, 0).why == "it goes from b, who drains, to a, whose share is 2 of 2"
    talk.looked({0: THEIRS, 1: THEIRS}, members="b")
    assert told(talk, 0)[1:3] == (
        "no plan says where it should be", "a is not in the table of members",
    )  # fmt: skip


def test_why_nothing_moves_yet():
    closed = Conversation(Rules(schedule=Schedule((Window(60_000_000, 1_000_000, 10**9),))))
    closed.owns(0, 1)
    assert told(closed, 0).next == (
        "for balance it moves when a window opens, 60.0 s after the last look"
    )
    busy = Conversation(Rules(by_load=True))
    busy.owns(0, 1)
    busy.looked({0: MINE, 1: THEIRS}, members="ab", loads={0: 11.0, 1: 10.0})
    assert told(busy, 0).next == (
        "the busiest member was 5% above the mean at the last look; up to 20% nothing moves"
    )


def test_only_the_last_moves_are_kept():
    moves = Moves(limit=3)
    for number in range(5):
        moves.note(number, number % 2, "claimed", f"token {number}")
    assert [move.at_us for move in moves.last()] == [4, 3, 2]
    assert [move.at_us for move in moves.last(0)] == [4, 2]
    assert [move.at_us for move in moves.last(0, 1)] == [4]
