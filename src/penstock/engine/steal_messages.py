"""What nodes say to each other about messages that should move to where consumers wait."""

from __future__ import annotations

import msgspec

from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """All of them are about a queue."""

    stream: int


class Wanted(_Message, frozen=True, tag="W"):
    """To the owner of the list: consumers wait here, and there is nothing for them."""


class Offer(_Message, frozen=True, tag="O"):
    """The answer, now or later: this node has messages."""

    node: int


class Steal(_Message, frozen=True, tag="S"):
    """To that node: move about so many messages to a shard of the sender."""

    shard: int
    messages: int


class Given(_Message, frozen=True, tag="G"):
    """The answer: so many messages are on their way. They may be more, as whole batches move."""

    messages: int


StealMessage = Wanted | Offer | Steal | Given

pack_steal = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StealMessage).decode


def unpack_steal(data: Buffer) -> StealMessage:
    """A message; ProtocolError if it is none."""
    try:
        message: StealMessage = _decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not about messages that move: {error}") from error
    return message
