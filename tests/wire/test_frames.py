"""Frames: cutting a stream, errors on the wire, and calls that cannot be read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.consumers.calls import HandlerError
from penstock.tasks.errors import TaskError
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.frames import FRAME_BYTES, LARGE_BYTES, SettleItem, Splitter, Verb
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_SETTLEMENTS


def cut(
    stream: bytes, sizes: list[int], splitter: Splitter, shares: bool = False
) -> list[bytes]:
    """Feeds a stream in pieces of these sizes, as the node's server does it."""
    found: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        turn += 1
        place = splitter.buffer()
        if place is None:
            piece = stream[at : at + size]
            data = memoryview(bytearray(piece))
            views = splitter.views(data) if shares else None
            found += map(bytes, splitter.feed(data) if views is None else views)
            at += len(piece)
            continue
        count = min(size, len(place), len(stream) - at)
        place[:count] = stream[at : at + count]
        at += count
        whole = splitter.filled(count)
        if whole is not None:
            found.append(bytes(whole))
    return found


@given(
    bodies=st.lists(st.binary(max_size=60), max_size=8),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_splitter_finds_every_frame(bodies: list[bytes], sizes: list[int]) -> None:
    whole = [frames.frame(Verb.CALL, n, 0, body) for n, body in enumerate(bodies)]
    splitter = Splitter()
    assert cut(b"".join(whole), sizes, splitter) == whole
    assert splitter.buffer() is None


@given(
    sizes=st.lists(st.sampled_from([20, LARGE_BYTES - 1, LARGE_BYTES, 40_000]), max_size=8),
    pieces=st.lists(st.integers(1, 90_000), min_size=1, max_size=6),
)
def test_large_frames_are_found_where_they_lie(sizes: list[int], pieces: list[int]) -> None:
    sent = [
        frames.frame(Verb.PUSH, number, 0, bytes([number]) * (size - FRAME_BYTES))
        for number, size in enumerate(sizes)
    ]
    pieces.append(50_000)  # so that it ends
    assert cut(b"".join(sent), pieces, Splitter(), shares=True) == sent


def test_only_what_is_full_of_large_frames_is_shared() -> None:
    large = frames.frame(Verb.PUSH, 1, 0, bytes(LARGE_BYTES))
    data = memoryview(bytearray(large + large + large[:100]))
    splitter = Splitter()
    first, second = splitter.views(data) or []
    assert first.obj is second.obj is data.obj
    rest = splitter.buffer()
    assert rest is not None
    assert len(rest) == len(large) - 100
    for other in (b"", large[:100], large + frames.frame(Verb.CREDIT, 2)):
        splitter = Splitter()
        assert splitter.views(memoryview(bytearray(other))) is None
        assert splitter.buffer() is None
    splitter.feed(memoryview(b"\x10"))
    assert splitter.views(data) is None



@given(
    length=st.integers(0, FRAME_BYTES - 1) | st.integers(1001, 0xFFFFFFFF),
    before=st.integers(0, 2), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)  # fmt: skip
def test_impossible_lengths_are_refused(length: int, before: int, sizes: list[int]) -> None:
    stream = frames.frame(Verb.CALL, 1) * before + length.to_bytes(4, "little")
    with pytest.raises(errors.ProtocolError):
        cut(stream, sizes, Splitter(limit=1000))


def test_the_largest_frame_is_one_and_a_larger_one_is_none() -> None:
    head = frames.frame_head(Verb.PUSH, 1, 0, MAX_FRAME_BYTES - FRAME_BYTES)
    splitter = Splitter()
    assert splitter.feed(memoryview(head)) == []
    place = splitter.buffer()
    assert place is not None
    assert len(place) == MAX_FRAME_BYTES - FRAME_BYTES
    with pytest.raises(errors.ProtocolError):
        Splitter().feed(memoryview((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))


@st.composite
def settlements(draw: Any) -> SettleItem:
    count = draw(st.integers(1, 130))
    mask = draw(st.just(0) | st.integers(1, (1 << count) - 1))
    return SettleItem(draw(st.integers(1, 4)), draw(st.integers(0, 9)), count, 1, 2, 3, mask)


@given(items=st.lists(settlements(), max_size=5), cut_off=st.integers(1, 30), more=st.binary())
def test_settlements_travel(items: list[SettleItem], cut_off: int, more: bytes) -> None:
    body = frames.pack_settle(7, items)
    assert frames.read_settle(memoryview(body)) == (7, items)
    for hostile in (body[:-cut_off], body + more + b"x"):
        with pytest.raises(errors.ProtocolError):
            frames.read_settle(memoryview(hostile))


def test_settlements_of_one_frame_are_bounded() -> None:
    item = SettleItem(1, 0, 1, 1, 2, 3)
    most = frames.pack_settle(7, [item] * MAX_SETTLEMENTS)
    assert len(frames.read_settle(memoryview(most))[1]) == MAX_SETTLEMENTS
    more = frames.pack_settle(7, [item] * (MAX_SETTLEMENTS + 1))
    with pytest.raises(errors.TooLargeError, match="65,536"):
        frames.read_settle(memoryview(more))


def all_errors(root: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [root, *(error for child in root.__subclasses__() for error in all_errors(child))]


def test_no_two_errors_have_one_code() -> None:
    known = all_errors(errors.PenstockError)
    assert {HandlerError, TaskError} <= set(known)  # also those of layers above
    codes = [error.code for error in known]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("error", all_errors(errors.PenstockError))
def test_errors_travel(error: type[errors.PenstockError]) -> None:
    sent = frames.error_frame(Verb.POP, 3, error("what happened", advice="what to do"))
    came = frames.read_error(sent[FRAME_BYTES:])
    assert type(came) is error
    assert (came.message, came.hint) == ("what happened", "what to do")


@given(body=st.binary(max_size=40))
def test_an_error_that_cannot_be_read_is_one_too(body: bytes) -> None:
    assert isinstance(frames.read_error(body), errors.PenstockError)


@given(body=st.binary(max_size=60))
def test_calls_that_cannot_be_read(body: bytes) -> None:
    try:
        m.read_request(body)
    except errors.ProtocolError:
        return


@pytest.mark.parametrize(
    "call",
    [
        {"type": "Nothing"},
        {"type": "Get", "stream": 1},
        {"type": "Get", "stream": "1", "key": b""},
        {"type": "Get", "stream": 1, "key": b"", "more": 1},
        [1, 2],
        7,
    ],
)
def test_calls_that_are_none(call: Any) -> None:
    with pytest.raises(errors.ProtocolError):
        m.read_request(msgspec.msgpack.encode(call))


@pytest.mark.parametrize("text", [b"\xa1\xff", b"\xa2\xc3\x28"])
def test_names_that_are_not_utf8(text: bytes) -> None:
    packed = m.pack(m.Delete("queue", "x")).replace(b"\xa1x", text)
    with pytest.raises(errors.ProtocolError):
        m.read_request(packed)


def test_deep_nesting_is_refused() -> None:
    packed = m.pack(m.Open("queue", "q", options={"a": 0}))
    deep = packed.replace(b"\xa1a\x00", b"\xa1a" + b"\x91" * 100_000 + b"\x00")
    with pytest.raises(errors.ProtocolError):
        m.read_request(deep)
