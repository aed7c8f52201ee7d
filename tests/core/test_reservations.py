"""Reservations: what one holds never changes, is read as often as one likes, and ends once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.core.harness import Got, Node

from penstock.core.books import KEPT_US, MAX_OPEN, TENTATIVE_US
from penstock.errors import ConflictError, InvalidError, LimitError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.frames import Verb

SHARDS = 4


class Reader:
    """A node with a queue, and one who reserves its messages."""

    def __init__(self, node: Node | None = None, **options: object) -> None:
        self.node = node or Node(SHARDS)
        self.queue = 1 if node else self.node.open("queue", "q", **options)

    def after(self, node: Node) -> Reader:
        return Reader(node)

    def push(self, *values: bytes, shard: int = 0) -> None:
        self.node.receipt(self.node.push(self.queue, values, shard))

    def lease(self, number: int, messages: int = 1000, key: str = "job") -> list[m.ReservedPart]:
        told = self.node.call(m.Reserve(self.queue, key, number, messages, 1 << 20))
        return [m.ReservedPart(*part) for part in told]

    def seal(
        self, number: int, parts: list[m.ReservedPart] | None, key: str = "job"
    ) -> list[m.ReservedPart] | None:
        told = self.node.call(m.SealReservation(self.queue, key, number, parts))
        return None if told is None else [m.ReservedPart(*part) for part in told["parts"]]

    def reserve(
        self, number: int, messages: int = 1000, key: str = "job"
    ) -> list[m.ReservedPart]:
        """As a client does it."""
        known = self.seal(number, None, key)
        if known is None:
            parts = self.lease(number, messages, key)
            known = self.seal(number, parts, key) if parts else []
        return known or []

    def read_part(
        self, number: int, shard: int, key: str = "job", max_bytes: int = 0
    ) -> list[Got]:
        found: list[Got] = []
        grant = position = 0
        while True:
            call = m.ReadReserved(self.queue, key, number, shard, grant, position, max_bytes)
            answer = self.node.answer(self.node.send(Verb.CALL, m.pack(call)))
            if not answer.messages:
                answer.value()
                return found
            found += answer.messages
            grant, position = max((got.grant, got.position + 1) for got in answer.messages)

    def read(self, number: int, parts: list[m.ReservedPart], key: str = "job") -> list[bytes]:
        found = [got.value for part in parts for got in self.read_part(number, part.shard, key)]
        assert len(found) == sum(part.messages for part in parts)
        return sorted(found)

    def finish(self, through: int, key: str = "job") -> int:
        count: int = self.node.call(m.FinishReservations(self.queue, key, through))
        return count

    def unreserve(self, *numbers: int, key: str = "job") -> int:
        count: int = self.node.call(m.Unreserve(self.queue, key, list(numbers) or None))
        return count

    def figures(self) -> dict[str, int]:
        figures: dict[str, int] = self.node.call(m.StreamStats(self.queue))
        return figures

    def popped(self) -> list[bytes]:
        return sorted(got.value for got in self.node.popped(self.queue, 1000))


def test_it_is_read_as_often_as_one_likes_and_finished_once():
    here = Reader()
    here.push(b"a", b"b", b"c")
    here.push(b"d", shard=2)
    parts = here.reserve(1)
    assert sorted((part.shard, part.messages) for part in parts) == [(0, 3), (2, 1)]
    assert here.popped() == []
    figures = here.figures()
    assert (figures["leased"], figures["reserved"], figures["ready"]) == (4, 4, 0)
    for _ in range(2):
        assert here.read(1, parts) == [b"a", b"b", b"c", b"d"]
    assert here.finish(1) == 4
    assert here.finish(1) == 0
    assert here.figures()["messages"] == 0
    with pytest.raises(NotFoundError):
        here.read_part(1, 0)
    here.node.check()


def test_the_same_number_is_the_same_for_ever():
    here = Reader()
    here.push(b"a", b"b", b"c")
    parts = here.reserve(1, 2)
    here.push(b"d")
    assert here.reserve(1, 1000) == parts
    assert here.lease(1) == parts, "also to one who does not ask its home first"
    assert here.read(1, parts) == [b"a", b"b"]
    assert here.read(2, here.reserve(2)) == [b"c", b"d"]
    here.node.tick(10 * TENTATIVE_US)
    assert here.read(1, parts) == [b"a", b"b"]
    here.finish(2)
    with pytest.raises(ConflictError):
        here.reserve(2)


def test_what_is_not_sealed_comes_back_by_itself():
    here = Reader()
    here.push(b"a", b"b")
    assert here.lease(1) == here.lease(1)
    assert here.popped() == []
    here.node.tick(TENTATIVE_US)
    got = here.node.popped(here.queue, 10)
    assert [(each.value, each.deliveries) for each in got] == [(b"a", 2), (b"b", 2)]
    assert here.seal(1, None) is None, "the number was not used"


def test_the_first_to_seal_decides():
    here = Reader()
    here.push(b"a")
    here.push(b"b", shard=1)
    parts = here.lease(1)
    assert here.seal(1, parts[:1]) == parts[:1]
    assert here.seal(1, parts) == parts[:1]
    assert len(here.popped()) == 1, "what is not in it goes back"
    assert here.finish(1) == 1
    here.push(b"c")
    late = here.lease(1)
    with pytest.raises(ConflictError):
        here.seal(1, late)
    assert here.popped() == [b"c"]
    here.node.check()


def test_an_operator_has_it_back_and_no_message_is_acknowledged_twice():
    here = Reader()
    here.push(b"a", b"b")
    here.reserve(1)
    (open_,) = here.node.call(m.Reservations(here.queue))
    assert (open_["key"], open_["number"], open_["since_us"]) == ("job", 1, here.node.now_us)
    assert here.unreserve(2) == 0
    assert here.unreserve(1) == 2
    got = here.node.popped(here.queue, 10)
    assert [(each.value, each.deliveries) for each in got] == [(b"a", 2), (b"b", 2)]
    assert here.finish(1) == 0
    assert here.figures()["leased"] == 2
    for each in got:
        assert here.node.ack(here.queue, each).accepted == 1
    with pytest.raises(ConflictError):
        here.reserve(1)
    here.node.check()


def test_nobody_but_its_reader_ends_it():
    here = Reader()
    here.push(b"a", b"b")
    parts = here.reserve(1)
    for got in here.read_part(1, 0):
        settled = here.node.ack(here.queue, got)
        assert settled.accepted == 0
        assert settled.refused
    assert here.node.call(m.Purge(here.queue)) == 0
    assert here.read(1, parts) == [b"a", b"b"]


def test_what_was_given_back_too_often_is_a_dead_letter():
    here = Reader(max_deliveries=2)
    here.push(b"a")
    for number in (1, 2):
        here.reserve(number)
        here.unreserve()
    assert here.figures()["dead"] == 1
    here.node.call(m.Redrive(here.queue))
    assert here.read(3, here.reserve(3)) == [b"a"]


def test_a_time_to_live_does_not_end_what_is_reserved():
    here = Reader(ttl_ms=1000)
    here.push(b"a")
    parts = here.reserve(1)
    here.node.tick(5_000_000)
    assert here.read(1, parts) == [b"a"]
    here.unreserve()
    assert here.popped() == [b"a"], "it ended while the message was leased, as for any lease"


def test_a_part_is_read_in_pieces():
    here = Reader()
    values = [b"%02d" % n * 50 for n in range(30)]
    for value in values:
        here.push(value)
    parts = here.reserve(1)
    assert [got.value for got in here.read_part(1, 0, max_bytes=500)] == values
    assert here.read(1, parts) == values


def test_an_ordered_queue_gives_what_is_first():
    here = Reader(ordered="queue")
    home = here.node.fabric.kernel.place_of(b"q")
    here.push(b"a", b"b", shard=home)
    here.push(b"c", shard=home)
    parts = here.reserve(1)
    assert here.read(1, parts) == [b"a", b"b"]
    assert here.reserve(2) == [], "one lease at a time"
    here.finish(1)
    assert here.read(2, here.reserve(2)) == [b"c"]


def test_there_is_a_bound():
    here = Reader()
    for number in range(1, MAX_OPEN + 2):
        here.push(b"%d" % number)
        if number <= MAX_OPEN:
            assert here.reserve(number)
    with pytest.raises(LimitError):
        here.reserve(MAX_OPEN + 1)
    for call in (
        m.Reserve(here.queue, "", 1, 1, 1),
        m.Reserve(here.queue, "job", 1, 0, 1),
        m.SealReservation(here.queue, "job", 90, [m.ReservedPart(99, 1, 1)]),
        m.SealReservation(here.queue, "job", -1),
    ):
        with pytest.raises((InvalidError, LimitError)):
            here.node.call(call)


def test_a_deleted_queue_is_gone_with_all_that_is_reserved():
    here = Reader()
    here.push(b"a")
    here.reserve(1)
    here.node.call(m.Delete("queue", "q"))
    assert not any(shard.books.books for shard in here.node.fabric.kernel.shards)
    here.node.check()


def test_keys_are_forgotten_after_a_long_time():
    here = Reader()
    home = here.node.fabric.kernel.place_of(b"job")
    other = next(
        f"k{n}" for n in range(100) if here.node.fabric.kernel.place_of(b"k%d" % n) == home
    )
    here.push(b"a", b"b")
    here.reserve(1, 1)
    here.finish(1)
    here.node.tick(KEPT_US)
    assert here.reserve(1, 1, key=other)
    books = here.node.fabric.kernel.shards[home].books.books
    assert [key for _, key in books] == [other]


def test_a_crash_at_any_moment_changes_nothing_that_was_decided():
    here = Reader()
    here.push(b"a", b"b")
    here.push(b"c", shard=1)
    parts = here.reserve(1)
    node = here.node
    for call in (m.Unreserve(here.queue, "job"), m.FinishReservations(here.queue, "job", 1)):
        before, taken = len(node.journal), node.snapshot()
        mine = node.crash(taken)
        mine.lazy = True
        mine.send(Verb.CALL, m.pack(call))
        seen = set()
        for keep in range(before, len(mine.journal) + 1):
            for snapshot in (None, taken):
                after = here.after(mine.crash(snapshot, keep))
                after.node.commit()
                after.node.lazy = False
                popped, open_ = after.popped(), after.node.call(m.Reservations(here.queue))
                if open_:
                    assert popped == []
                    assert after.read(1, parts) == [b"a", b"b", b"c"]
                elif isinstance(call, m.Unreserve):
                    assert popped == [b"a", b"b", b"c"]
                else:
                    assert popped == []
                    assert after.figures()["messages"] == 0
                seen.add(bool(open_))
                after.node.check()
        assert seen == {True, False}


_step = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 5), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("reserve"), st.integers(1, 8), st.integers(0, 1)),
    st.tuples(st.just("lease"), st.integers(1, 8), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("unreserve"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("pop"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("ack"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
    st.tuples(st.just("crash"), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=150)
@given(st.lists(_step, max_size=40))
def test_against_a_model(steps: list[tuple[str, int, int]]):
    here = Reader(lease_ms=600_000)
    pushed: list[bytes] = []
    ended: Counter[bytes] = Counter()
    kept: dict[int, tuple[list[m.ReservedPart], list[bytes]]] = {}
    leased: list[Got] = []
    last = 0
    for what, number, more in steps:
        if what == "push":
            values = [b"%d" % (len(pushed) + n) for n in range(number)]
            here.push(*values, shard=more)
            pushed += values
        elif what == "reserve" and len(kept) < MAX_OPEN:
            if more and last in kept:
                assert here.reserve(last, number) == kept[last][0]
            elif parts := here.reserve(last + 1, number):
                last += 1
                kept[last] = (parts, here.read(last, parts))
        elif what == "lease":
            here.lease(last + 1, number)
        elif what in ("finish", "unreserve"):
            through = last - number
            over = [n for n in kept if n <= through] if what == "finish" else [through]
            gone = [kept.pop(n)[1] for n in over if n in kept]
            if what == "finish":
                here.finish(max(through, 0))
                ended.update(value for each in gone for value in each)
            else:
                here.unreserve(through)
        elif what == "pop":
            leased += here.node.popped(here.queue, number)
        elif what == "ack" and leased:
            got = leased.pop(number % len(leased))
            ended[got.value] += here.node.ack(here.queue, got).accepted
        elif what == "wait":
            here.node.tick(TENTATIVE_US)
        elif what == "crash":
            before = state_of(here.node.fabric, timed=False)
            here = here.after(here.node.crash(here.node.snapshot() if more else None))
            assert state_of(here.node.fabric, timed=False) == before
    for number, (parts, values) in kept.items():
        assert here.read(number, parts) == values
    here.finish(last)
    ended.update(value for _, values in kept.values() for value in values)
    here.node.tick(2 * TENTATIVE_US)
    for got in here.node.popped(here.queue, 10_000):
        ended[got.value] += here.node.ack(here.queue, got).accepted
    assert ended == Counter(pushed), "each is acknowledged once"
    assert here.figures()["messages"] == 0
    here.node.check()
