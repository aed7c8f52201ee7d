"""Table writes that are sent again: each takes effect once, also across snapshots and crashes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.core.harness import Node, hello

from penstock.core import dedupe
from penstock.core.records import Removed, Written, read_note
from penstock.errors import (
    ConflictError,
    ForgottenError,
    InvalidError,
    LimitError,
    NotFoundError,
    ProtocolError,
)
from penstock.wire import messages as m
from penstock.wire.frames import Verb, frame

PRODUCER = 77
_pack = msgspec.msgpack.encode


def put(table: int, value: bytes, sequence: int, **more: Any) -> m.Put:
    return m.Put(table, b"k", value, producer=PRODUCER, sequence=sequence, **more)


def remove(table: int, sequence: int, if_version: int | None = None) -> m.Remove:
    return m.Remove(table, b"k", if_version, PRODUCER, sequence)


def value_of(node: Node, table: int) -> bytes | None:
    found = node.call(m.Get(table, b"k"))
    return None if found is None else found["value"]


def reborn(node: Node, how: str) -> Node:
    if how == "same":
        return node
    return node.crash(node.snapshot() if how == "snapshot" else None)


@pytest.mark.parametrize("how", ["same", "replay", "snapshot"])
def test_a_resend_is_answered_like_the_first_and_changes_nothing(how: str) -> None:
    node = Node()
    table = node.open("table", "t")
    writes = [
        put(table, b"a", 0, if_version=0),
        put(table, b"b", 1, append=True),
        remove(table, 2),
        remove(table, 3),
        put(table, b"c", 4, append=True),
    ]
    answers = [node.call(write) for write in writes]
    assert answers[2:4] == [True, False]
    node.call(m.Put(table, b"k", b"others"))
    node = reborn(node, how)
    before, records = state_of(node.fabric), len(node.journal)
    assert [node.call(write) for write in writes] == answers
    assert state_of(node.fabric) == before
    assert len(node.journal) == records
    assert value_of(node, table) == b"others"


def test_a_snapshot_in_the_middle_and_the_rest_of_the_log() -> None:
    node = Node()
    table = node.open("table", "t")
    first = node.call(put(table, b"a", 0, append=True))
    taken = node.snapshot()
    second = node.call(put(table, b"b", 1, append=True))
    node = node.crash(taken)
    assert node.call(put(table, b"a", 0, append=True)) == first
    assert node.call(put(table, b"b", 1, append=True)) == second
    assert value_of(node, table) == b"ab"


def test_a_refusal_uses_up_no_number() -> None:
    node = Node()
    table = node.open("table", "t")
    node.call(put(table, b"a", 0))
    for refused in (put(table, b"b", 1, if_version=9), remove(table, 1, if_version=9)):
        with pytest.raises(ConflictError):
            node.call(refused)
    with pytest.raises(NotFoundError):
        node.call(put(table, b"b", 1, session=5))
    node.call(put(table, b"b", 1))
    with pytest.raises(InvalidError, match="gap"):
        node.call(put(table, b"d", 3))
    assert value_of(node, table) == b"b"


def test_a_resend_is_answered_when_the_first_is_safe() -> None:
    node = Node(lazy=True)
    table = node.open("table", "t")
    write = _pack(put(table, b"a", 0))
    first, again = node.send(Verb.CALL, write), node.send(Verb.CALL, write)
    assert not node.has_answer(first)
    assert not node.has_answer(again)
    node.commit()
    assert node.answer(first).value() == node.answer(again).value()


@pytest.mark.parametrize(
    "call", [m.Put(1, b"k", b"b", 0), m.Remove(1, b"k", 9), m.Remove(1, b"l")], ids=repr
)
def test_an_answer_tells_nothing_that_is_not_safe(call: m.Put | m.Remove) -> None:
    """What a conflict, or an absent entry, was caused by must survive if anybody hears of it."""
    node = Node(1, lazy=True)
    table = node.open("table", "t")
    assert table == 1
    node.send(Verb.CALL, _pack(m.Put(table, b"k", b"a")))
    request = node.send(Verb.CALL, _pack(call))
    assert not node.has_answer(request)
    node.commit()
    if call.if_version is None:
        assert node.answer(request).value() is False
    else:
        with pytest.raises(ConflictError):
            node.answer(request).value()


def test_an_answer_that_is_forgotten_is_no_reason_to_write_again() -> None:
    node = Node()
    table = node.open("table", "t")
    for sequence in range(dedupe.RECENT_BATCHES + 1):
        node.call(put(table, b"%d," % sequence, sequence, append=True))
    whole = value_of(node, table)
    with pytest.raises(ForgottenError):
        node.call(put(table, b"0,", 0, append=True))
    assert value_of(node, table) == whole


def test_a_number_is_used_up_even_if_the_table_is_gone() -> None:
    node = Node(1)
    table = node.open("table", "t")
    version = node.call(put(table, b"a", 0))
    node.call(m.Delete("table", "t"))
    node = node.crash()
    assert node.call(put(table, b"a", 0)) == version
    other = node.open("table", "other")
    node.call(put(other, b"b", 1))
    assert value_of(node, other) == b"b"


def test_without_a_producer_nothing_is_remembered() -> None:
    node = Node()
    table = node.open("table", "t")
    for _ in range(2):
        node.call(m.Put(table, b"k", b"x", append=True))
    assert value_of(node, table) == b"xx"
    records = len(node.journal)
    assert node.call(m.Remove(table, b"absent")) is False
    assert len(node.journal) == records


def test_producers_of_writes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe, "MAX_PRODUCERS", 2)
    node = Node(1)
    table = node.open("table", "t")
    for producer in (1, 2):
        node.call(m.Put(table, b"k", b"x", producer=producer))
    with pytest.raises(LimitError):
        node.call(m.Put(table, b"k", b"x", producer=3))
    node.call(m.Put(table, b"k", b"y", producer=1, sequence=1))


def test_notes_from_before_writes_had_numbers_can_be_read() -> None:
    assert read_note(_pack(["Written", 1, b"k", b"v", 0, 0])) == Written(1, b"k", b"v")
    assert read_note(_pack(["Removed", 1, [b"k"]])) == Removed(1, [b"k"])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "put", "create", "remove", "crash", "snapshot"]),
        st.integers(1, 3),  # how often it is sent
        st.booleans(),  # whether another client writes in between
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_writes_take_effect_once(steps: list[tuple[str, int, bool]]) -> None:
    node = Node()
    table = node.open("table", "t")
    model: bytes | None = None
    taken, sequence = None, 0
    for kind, times, meddled in steps:
        if kind == "crash":
            node = node.crash(taken)
            continue
        if kind == "snapshot":
            taken = node.snapshot()
            continue
        write: m.Put | m.Remove = put(
            table, b"%d," % sequence, sequence, append=kind == "append",
            if_version=0 if kind == "create" else None,
        )  # fmt: skip
        if kind == "remove":
            write = remove(table, sequence)
        if kind == "create" and model is not None:
            with pytest.raises(ConflictError):
                node.call(write)
            continue
        answer = node.call(write)
        if kind == "remove":
            assert answer == (model is not None)
            model = None
        else:
            model = (model or b"" if kind == "append" else b"") + b"%d," % sequence
        sequence += 1
        for _ in range(times - 1):
            if meddled:
                node.call(m.Put(table, b"k", b"x", append=True))
                model = (model or b"") + b"x"
            assert node.call(write) == answer
        assert value_of(node, table) == model
    assert value_of(node, table) == model


# --- connections that are over ---------------------------------------------------------------


def greeting(origin: int, attempt: int) -> bytearray:
    packed = _pack(m.Hello(1, "test", origin=origin, attempt=attempt))
    return bytearray(frame(Verb.HELLO, 0, 0, packed))


def greet(node: Node, connection: int, origin: int, attempt: int) -> None:
    node.fabric.handle(connection, greeting(origin, attempt), node.now_us)
    node.tick()


def test_what_was_refused_since_does_not_come_late_over_an_old_connection() -> None:
    node = Node()
    table = node.open("table", "t")
    version = node.call(m.Put(table, b"k", b"theirs"))
    greet(node, 2, 5, 1)
    greet(node, 3, 5, 2)
    assert node.closed == [2]
    write = put(table, b"mine", 0, if_version=0)
    with pytest.raises(ConflictError):
        node.call(write, connection=3)
    node.call(m.Remove(table, b"k", version))
    with pytest.raises(ProtocolError):
        node.call(write, connection=2)
    assert value_of(node, table) is None


def test_a_late_greeting_ends_nothing() -> None:
    node = Node()
    greet(node, 2, 5, 2)
    greet(node, 3, 5, 1)
    assert node.closed == [3]
    assert node.call(m.Streams(), connection=2) == []


def test_clients_do_not_end_each_others_connections() -> None:
    node = Node()
    for connection, origin in ((2, 5), (3, 6), (4, 0), (5, 0)):
        greet(node, connection, origin, 1)
    node.fabric.disconnect(2)
    greet(node, 6, 5, 2)
    node.fabric.handle(7, hello(), node.now_us)
    assert node.closed == []
    assert sorted(node.fabric.connections) == [1, 3, 4, 5, 6, 7]
