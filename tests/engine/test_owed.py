"""Answers that wait for what is being read before them."""

from __future__ import annotations

from penstock.core.effects import Deliver, Send, Slice
from penstock.engine.owed import Owed


def delivery(connection: int, length: int = 10) -> Deliver:
    return Deliver(connection, 0, 1, 0, [Slice(0, 1, 0, 1, 1, 0, length, 0)])


def test_an_answer_waits_for_the_reads_before_it_and_for_no_others() -> None:
    owed = Owed()
    first, second = owed.begin(delivery(1)), owed.begin(delivery(1))
    answer = Send(1, [b"answer"], behind=True)
    assert owed.holds(answer)
    third = owed.begin(delivery(1))
    assert owed.end(1, second) == []
    assert owed.end(1, first) == [answer]
    assert owed.end(1, third) == []


def test_others_go_at_once() -> None:
    owed = Owed()
    number = owed.begin(delivery(1))
    assert not owed.holds(Send(1, [b"whatever"]))
    assert not owed.holds(Send(2, [b"another's"], behind=True))
    assert owed.end(1, number) == []
    assert not owed.holds(Send(1, [b"late"], behind=True))


def test_several_wait_each_for_its_own() -> None:
    owed = Owed()
    one = owed.begin(delivery(1))
    early = Send(1, [b"early"], behind=True)
    assert owed.holds(early)
    other = owed.begin(delivery(1))
    late = Send(1, [b"late"], behind=True)
    assert owed.holds(late)
    assert owed.end(1, one) == [early]
    assert owed.end(1, other) == [late]


def test_bytes_are_counted_by_connection() -> None:
    owed = Owed()
    number = owed.begin(delivery(1, 30))
    owed.begin(delivery(2, 5))
    owed.begin(delivery(1, 12))
    assert (owed.bytes_for(1), owed.bytes_for(2), owed.bytes_for(3)) == (42, 5, 0)
    owed.end(1, number)
    assert owed.bytes_for(1) == 12
