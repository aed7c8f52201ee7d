"""Whatever a peer sends: ProtocolError, or a state that still keeps every promise of the node."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.consensus.membership import Membership, pack_membership
from penstock.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
    decode,
    encode,
)
from penstock.cluster.consensus.raft import Raft
from penstock.cluster.consensus.settings import MAX_INDEX, MAX_TERM_JUMP, Settings
from penstock.cluster.consensus.state import Role
from penstock.errors import PenstockError, ProtocolError

SETTINGS = Settings(max_batch_entries=4, keep_entries=0, chunk_bytes=4)
NODES = st.sampled_from([1, 2, 3, 4, 99])
TERMS = st.sampled_from([1, 2, 3, 4, 5, 9, MAX_TERM_JUMP, MAX_INDEX])
INDEXES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 100, MAX_INDEX])
SIZES = st.integers(0, 9)
MEMBERS = st.sampled_from(
    [Membership((1, 2, 3)), Membership((1, 2), (3,)), Membership(), Membership((2, 2)),
     Membership(tuple(range(1, 8)))]
)  # fmt: skip


@st.composite
def entries(draw: Any, after: int) -> tuple[Entry, ...]:
    count = draw(st.integers(0, 4))
    first = after + 1 if draw(st.booleans()) else draw(INDEXES)
    found = []
    for index in range(first, min(first + count, MAX_INDEX)):
        kind = draw(st.sampled_from(EntryKind))
        data = pack_membership(draw(MEMBERS)) if kind is EntryKind.MEMBERSHIP else b"x"
        found.append(Entry(index, draw(st.integers(0, 5)), kind, data))
    return tuple(found)


@st.composite
def messages(draw: Any) -> Message:
    head = (draw(st.sampled_from([2, 3, 4, 1])), draw(st.sampled_from([1, 1, 1, 2])), draw(TERMS))
    kind = draw(st.integers(0, 8))
    if kind == 0:
        return VoteRequest(*head, draw(INDEXES), draw(TERMS), draw(st.booleans()), True)
    if kind == 1:
        return VoteAnswer(*head, draw(st.booleans()), draw(st.booleans()))
    if kind == 2:
        previous = draw(INDEXES)
        return Append(
            *head, previous, draw(st.integers(0, 5)), draw(INDEXES), draw(entries(previous))
        )
    if kind == 3:
        return AppendAnswer(*head, draw(INDEXES), draw(st.booleans()), draw(INDEXES), draw(TERMS))
    if kind == 4:
        return Heartbeat(*head, draw(INDEXES), draw(INDEXES))
    if kind == 5:
        return HeartbeatAnswer(*head, draw(INDEXES))
    if kind == 6:
        data = bytes(draw(SIZES))
        place = (draw(INDEXES), draw(st.integers(0, 5)), draw(MEMBERS))
        return SnapshotChunk(*head, *place, draw(SIZES), draw(SIZES), data)
    if kind == 7:
        return SnapshotAnswer(*head, draw(INDEXES), draw(SIZES))
    return TimeoutNow(*head)


class Witness:
    """One node that syncs at once, and a memory of what it promised."""

    def __init__(self, leads: bool) -> None:
        self.raft = Raft(1, Membership((1, 2, 3)), seed=1, now_us=0, settings=SETTINGS)
        self.now_us = 0
        self.committed: list[tuple[int, int]] = []
        self.term, self.votes = 0, dict[int, int]()
        noop = Entry(1, 1, EntryKind.NOOP)
        self.tell(Append(2, 1, 1, 0, 0, 2, (noop, Entry(2, 1, EntryKind.DATA, b"a"))))
        if leads:
            self.pass_us(3_000_000)
            for pre in (True, False):
                self.tell(VoteAnswer(3, 1, 2, True, pre))
            assert self.raft.role is Role.LEADER
            self.raft.propose(b"b", self.now_us)
            self.look()

    def tell(self, message: Message) -> None:
        with suppress(ProtocolError):
            self.raft.step(decode(encode(message)), self.now_us)
        self.look()

    def pass_us(self, after_us: int) -> None:
        self.now_us += after_us
        self.raft.tick(self.now_us)
        self.look()

    def look(self) -> None:
        raft, log = self.raft, self.raft._state.log
        while (ready := raft.take_ready()) is not None:
            if ready.hard_state is not None:
                assert ready.hard_state.term >= self.term
                self.term = ready.hard_state.term
                vote = ready.hard_state.vote
                assert self.votes.setdefault(self.term, vote) in (0, vote)
                self.votes[self.term] = vote
            raft.persisted(ready.number, self.now_us)
            raft.applied(log.given)
        places = [(i, t) for i in range(1, log.committed + 1) if (t := log.term_at(i)) is not None]
        for index, term in self.committed:
            assert log.term_at(index) in (term, None), "a committed entry was replaced"
        self.committed = places
        held = log.between(log.start_index + 1, log.last_index)
        assert [e.index for e in held] == list(range(log.start_index + 1, log.last_index + 1))
        terms = [log.start_term, *(entry.term for entry in held)]
        assert terms == sorted(terms)
        assert terms[-1] <= raft.term
        assert log.applied <= log.given <= log.committed <= log.last_index
        assert log.cost_bytes == sum(entry.cost_bytes for entry in held)


@settings(max_examples=300, deadline=None)
@given(leads=st.booleans(), stream=st.lists(messages(), max_size=12), pause=st.integers(0, 2))
def test_no_message_breaks_a_node(leads: bool, stream: list[Message], pause: int) -> None:
    witness = Witness(leads)
    for message in stream:
        witness.tell(message)
        witness.pass_us(pause * 600_000)
    # It still takes part: the leader of a later term is followed.
    term = witness.raft.term + 1
    witness.tell(Heartbeat(3, 1, term, 0, 1))
    assert (witness.raft.leader, witness.raft.term) == (3, term)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_no_bytes_are_anything_but_a_message_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        decode(data)


@given(message=messages())
def test_what_decodes_is_what_was_encoded(message: Message) -> None:
    with suppress(ProtocolError):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "body",
    [
        ["H", 2, 1, -1, 0, 0],
        ["H", 0, 1, 1, 0, 0],
        ["H", 2, 1, 1 << 63, 0, 0],
        ["H", 1, 1, 1, 0, 0],
        ["a", 2, 1, 1, MAX_INDEX + 1],
        ["A", 2, 1, 1, 0, 0, 0, [[1, 1, 7, b""]]],
        ["A", 2, 1, 1, 0, 0, 0, [[1, 1, 1, bytes((1 << 20) + 1)]]],
        ["A", 2, 1, 1, 0, 0, 0, [[2, 1, 1, b""]]],
        ["A", 2, 1, 1, 0, 0, 0, [[1, 2, 1, b""]]],
        ["A", 2, 1, 1, 0, 0, 0, [[1, 1, 2, b"no"]]],
        ["S", 2, 1, 1, 1, 1, [[1], []], 4, 2, b"abc"],
        ["Z", 2, 1, 1],
        {"H": 1},
    ],
)
def test_limits_are_checked(body: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(msgspec.msgpack.encode(body))


def test_a_wild_term_is_refused() -> None:
    witness = Witness(leads=False)
    with pytest.raises(ProtocolError):
        witness.raft.step(Heartbeat(2, 1, MAX_TERM_JUMP + 5, 0, 0), 0)
    with pytest.raises(PenstockError):
        witness.raft.propose(b"x", 0)
