"""Joining acks into runs, buffering, and refusals."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.delivery import Granted
from penstock.client.messages import LeasedMessage, Refusal
from penstock.client.requests import Pending
from penstock.client.settle import (
    FLUSH_AT,
    Settler,
    SettleRequest,
    flush_settler,
    settle,
    started,
)
from penstock.client.settle_items import ack_items, join_runs
from penstock.client.steps import Finish, Start, Steps
from penstock.errors import ClosedError, DeadlineError, LeaseLostError, LimitError, ProtocolError
from penstock.wire.batch import Batch, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    REFUSED,
    SETTLE_HEAD,
    Flag,
    GrantHead,
    Settle,
    SettleItem,
    Verb,
    frame,
    read_settle,
)

ROWS = 40


class Outbox:
    """Stands for a shell: keeps what the settler wants sent."""

    def __init__(self) -> None:
        self.settler = Settler(9)
        self.settler.send = self.sent
        self.settler.attend = self.attend
        self.requests: list[SettleRequest] = []
        self.attended = 0

    def sent(self, request: SettleRequest) -> None:
        self.requests.append(request)

    def attend(self, settler: Settler) -> None:
        settler.attended = True
        self.attended += 1


def granted(settler: Settler, grant: int, shard: int = 1, base: int = 100) -> Granted:
    buffer = encode_batch([b"v"] * ROWS, timestamp_us=1)
    stamp(buffer, base, 0, 1)
    head = GrantHead(grant, base, ROWS, shard, 1, len(buffer))
    return Granted(head, Batch.parse(buffer), settler)


def message(part: Granted, row: int) -> LeasedMessage:
    return LeasedMessage(b"v", part.positions[row], part)


def covered(items: Iterable[SettleItem]) -> list[tuple[int, int, int]]:
    return [
        (item.shard, item.grant, item.position + each)
        for item in items
        for each in range(item.count)
        if not item.mask or item.mask >> each & 1
    ]


def runs_of(tokens: set[tuple[int, int, int]]) -> Counter[tuple[int, int]]:
    """How many runs of neighbours every grant has."""
    starts = (token for token in tokens if (token[0], token[1], token[2] - 1) not in tokens)
    return Counter((shard, grant) for shard, grant, _ in starts)


def fewest(tokens: set[tuple[int, int, int]]) -> int:
    """Runs as they are, or one mask for three or more of a grant."""
    return sum(count if count < 3 else 1 for count in runs_of(tokens).values())


TOKENS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, ROWS - 1)), unique=True
)


@given(TOKENS)
def test_acks_become_as_few_runs_as_possible(tokens):
    settler = Settler(1)
    parts = {
        (shard, grant): granted(settler, grant, shard)
        for shard in range(3)
        for grant in range(1, 4)
    }
    items = ack_items([message(parts[shard, grant], row) for shard, grant, row in tokens])
    expected = {(shard, grant, 100 + row) for shard, grant, row in tokens}
    assert sorted(covered(items)) == sorted(expected)
    assert len(items) == fewest(expected)
    assert all(item.op == Settle.ACK and item.arg == 0 for item in items)


@given(TOKENS)
def test_joining_items_keeps_what_they_cover(tokens):
    single = [SettleItem(Settle.NACK, shard, 1, grant, at, 7) for shard, grant, at in tokens]
    joined = join_runs(single)
    assert sorted(covered(joined)) == sorted(tokens)
    assert len(joined) == fewest(set(tokens))
    assert all(item.op == Settle.NACK and item.arg == 7 for item in joined)


@given(st.lists(st.integers(0, 100), unique=True, min_size=1))
def test_a_cut_batch_is_settled_position_by_position(positions):
    settler = Settler(1)
    buffer = encode_batch([b"v"] * 101, timestamp_us=1)
    stamp(buffer, 500, 0, 1)
    rows = sorted(positions)
    cut = Batch.parse(Batch.parse(buffer).take(np.array(rows, np.intp)))
    part = Granted(GrantHead(3, 500, 101, 2, 1, len(cut.buffer)), cut, settler)
    expected = {(2, 3, 500 + row) for row in rows}
    assert set(covered(part.items(Settle.ACK))) == expected
    assert len(part.items(Settle.ACK)) == runs_of(expected).total()
    assert [part.row(500 + row) for row in rows] == list(range(len(rows)))


def body_of(request: SettleRequest) -> tuple[tuple[int, int], list[SettleItem]]:
    body = b"".join(request.parts())
    _, items = read_settle(memoryview(body))
    return SETTLE_HEAD.unpack_from(body), items


def test_acks_are_sent_when_there_are_many():
    outbox = Outbox()
    parts = [granted(outbox.settler, grant) for grant in range(1, 2 + FLUSH_AT // ROWS)]
    for at in range(FLUSH_AT):
        outbox.settler.acks.append(message(parts[at // ROWS], at % ROWS))
        outbox.settler.due()
        assert bool(outbox.requests) == (at == FLUSH_AT - 1)
    head, items = body_of(outbox.requests[0])
    assert head == (9, FLUSH_AT // ROWS)
    assert sum(item.count for item in items) == FLUSH_AT
    assert outbox.attended == 1
    assert not outbox.settler.waiting


class LeftAlone(Settler):
    """Whoever attends it is about to leave at the very moment when something is added."""

    def keep(self, items: list[SettleItem]) -> None:
        super().keep(items)
        self.attended = False


@pytest.mark.parametrize("closed", [False, True])
def test_who_adds_while_the_thread_is_about_to_end_is_not_told_that_all_is_closed(closed: bool):
    settler = LeftAlone(9)
    item = granted(settler, 1).item(Settle.ACK, 100, 1)

    def attend(settler: Settler) -> None:
        settler.attended = not closed

    settler.attend = attend
    if closed:
        with pytest.raises(ClosedError):
            settler.add([item])
        assert not settler.busy
    else:
        settler.add([item])
        assert settler.attended
        assert settler.waiting


def test_large_flushes_are_cut_into_several_requests():
    outbox = Outbox()
    items = [SettleItem(Settle.ACK, 0, 1, grant, 0, 0) for grant in range(20_000)]
    requests = outbox.settler.drain(items)
    assert [body_of(request)[0][1] for request in requests] == [8192, 8192, 3616]
    assert [item for request in requests for item in body_of(request)[1]] == items


def answer(accepted: int, refused: list[tuple[int, int]]) -> bytearray:
    rows = b"".join(REFUSED.pack(*row) for row in refused)
    body = COUNT.pack(accepted, len(refused)) + rows
    return bytearray(frame(Verb.SETTLE, 1, Flag.RESPONSE, body))


def test_refusals_are_counted_and_told_later():
    outbox = Outbox()
    heard: list[Refusal] = []
    outbox.settler.on_refused = heard.append
    outbox.settler.keep([SettleItem(Settle.ACK, 4, 3, 8, 50, 0), SettleItem(1, 5, 1, 9, 60, 0)])
    outbox.settler.flush()
    outbox.requests[0].answered(answer(1, [(0, LeaseLostError.code)]))
    assert outbox.settler.refused == 3
    assert heard == []  # never while an answer is read
    outbox.settler.notify()
    ((shard, position, count, error),) = heard
    assert (shard, position, count) == (4, 50, 3)
    assert isinstance(error, LeaseLostError)


def test_in_the_background_every_refusal_is_told_and_no_error_ends_it(caplog):
    outbox = Outbox()
    heard: list[Refusal] = []

    def fail(refusal: Refusal) -> None:
        heard.append(refusal)
        raise LeaseLostError("not my day")

    def away(request: SettleRequest) -> None:
        raise ClosedError("nobody there")

    outbox.settler.on_refused = fail
    outbox.settler.send = away
    outbox.settler.keep([SettleItem(Settle.ACK, 4, 3, 8, 50, 0), SettleItem(1, 5, 1, 9, 60, 0)])
    outbox.settler.flush_unheard()
    assert [refusal.position for refusal in heard] == [50, 60]
    assert caplog.text.count("LeaseLostError: not my day") == 2
    assert not outbox.settler.busy


def test_a_request_that_fails_counts_as_refused():
    outbox = Outbox()
    outbox.settler.keep([SettleItem(Settle.ACK, 4, 3, 8, 50, 0)])
    outbox.settler.flush()
    outbox.requests[0].refused(ClosedError("closed"))
    assert outbox.settler.refused == 3


@pytest.mark.parametrize(
    "hostile",
    [
        bytearray(frame(Verb.SETTLE, 1, 1, b"")),
        bytearray(frame(Verb.SETTLE, 1, 1, COUNT.pack(0, 5))),
        answer(0, [(2, LeaseLostError.code)]),
    ],
)
def test_answers_that_make_no_sense_are_refused(hostile):
    request = SettleRequest(Settler(1), [SettleItem(Settle.ACK, 4, 3, 8, 50, 0)])
    with pytest.raises(ProtocolError):
        request.answered(hostile)


class Contested(deque[Refusal]):
    """Whoever has seen that something is there comes too late for it."""

    def popleft(self) -> Refusal:
        self.clear()
        return super().popleft()


def test_refusals_that_another_thread_tells_of_are_not_missed_here():
    settler = Outbox().settler
    told: list[Refusal] = []
    settler.on_refused = told.append
    settler._notices = Contested()
    settler.note([Refusal(1, 100, 1, LeaseLostError("over"))])
    settler.notify()
    assert (told, settler.refused) == ([], 1)


def test_a_flush_waits_for_what_another_thread_has_taken_and_not_sent() -> None:
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks.append(message(part, 0))
    (taken,) = outbox.settler.drain()  # by that thread
    steps = flush_settler(outbox.settler)
    for _ in range(3):
        fence = next_start(steps)
        assert fence.items == []
        answer_next(steps, fence)
        if _ == 2:
            taken.parts()
            taken.answered(accepted(1))
    with pytest.raises(StopIteration):
        next(steps)
    assert not outbox.settler.busy


def test_a_flush_with_nothing_taken_asks_for_nothing() -> None:
    assert list(flush_settler(Outbox().settler)) == []


def test_what_could_not_be_sent_is_not_waited_for() -> None:
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks.append(message(part, 0))
    steps = flush_settler(outbox.settler)
    next_start(steps)
    with pytest.raises(ClosedError):
        steps.throw(ClosedError("closed"))
    assert not outbox.settler.busy


@pytest.mark.parametrize(
    "trouble", [asyncio.CancelledError(), KeyboardInterrupt(), LimitError("full"), DeadlineError()]
)
def test_what_others_have_left_in_a_call_that_fails_is_sent_later(trouble):
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks.append(message(part, 0))
    steps = settle(outbox.settler, [part.item(Settle.NACK, 101, 1)])
    assert covered(next_start(steps).items) == [(1, 5, 100)]
    with pytest.raises(type(trouble)):
        steps.throw(trouble)
    outbox.settler.flush()
    assert [covered(request.items) for request in outbox.requests] == [[(1, 5, 100)]]


def test_what_shares_a_request_with_a_call_that_fails_is_sent_later_without_it():
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks.append(message(part, 0))
    steps = started(outbox.settler.drain([part.item(Settle.ACK, 110, 1)]))
    assert covered(next_start(steps).items) == [(1, 5, 100), (1, 5, 110)]
    with pytest.raises(LimitError):
        steps.throw(LimitError("full"))
    outbox.settler.flush()
    assert [covered(request.items) for request in outbox.requests] == [[(1, 5, 100)]]


def test_what_others_have_left_in_a_call_counts_as_refused_when_nothing_works_any_more():
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks += [message(part, row) for row in range(3)]
    steps = settle(outbox.settler, [part.item(Settle.ACK, 110, 1)])
    next_start(steps)
    with pytest.raises(ClosedError):
        steps.throw(ClosedError("closed"))
    assert outbox.settler.refused == 3
    assert not outbox.settler.busy


def test_a_flush_waits_for_what_another_call_has_taken_and_given_back() -> None:
    outbox = Outbox()
    part = granted(outbox.settler, 5)
    outbox.settler.acks.append(message(part, 0))
    (taken,) = outbox.settler.drain()
    steps = flush_settler(outbox.settler)
    fence = next_start(steps)
    taken.not_sent(asyncio.CancelledError())
    answer_next(steps, fence)
    again = next_start(steps)
    assert again.items == taken.items
    answer_next(steps, again)
    with pytest.raises(StopIteration):
        next(steps)
    assert not outbox.settler.busy


def next_start(steps: Steps[Any]) -> SettleRequest:
    step = next(steps)
    assert isinstance(step, Start)
    assert isinstance(step.request, SettleRequest)
    return step.request


def answer_next(steps: Steps[Any], request: SettleRequest) -> None:
    """The node accepts what the steps wait for next."""
    request.parts()
    pending = Pending(1, request, [])
    assert isinstance(steps.send(pending), Finish)
    pending.settle(accepted(0), None)


def accepted(count: int) -> bytearray:
    return bytearray(frame(Verb.SETTLE, 1, Flag.RESPONSE, COUNT.pack(count, 0)))
