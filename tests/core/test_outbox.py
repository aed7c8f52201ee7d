"""The outbox of a shard against a plain list; what a target remembers; a home that goes on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import outbox as module
from penstock.core.outbox import (
    EndSession,
    MeetEdges,
    Outbox,
    Packed,
    Part,
    WatchKeys,
    read_part,
)
from penstock.core.records import Edge, Forward
from penstock.core.shard import Shard
from penstock.errors import LimitError, ProtocolError
from penstock.wire import messages as m
from penstock.wire.sessions import home_of, session_id

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.binary()), max_size=3)
NAME = (st.integers(0, 9), st.binary())
EDGES = st.lists(st.builds(Edge, *NAME, *NAME, st.integers(0, 2)), max_size=3)
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(m.TxnSettle, *[st.integers(0, 9)] * 6, st.binary(max_size=2)),
    st.builds(m.TxnCommit, st.integers(0, 9), st.integers(0, 9), st.text(), st.integers(0, 9)),
    st.builds(m.TxnWrite, st.integers(0, 9), st.binary(), st.none() | st.binary()),
    st.builds(m.TxnPush, *[st.integers(0, 9)] * 3, st.binary()),
    st.builds(EndSession, st.integers(0, 9)),
    st.builds(m.TxnHold, st.integers(0, 9), st.binary(), st.binary(), PAIRS, st.integers(0, 2)),
    st.builds(WatchKeys, EDGES),
    st.builds(MeetEdges, EDGES),
)
RECORDS = st.lists(st.lists(st.tuples(st.integers(0, 3), PARTS), max_size=4), max_size=8)
Row = tuple[int, int, int, Part]  # target, number, index, part


def filled(records: list[list[tuple[int, Part]]]) -> tuple[Outbox, list[Row]]:
    outbox, rows = Outbox(), list[Row]()
    for number, parts in enumerate(records, start=1):
        for index, (target, part) in enumerate(parts):
            outbox.add(target, number, index, part)
            rows.append((target, number, index, part))
    return outbox, rows


def told(outbox: Outbox, target: int, safe: int = 1 << 40) -> list[tuple[int, int, Part]]:
    packed = outbox.first(target, safe, 1000, 1 << 30)
    return [(each.number, each.index, read_part(each)) for each in packed]


@given(RECORDS, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4))))
def test_it_is_what_was_added_and_not_delivered(
    records: list[list[tuple[int, Part]]], confirmed: list[tuple[int, int, int]]
):
    outbox, rows = filled(records)
    for target, number, index in confirmed:
        outbox.delivered(target, number, index)
        rows = [row for row in rows if row[0] != target or row[1:3] > (number, index)]
    again = Outbox.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(outbox.snapshot())))
    for each in (outbox, again):
        assert each.parts == len(rows)
        assert set(each.targets()) == {row[0] for row in rows}
        for target in range(4):
            assert told(each, target) == [row[1:] for row in rows if row[0] == target]
    assert again.bytes == outbox.bytes
    for target in range(4):
        outbox.delivered(target, 1 << 40, 0)
    assert outbox.parts == outbox.bytes == 0
    assert outbox.targets() == []


@given(RECORDS, st.integers(0, 9))
def test_what_is_not_committed_is_not_told(records: list[list[tuple[int, Part]]], safe: int):
    outbox, rows = filled(records)
    for target in range(4):
        wanted = [row[1:] for row in rows if row[0] == target and row[1] <= safe]
        assert told(outbox, target, safe) == wanted


def test_a_message_has_an_end_and_one_part_at_least():
    outbox = Outbox()
    for number in range(1, 11):
        outbox.add(0, number, 0, m.TxnPush(1, 0, 0, bytes(1000)))
    assert len(outbox.first(0, 99, 4, 1 << 20)) == 4
    assert len(outbox.first(0, 99, 100, 3700)) == 3
    assert len(outbox.first(0, 99, 100, 1)) == 1


def test_it_takes_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_OUTSTANDING_PARTS", 3)
    outbox = Outbox()
    for number in range(1, 4):
        outbox.has_room()
        outbox.add(0, number, 0, EndSession(1))
    with pytest.raises(LimitError):
        outbox.has_room()
    outbox.delivered(0, 1, 0)
    outbox.has_room()


@pytest.mark.parametrize("packed", [Packed(1, 0, 99, b""), Packed(1, 0, 0, b"\xc1")])
def test_what_is_no_part_is_refused(packed: Packed):
    with pytest.raises(ProtocolError):
        read_part(packed)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3))))
def test_a_target_knows_what_it_has_carried_out(done: list[tuple[int, int, int]]):
    shard = Shard(7, {})
    last: dict[int, tuple[int, int]] = {}
    for home, number, index in done:
        forward = Forward(home, index, number)
        assert shard.was_forwarded(forward) == ((number, index) <= last.get(home, (0, -1)))
        if not shard.was_forwarded(forward):
            shard.carried_out(forward)
            last[home] = (number, index)
    again = Shard(7, {})
    again.load(msgspec.msgpack.decode(msgspec.msgpack.encode(shard.snapshot())))
    assert again.forwarded == last


@given(st.integers(0, 0xFFFF), st.integers(1, (1 << 46) - 1))
def test_an_id_of_a_session_names_its_home(shard: int, number: int):
    assert home_of(session_id(shard, number)) == shard
    assert home_of(number) is None
