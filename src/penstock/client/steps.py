"""Operations as steps: written once, run by both shells.

An operation is a generator. It yields a step, the shell performs it and sends the outcome back in
(or throws the error); what the generator returns is the operation's result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from penstock.client.requests import ANY, Pending, Request, Resend
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.frames import FRAME_BYTES, Verb
from penstock.wire.messages import Request as Call
from penstock.wire.messages import pack

T = TypeVar("T")


class Start(NamedTuple):
    """Send a request and go on; the outcome is a Pending. May wait for a place."""

    request: Request


class Finish(NamedTuple):
    """Wait for the answer of a started request; the outcome is the answer frame."""

    pending: Pending


class FinishAny(NamedTuple):
    """Wait until one of several started requests is done, at most so long; no outcome."""

    pending: list[Pending]
    seconds: float


class Abandon(NamedTuple):
    """Nobody will wait for a started pop or fetch: the node is told; no outcome."""

    pending: Pending


# A Request itself is a step: send it and wait; the outcome is the answer frame.
Step: TypeAlias = Request | Start | Finish | FinishAny | Abandon
Steps: TypeAlias = Generator[Step, Any, T]


def body_of(answer: bytearray) -> memoryview:
    """What follows the frame header; a view on the frame."""
    return memoryview(answer)[FRAME_BYTES:]


def decoder(kind: Any) -> Callable[[Buffer], Any]:
    """Reads an answer of this type; ProtocolError if it is none."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(body: Buffer) -> Any:
        try:
            return decode(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProtocolError(f"an answer that cannot be read: {error}") from error

    return read


def ask(request: Call, read: Callable[[Buffer], T], shard: int = ANY) -> Steps[T]:
    """One cold verb, and its answer decoded. In a cluster, the owner of the shard is asked."""
    answer: bytearray = yield Request(Verb.CALL, [pack(request)], Resend.MARKED, shard=shard)
    return read(body_of(answer))
