"""What is said while the whole state of a shard is copied to a follower."""

from __future__ import annotations

import msgspec

from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_FRAME_BYTES


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """All name the shard, the epoch, and the copy, by a number that its sender gave it."""

    shard: int
    epoch: int
    copy: int


class Begin(_Message, frozen=True, tag="B"):
    """Owner to follower: a copy begins; forget what you have. The definitions of this version must
    be known."""

    version: int


class Batches(_Message, frozen=True, tag="D"):
    """Owner to follower: stored batches: where each was, what its record says of it, its bytes."""

    batches: list[tuple[int, bytes, bytes]]


class State(_Message, frozen=True, tag="S"):
    """Owner to follower: the next part of the state."""

    data: bytes


class End(_Message, frozen=True, tag="E"):
    """Owner to follower: that was all. Records that were logged and not committed when the state
    was taken are part of the log, and not yet of the state."""

    records: list[tuple[int, int, int, bytes]]  # kind, epoch, number, meta; the batches were sent


class Taken(_Message, frozen=True, tag="T"):
    """Follower to owner: one more message was taken; send the next."""


class Installed(_Message, frozen=True, tag="I"):
    """Follower to owner: the copy is in place, and durable."""


Part = Begin | Batches | State | End
CopyMessage = Part | Taken | Installed

pack_copy = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CopyMessage).decode


def unpack_copy(data: Buffer) -> CopyMessage:
    """A message; ProtocolError if it is none."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"part of a copy has {len(data):,} bytes")
    try:
        message: CopyMessage = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"not part of a copy: {error}") from error
    return message
