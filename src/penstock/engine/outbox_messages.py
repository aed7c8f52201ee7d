"""What nodes say to each other about parts of transactions, and about sessions."""

from __future__ import annotations

import msgspec

from penstock.core.outbox import Packed
from penstock.core.sessions import Binding
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.messages import StagedPart, TxnSettle


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """All but answers about sessions are about a home shard."""


class Forward(_Message, frozen=True, tag="F"):
    """Owner of the home to owner of the target: carry out these parts, in order; all before them
    are confirmed. Definitions of this version must be known."""

    home: int
    target: int
    version: int
    parts: list[Packed]


class Confirmed(_Message, frozen=True, tag="C"):
    """The answer: parts up to this one are carried out, and committed."""

    home: int
    target: int
    number: int
    index: int


class Refused(_Message, frozen=True, tag="R"):
    """The other answer: not here, or not now."""

    home: int
    target: int


class Bind(_Message, frozen=True, tag="B"):
    """Owner of a shard to owner of a session's home: entries of the shard are to be bound to it."""

    home: int
    session: int
    shard: int
    ticket: int


class Bound(_Message, frozen=True, tag="A"):
    """The answer."""

    ticket: int
    answer: Binding


class Secure(_Message, frozen=True, tag="S"):
    """Owner of a transaction's home to owner of a shard: leases must last until acks come. With
    `undo`, they need not any more, and there is no answer."""

    ticket: int
    shard: int
    acks: list[TxnSettle]
    undo: bool


class Secured(_Message, frozen=True, tag="D"):
    """The answer: the code of an error, 0 if there is none, and what it says."""

    ticket: int
    code: int
    message: str


class SecureStages(_Message, frozen=True, tag="G"):
    """Owner of a publication's home to owner of a shard: stages must last until they are published.
    With `undo`, they need not any more, and there is no answer."""

    ticket: int
    shard: int
    stages: list[StagedPart]
    undo: bool


class StagesSecured(_Message, frozen=True, tag="H"):
    """The answer: as Secured."""

    ticket: int
    code: int
    message: str


OutboxMessage = (
    Forward | Confirmed | Refused | Bind | Bound | Secure | Secured | SecureStages | StagesSecured
)

pack_outbox = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OutboxMessage).decode


def unpack_outbox(data: Buffer) -> OutboxMessage:
    """A message; ProtocolError if it is none."""
    try:
        message: OutboxMessage = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not about an outbox: {error}") from error
    return message
