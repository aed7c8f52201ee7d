"""What is said while a damaged batch is fetched from another replica."""

from __future__ import annotations

import msgspec

from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_FRAME_BYTES


class Wanted(msgspec.Struct, frozen=True, array_like=True, tag="W", forbid_unknown_fields=True):
    """Send me this batch. When it arrived and how many positions it has tell it from another that
    an owner without followers may have put in the same place."""

    shard: int
    stream: int
    partition: int
    base: int
    span: int
    arrived_us: int


class Held(msgspec.Struct, frozen=True, array_like=True, tag="H", forbid_unknown_fields=True):
    """The batch that was wanted; empty if it is not here, cannot be read either, or not now."""

    wanted: Wanted
    payload: bytes


RepairMessage = Wanted | Held

pack_repair = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RepairMessage).decode


def unpack_repair(data: Buffer) -> RepairMessage:
    """A message; ProtocolError if it is none."""
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a batch of another replica has {len(data):,} bytes")
    try:
        message: RepairMessage = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"neither a question for a batch nor an answer: {error}") from error
    return message
