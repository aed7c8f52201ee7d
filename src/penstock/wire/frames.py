"""Frames: what travels on a connection.

0  u32 length      whole frame, this header included
4  u8  verb
5  u8  flags       RESPONSE, ERROR, RESEND, PATIENT, BEHIND
6  u16 reserved    0
8  u64 request     chosen by the client; a response carries the request's
16 body            packed by verb: hot verbs as structs here, the others as msgpack
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock import errors
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_FRAME_BYTES, MAX_SETTLEMENTS
from penstock.wire.packing import only_frame, unfilled

PROTOCOL_VERSION = 1
MERGED = "merged"  # a feature: the client reads deliveries in which grants share a batch
LISTS = "lists"  # a feature: the node can be asked where messages of a queue are
COMING = "coming"  # a feature: the client may be told that something will come in a moment
MAPS = "maps"  # a feature: the node holds a question for a newer map until there is one
FRAME = struct.Struct("<IBBHQ")
FRAME_BYTES = FRAME.size
VERB_AT = 4  # in a frame
LARGE_BYTES = 16 << 10  # of a frame that need not be copied out of what was received


class Verb(IntEnum):
    """What a frame asks for, or answers."""

    HELLO = 1
    PUSH = 2  # to a queue, or to a partition of a topic
    POP = 3
    SETTLE = 4  # ack, nack, extend
    FETCH = 5  # read a partition by offset
    SUBSCRIBE = 6  # standing pop, with credits
    CREDIT = 7
    DELIVER = 8  # node to client: messages of a subscription
    CALL = 9  # everything else: one of wire.messages
    CANCEL = 10  # a parked request or a subscription
    EVENT = 11  # node to client: a watched entry changed
    PEER = 12  # node to node, on a link; without a body: I am here
    COMING = 13  # node to client: something will come in a moment, or else nothing


class Flag:
    """Frame flags: bits. Plain numbers, an enum costs a microsecond each."""

    RESPONSE: Final = 1
    ERROR: Final = 2
    RESEND: Final = 4
    PATIENT: Final = 8  # of a request: nobody waits for its answer, which may come a little later
    BEHIND: Final = 16  # of a settlement: its answer comes after all that was leased before it


class PushBody(NamedTuple):
    """Before the batch of a push. `extra` bytes of msgpack (PushExtra) stand between."""

    stream: int
    partition: int
    shard: int
    durability: int  # the least wanted; the stream's own if that is higher
    extra: int


class Receipt(NamedTuple):
    """What a push answers: the first offset or position, and how safe it is."""

    base: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    shard: int
    durability: int
    duplicate: int


class PopBody(NamedTuple):
    """A pop, a peek or a subscription (then `messages` is the first credit)."""

    stream: int
    messages: int
    max_bytes: int
    wait_ms: int
    lease_ms: int  # 0: the queue's
    mode: int


class PopMode(IntEnum):
    """What a pop does with the messages it finds.

    The last three look at messages that no pop gets now. Instead of a grant's number they tell
    until when (microseconds since 1970); what is held is so until 1, which no clock shows. A node
    that does not know them answers as for PEEK, with 0 there.
    """

    LEASE = 0
    PEEK = 1
    PEEK_DEAD = 2
    PEEK_DELAYED = 3
    PEEK_LEASED = 4
    PEEK_HELD = 5


class GrantHead(NamedTuple):
    """Before the batches of a delivery: which lease covers which positions of one batch.

    `shared` grants, this one and those after it, have one merged batch (see `wire.merge`); the
    others' `length` is 0. 0: the batch is this grant's alone.
    """

    grant: int
    position: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    shard: int
    deliveries: int
    length: int  # bytes of the batch that belongs to it
    shared: int = 0


class SettleItem(NamedTuple):
    """One change to leased messages: positions `position` to `position + count - 1` of a grant.

    With a mask, only those whose bit is set: messages that were settled out of order are one item.
    """

    op: int
    shard: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    grant: int
    position: int
    arg: int  # nack: delay in ms; extend: lease in ms
    mask: int = 0

    @property
    def messages(self) -> int:
        """How many messages it names."""
        return self.mask.bit_count() if self.mask else self.count


class Settle(IntEnum):
    """What becomes of a leased message."""

    ACK = 1
    NACK = 2
    EXTEND = 3
    DEAD = 4  # give up on it: to the dead letters
    RETURN = 5  # as NACK, for one that nobody has looked at: the delivery does not count


class FetchBody(NamedTuple):
    """Read a partition from an offset."""

    stream: int
    partition: int
    offset: int
    max_bytes: int
    wait_ms: int


class FetchHead(NamedTuple):
    """Before the batches of a fetch: the partition's bounds when it was read."""

    start: int
    end: int
    batches: int


PUSH = struct.Struct("<IIHHI")
RECEIPT = struct.Struct("<QIHBB")
POP = struct.Struct("<IIIIII")
COUNT = struct.Struct("<II")  # how many grants follow, and messages; a pop's with damaged ones
GRANT = struct.Struct("<QQIHHII")
_ONE_GRANT = struct.Struct("<IBBHQ" "II" "QQIHHII")  # a frame, COUNT and GRANT
SETTLE_HEAD = struct.Struct("<II")
SETTLE_ITEM = struct.Struct("<BxHIQQQ")
MASKED = 0x80  # added to the op of an item that a mask follows
REFUSED = struct.Struct("<II")  # index of the item, error code
FETCH = struct.Struct("<IIQII")
FETCH_HEAD = struct.Struct("<QQI4x")
CREDIT = struct.Struct("<I")


class PushExtra(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What only some pushes carry."""

    id: bytes | None = None
    hold: bool = False
    stage: bytes = b""  # invisible, under this stage, until that is published
    stage_ms: int = 0  # so long the stage lasts without another push


class Failure(msgspec.Struct):
    """The body of an error frame."""

    code: int
    message: str
    advice: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def pack_settle(stream: int, items: Sequence[SettleItem]) -> bytes:
    """The body of a SETTLE."""
    parts = [SETTLE_HEAD.pack(stream, len(items))]
    for item in items:
        op, shard, count, grant, position, arg, mask = item
        if mask:
            parts.append(SETTLE_ITEM.pack(op | MASKED, shard, count, grant, position, arg))
            parts.append(mask.to_bytes(mask_bytes(count), "little"))
        else:
            parts.append(SETTLE_ITEM.pack(op, shard, count, grant, position, arg))
    return b"".join(parts)


def read_settle(body: memoryview) -> tuple[int, list[SettleItem]]:
    """Stream and items of a SETTLE; ProtocolError if the body is not exactly that, TooLargeError if
    they are more than a frame may have."""
    if len(body) < SETTLE_HEAD.size:
        raise errors.ProtocolError(f"a body of {len(body)} bytes is too short")
    stream, count = SETTLE_HEAD.unpack_from(body)
    items: list[SettleItem] = []
    at, end, size = SETTLE_HEAD.size, len(body), SETTLE_ITEM.size
    if at + count * size > end:
        raise errors.ProtocolError(f"{end - at} bytes are not {count} settlements")
    if count > MAX_SETTLEMENTS:
        raise errors.TooLargeError(f"{count:,} settlements; at most {MAX_SETTLEMENTS:,} at a time")
    while at + size <= end and len(items) < count:
        op, shard, span, grant, position, arg = SETTLE_ITEM.unpack_from(body, at)
        at, mask = at + size, 0
        if op & MASKED:
            width = mask_bytes(span)
            mask = int.from_bytes(body[at : at + width], "little")
            op, at = op ^ MASKED, at + width
            if not mask or mask.bit_length() > span:
                raise errors.ProtocolError("the mask of a settlement does not fit it")
        items.append(SettleItem(op, shard, span, grant, position, arg, mask))
    if at != end or len(items) != count:
        raise errors.ProtocolError(f"{end - SETTLE_HEAD.size} bytes are not {count} settlements")
    return stream, items


def mask_bytes(span: int) -> int:
    """Bytes of the mask of `span` positions; a multiple of 8, so that what follows is aligned."""
    return (span + 63) // 64 * 8


def frame(verb: int, request: int, flags: int = 0, body: Buffer = b"") -> bytes:
    """One whole frame."""
    return FRAME.pack(FRAME_BYTES + len(body), verb, flags, 0, request) + body


def frame_head(verb: int, request: int, flags: int, body_bytes: int) -> bytes:
    """The header of a frame whose body is sent separately."""
    return FRAME.pack(FRAME_BYTES + body_bytes, verb, flags, 0, request)


def one_grant(
    verb: int, request: int, flags: int, grant: int, position: int, count: int, shard: int,
    length: int,
) -> bytes:  # fmt: skip
    """What comes before the only batch of a delivery, of so many bytes, for the first time."""
    return _ONE_GRANT.pack(
        _ONE_GRANT.size + length, verb, flags, 0, request, 1, count, grant, position, count, shard,
        1, length, 0,
    )  # fmt: skip


def error_frame(verb: int, request: int, error: errors.PenstockError) -> bytes:
    """The answer to a request that failed."""
    body = _encode(Failure(error.code, error.message, error.hint))
    return frame(verb, request, Flag.RESPONSE | Flag.ERROR, body)


def read_error(body: Buffer) -> errors.PenstockError:
    """The error in the body of an error frame."""
    try:
        failure = _decode_failure(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return errors.ProtocolError(f"an error answer that cannot be read: {error}")
    return errors.from_code(failure.code, failure.message, failure.advice)


def check_length(length: int, limit: int = MAX_FRAME_BYTES) -> int:
    """The length of a frame, or ProtocolError if no frame can have it."""
    if not FRAME_BYTES <= length <= limit:
        raise errors.ProtocolError(f"a frame of {length:,} bytes; allowed are 16 to {limit:,}")
    return length


class Splitter:
    """Cuts a stream of bytes into frames, in place where it can.

    Small frames are copied out of what arrived; the rest of a large one is received straight into
    its own buffer (`buffer`), so that a batch is copied once at most. Memory held is one frame.
    """

    __slots__ = ("_filled", "_frame", "_head", "_limit", "_unfilled")

    def __init__(
        self,
        limit: int = MAX_FRAME_BYTES,
        unfilled: Callable[[int], bytearray] = unfilled,
    ) -> None:
        """`unfilled` makes the buffers of large frames."""
        self._limit = limit
        self._unfilled = unfilled
        self._head = bytearray()  # the start of a frame whose length is not known yet
        self._frame: bytearray | None = None
        self._filled = 0

    def buffer(self) -> memoryview | None:
        """Where the next bytes belong, if a frame is under way; then call `filled`."""
        return None if self._frame is None else memoryview(self._frame)[self._filled :]

    def only(self, data: memoryview) -> bytearray | None:
        """A copy of `data` if it is one small frame, and nothing has come before it that is not
        whole; None if it may be something else, and has to be given to `feed` or `filled`."""
        return None if self._head or self._frame is not None else only_frame(data)

    def filled(self, count: int) -> bytearray | None:
        """`count` bytes came into `buffer()`; the frame, if that completes it."""
        assert self._frame is not None
        self._filled += count
        if self._filled < len(self._frame):
            return None
        whole, self._frame = self._frame, None
        return whole

    def views(self, data: memoryview) -> list[memoryview] | None:
        """As `feed`, if there are only large frames in `data`: they are parts of it, which is
        theirs from then on. None if it is not so; then nothing has changed."""
        if self._head:
            return None
        frames: list[memoryview] = []
        at, end = 0, len(data)
        while end - at >= 4:
            length = check_length(int.from_bytes(data[at : at + 4], "little"), self._limit)
            if length < LARGE_BYTES:
                return None
            if end - at < length:
                break
            frames.append(data[at : at + length])
            at += length
        if not frames:
            return None
        self.feed(data[at:])
        return frames

    def feed(self, data: memoryview) -> list[bytearray]:
        """Whole frames in `data` (and what came before); the rest is kept. Only without `buffer()`.

        ProtocolError if a length is impossible: the connection is beyond repair.
        """
        assert self._frame is None, "the rest of a frame would be taken for frames"
        if (whole := self.only(data)) is not None:
            return [whole]
        frames: list[bytearray] = []
        if self._head:
            data = memoryview(bytes(self._head) + bytes(data))
            self._head.clear()
        at, end = 0, len(data)
        while end - at >= 4:
            length = check_length(int.from_bytes(data[at : at + 4], "little"), self._limit)
            if end - at < length:
                self._frame = self._unfilled(length)
                self._filled = end - at
                self._frame[: self._filled] = data[at:]
                return frames
            frames.append(bytearray(data[at : at + length]))
            at += length
        self._head += data[at:]
        return frames
