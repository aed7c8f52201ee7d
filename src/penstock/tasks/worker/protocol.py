"""What a puller and its executor processes say to each other: frames of a length and msgpack."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import msgspec

from penstock.errors import ProtocolError
from penstock.tasks.blobs.carrier import GetPiece, Piece, PutPiece
from penstock.tasks.worker.jobs import Ended
from penstock.wire.buffers import Buffer

MAX_FRAME_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")
T = TypeVar("T")


class Work(NamedTuple):
    """One job for an executor."""

    number: int
    packed: bytes
    attempt: int
    popped_us: int
    parents: list[bytes]


class _Message(msgspec.Struct, tag=True, array_like=True):
    """Base of messages."""


class Setup(_Message):
    """First of all: what to import, which packages undecorated functions may be of, and who it is.
    The key never stands on a command line."""

    modules: list[str]
    allowed: list[str]
    worker: str
    pickle_key: bytes | None = None
    directory: str = ""
    """Where very large values are kept as files; empty: nowhere."""


class Run(_Message):
    """Run these, in this order, after those that came before."""

    jobs: list[Work]


class Return(_Message):
    """Give back so many that are not begun, the last ones. Answered by Returned, always."""

    jobs: int


class Ready(_Message):
    """The modules are imported. Functions with a rate: starts, and in how many seconds; and the
    names of all that are declared."""

    rates: dict[str, tuple[float, float]]
    functions: list[str] = []


class Broken(_Message):
    """The modules cannot be imported, and why; the executor ends."""

    text: str


class Results(_Message):
    """Attempts that are over."""

    ended: list[Ended]


class Returned(_Message):
    """Jobs that were not begun, and will not be."""

    numbers: list[int]


ToExecutor = Setup | Run | Return | Piece
ToPuller = Ready | Broken | Results | Returned | PutPiece | GetPiece
_encode = msgspec.msgpack.Encoder().encode


def pack(message: msgspec.Struct) -> bytes:
    """A message as a frame."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[T]):
    """Messages out of a stream of bytes, whatever pieces it comes in."""

    def __init__(self, kind: type[T] | object) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> Iterator[T]:
        """The messages that are complete now; ProtocolError if the bytes are none."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length:,} bytes between puller and executor")
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            body = bytes(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
            try:
                message: T = self._decode(body)
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"a message that cannot be read: {error}") from error
            yield message
        del buffer[:at]
