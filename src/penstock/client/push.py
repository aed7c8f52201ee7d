"""Pushing: one batch as a request, and many values as a pipeline of batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.client.messages import Receipt, Receipts
from penstock.client.producer import Lane
from penstock.client.requests import Pending, Resend
from penstock.client.rows import Headers, PushedRows, Rows
from penstock.client.sequenced import OvertakenError, SequencedRequest, answer_of, sent_again
from penstock.client.steps import Finish, FinishAny, Start, Steps
from penstock.errors import (
    ForgottenError,
    InvalidError,
    PenstockError,
    ProtocolError,
    StaleError,
)
from penstock.wire.buffers import ZEROS, Buffer, pad8
from penstock.wire.durability import Durability
from penstock.wire.frames import FRAME_BYTES, PUSH, RECEIPT, PushExtra, Verb
from penstock.wire.messages import pack
from penstock.wire.plain import one_value

if TYPE_CHECKING:
    from penstock.client.state import TopicState

WINDOW_BATCHES = 64
_WINDOW_BYTES = 32 << 20
_SHARD_BATCHES = 16  # under way to one shard: the node recognises no more of them in a resend
_PLACED_ANEW = 25  # times; with the pauses, for a quarter of a minute
_PAUSE_S = 0.05  # before the second time, and so much longer each time
_LABELS = {int(level): level.label for level in Durability}


class Terms(NamedTuple):
    """What holds for every message of a push."""

    durability: int = 0
    due_us: int = 0
    ttl_ms: int = 0
    priority: int = 0
    compression: str = "none"


PLAIN = Terms()


class Place(NamedTuple):
    """Where a batch goes, and under which sequence. `lane` is called when it is sent."""

    stream: int
    partition: int
    shard: int
    lane: Callable[[int], Lane]
    keeps_order: bool = False
    generation: int = 0  # of its topic, when it was chosen
    topic: TopicState | None = None  # who chooses anew, if it has grown since


def now_us() -> int:
    """The wall clock, as batches carry it."""
    return time.time_ns() // 1000


class PushRequest(SequencedRequest):
    """One batch. It is encoded when it is sent, because only then its sequence is known."""

    __slots__ = ("_extra", "_rows", "_terms", "_timestamp_us", "place")

    def __init__(
        self, place: Place, rows: PushedRows, terms: Terms, timestamp_us: int, extra: bytes = b""
    ) -> None:
        super().__init__(Verb.PUSH, [], Resend.MARKED, shard=place.shard)
        self._unsent()
        self.place = place
        self._rows = rows
        self._terms = terms
        self._timestamp_us = timestamp_us
        self._extra = extra

    def parts(self) -> list[Buffer]:
        """Takes the numbers and encodes the batch; if that fails, no number is used up."""
        stream, partition, shard, lane_of = self.place[:4]
        rows, terms = self._rows, self._terms
        lane = self._lane_to_use(lane_of, shard)
        batch = self._plain_batch(lane) or rows.encode(
            self._timestamp_us,
            producer=lane.producer,
            sequence=lane.next,
            instance=lane.instance,
            priority=terms.priority,
            due_us=terms.due_us,
            ttl_ms=terms.ttl_ms,
            compression=terms.compression,
            generation=self.place.generation,
        )
        self._take(lane, rows.messages)
        head = PUSH.pack(stream, partition, shard, terms.durability, len(self._extra))
        return [head + self._extra, batch]

    def _plain_batch(self, lane: Lane) -> bytearray | None:
        """The batch if it is a small message about which nothing is said, in one step."""
        rows, place = self._rows, self.place
        if self._terms is not PLAIN or place.generation or not isinstance(rows, Rows):
            return None
        values, keys, headers, times = rows
        alone = keys is None and headers is None and times is None
        if not alone or len(values) != 1:
            return None
        return one_value(values[0], self._timestamp_us, lane.producer, lane.next, lane.instance)

    def again(self) -> PushRequest:
        """The same push, to be sent under new numbers."""
        return PushRequest(self.place, self._rows, self._terms, self._timestamp_us, self._extra)

    def check_place(self) -> Steps[None]:
        """What it was refused behind may have been placed before its topic grew, and so this: many
        that are under way would be refused in turn, again and again."""
        topic = self.place.topic
        if topic is None:
            return
        if topic._layout.generation <= self.place.generation:
            yield from topic._look(self.place.shard)
        if topic._layout.generation > self.place.generation:
            raise StaleError("the topic has grown; nothing was stored")

    def placed_anew(self) -> list[PushRequest]:
        """The same messages where they belong now: one push for each partition."""
        assert self.place.topic is not None
        spread = self.place.topic._spread(self._rows)
        terms, time_us, extra = self._terms, self._timestamp_us, self._extra
        return [PushRequest(place, rows, terms, time_us, extra) for place, rows in spread]

    def receipt(self, answer: bytearray) -> Receipt:
        """The receipt in an answer; ProtocolError if it is none."""
        if len(answer) != FRAME_BYTES + RECEIPT.size:
            raise ProtocolError("the answer to a push is not a receipt")
        base, count, _, level, duplicate = RECEIPT.unpack_from(answer, FRAME_BYTES)
        label = _LABELS.get(level, "unknown")
        return Receipt(base, count, self.place.shard, label, duplicate != 0, self.place.partition)


def extra_bytes(extra: PushExtra) -> bytes:
    """What stands between the head of a push and its batch; its length is a multiple of 8."""
    packed = pack(extra)
    return len(packed).to_bytes(4, "little") + packed + ZEROS[: pad8(4 + len(packed))]


def push_one(
    place: Place,
    value: bytes,
    key: bytes | None,
    headers: Headers | None,
    timestamp_us: int | None,
    terms: Terms,
    extra: bytes = b"",
) -> Steps[Receipt]:
    """A batch of one message, and its receipt."""
    rows = Rows((value,), None if key is None else (key,), None if headers is None else (headers,))
    time_us = now_us() if timestamp_us is None else timestamp_us
    request = PushRequest(place, rows, terms, time_us, extra)
    try:
        try:
            answer: bytearray = yield request
        except (InvalidError, ForgottenError) as error:
            request, answer = yield from sent_again(request, error)
    except StaleError as error:
        (receipt,) = yield from push_anew(request, error)
        return receipt
    return request.receipt(answer)


def push_anew(request: PushRequest, error: StaleError, tries: int = 0) -> Steps[list[Receipt]]:
    """After a refusal because the topic has grown: nothing was stored, so the messages are placed
    anew and sent, one push after the other; their receipts. `error` if that does not help, or they
    cannot be placed anew.
    """
    topic = request.place.topic
    if topic is None or tries >= _PLACED_ANEW:
        raise error
    yield FinishAny([], _PAUSE_S * tries)
    if topic._layout.generation <= request.place.generation:
        yield from topic._look(request.place.shard)  # its owner should know
    receipts: list[Receipt] = []
    for each in request.placed_anew():
        try:
            answer = yield from answer_of(each)
        except StaleError as again:
            receipts += yield from push_anew(each, again, tries + 1)
        else:
            receipts.append(each.receipt(answer))
    return receipts


def finish_push(pending: Pending, request: PushRequest) -> Steps[list[Receipt]]:
    """The answer to a push that was started. Those behind one that comes too late, because the
    topic has grown, are refused with it: each is placed anew in its turn, before anything else is
    sent."""
    try:
        try:
            answer: bytearray = yield Finish(pending)
        except (InvalidError, ForgottenError) as error:
            request, answer = yield from sent_again(request, error)
    except StaleError as error:
        return (yield from push_anew(request, error))
    return [request.receipt(answer)]


class Pipeline:
    """Pushes under way: bounded in number and bytes; receipts in the order of sending."""

    def __init__(
        self, progress: Callable[[int], None] | None, window: int = WINDOW_BATCHES
    ) -> None:
        self.receipts = Receipts()
        self._progress = progress
        self._window = window
        self._under_way: deque[tuple[Pending, PushRequest, int]] = deque()
        self._bytes = 0
        self._shards: dict[int, int] = {}  # batches under way to each
        self._last: dict[int, PushRequest] = {}  # to each shard, if it keeps an order
        self._generation = 0  # of the topic, for those under way
        self._refused = False  # one of them was, and that was told

    def add(self, request: PushRequest) -> Steps[None]:
        """Sends a batch, after waiting for older ones if the window is full."""
        shard = request.place.shard
        if request.place.generation != self._generation:
            # A key may have another partition now: what is under way must not be overtaken.
            yield from self.drain()
            self._generation = request.place.generation
        while (
            len(self._under_way) >= self._window
            or self._bytes > _WINDOW_BYTES
            or self._shards.get(shard, 0) >= _SHARD_BATCHES
        ):
            yield from self._finish_oldest()
        if request.place.keeps_order:
            request.follows = self._last.get(shard)
            self._last[shard] = request
        try:
            pending: Pending = yield Start(request)
        except OvertakenError:  # what it follows was refused, and must be sent again first
            yield from self.drain()
            request.follows = None
            pending = yield Start(request)
        size = sum(map(len, pending.parts))
        self._under_way.append((pending, request, size))
        self._bytes += size
        self._shards[shard] = self._shards.get(shard, 0) + 1

    def drain(self) -> Steps[Receipts]:
        """Waits for all answers."""
        while self._under_way:
            yield from self._finish_oldest()
        return self.receipts

    def end(self, error: Exception) -> Steps[None]:
        """Nothing more is to be sent because of an error. If that is not what became of one under
        way, all of those are waited for: a note on the error says how many were stored."""
        if self._refused:
            return
        try:
            yield from self.drain()
        except PenstockError as other:
            error.add_note(f"{self.receipts.count:,} messages were stored, then came {other!r}")
        else:
            error.add_note(f"{self.receipts.count:,} messages were stored before, and no others")

    def _finish_oldest(self) -> Steps[None]:
        pending, request, size = self._under_way.popleft()
        self._bytes -= size
        self._shards[request.place.shard] -= 1
        try:
            if pending.done and pending.error is None:  # most are: the shell need not be asked
                receipts = [request.receipt(pending.result())]
            else:
                receipts = yield from finish_push(pending, request)
        except PenstockError as error:
            error.add_note(f"{self.receipts.count:,} messages were stored before this error")
            self._refused = True
            raise
        for receipt in receipts:
            self.receipts.append(receipt)
        if self._progress is not None:
            self._progress(self.receipts.count)
