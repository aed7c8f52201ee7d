"""What nodes say to each other about the cluster, apart from consensus itself."""

from __future__ import annotations

import msgspec

from penstock.cluster.consensus.settings import MAX_ENTRY_BYTES, MAX_MESSAGE_BYTES
from penstock.cluster.map import UNREADABLE
from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer

_SLACK_BYTES = 4096  # what wraps the largest message of consensus


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all."""


class Consensus(_Message, frozen=True, tag="c"):
    """A message of the consensus, packed."""

    body: bytes


class Ask(_Message, frozen=True, tag="a"):
    """To the leader: propose this. It is the proposal as it stands in the log."""

    proposal: bytes


class Beat(_Message, frozen=True, tag="b"):
    """To the voters: this node lives."""

    incarnation: int


class Suspect(_Message, frozen=True, tag="s"):
    """To the voters: a node could not be reached."""

    node: int


Message = Consensus | Ask | Beat | Suspect


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """A command in the log, and who waits for what becomes of it. Origin 0: nobody."""

    origin: int
    incarnation: int
    token: int
    command: bytes


pack = msgspec.msgpack.Encoder().encode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_proposal = msgspec.msgpack.Decoder(Proposal).decode


def unpack(data: Buffer) -> Message:
    """A message; ProtocolError if it is none."""
    if len(data) > MAX_MESSAGE_BYTES + _SLACK_BYTES:
        raise ProtocolError(f"a message about the cluster has {len(data):,} bytes")
    try:
        message: Message = _decode_message(data)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message about the cluster: {error}") from error
    if isinstance(message, Ask) and len(message.proposal) > MAX_ENTRY_BYTES:
        raise ProtocolError("a proposal is too large for the log")
    return message


def unpack_proposal(data: Buffer) -> Proposal:
    """A proposal; ProtocolError if it is none."""
    try:
        return _decode_proposal(data)
    except UNREADABLE as error:
        raise ProtocolError(f"not a proposal: {error}") from error
