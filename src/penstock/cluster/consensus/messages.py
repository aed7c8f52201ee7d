"""What nodes say to each other, and what they store; as msgpack arrays with a tag."""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

from penstock.cluster.consensus.membership import MAX_NODE, Membership, NodeId, unpack_membership
from penstock.cluster.consensus.settings import (
    MAX_CHUNK_BYTES,
    MAX_ENTRY_BYTES,
    MAX_INDEX,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_ENTRIES,
    MAX_SNAPSHOT_BYTES,
    MAX_TERM,
)
from penstock.errors import PenstockError, ProtocolError
from penstock.wire.buffers import Buffer

Index = Annotated[int, msgspec.Meta(ge=0, le=MAX_INDEX)]
Term = Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SNAPSHOT_BYTES)]
Round = Annotated[int, msgspec.Meta(ge=0, le=MAX_INDEX)]

ENTRY_OVERHEAD_BYTES = 64  # of an entry beside its data, roughly


class EntryKind(enum.IntEnum):
    """What an entry is for."""

    NOOP = 0  # opens a term
    DATA = 1
    MEMBERSHIP = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One place of the log."""

    index: Index
    term: Term
    kind: EntryKind
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_ENTRY_BYTES)] = b""

    @property
    def cost_bytes(self) -> int:
        """What it takes on the wire and in memory."""
        return ENTRY_OVERHEAD_BYTES + len(self.data)


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after the entry at `index`, as the shell packed it."""

    index: Index
    term: Term
    membership: Membership
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What a node must never forget. Vote 0: for nobody in this term."""

    term: Term = 0
    vote: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODE)] = 0


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    source: NodeId
    to: NodeId
    term: Term


class VoteRequest(_Message, frozen=True, tag="V"):
    """`pre`: would you, in this term? Nothing changes. `transfer`: the leader asked for it."""

    last_index: Index
    last_term: Term
    pre: bool = False
    transfer: bool = False


class VoteAnswer(_Message, frozen=True, tag="v"):
    """A granted `pre` has the term that was asked about; all others the term of the answerer."""

    granted: bool
    pre: bool = False


class Append(_Message, frozen=True, tag="A"):
    """Entries that follow `previous_index`; none: is your log the same up to there?"""

    previous_index: Index
    previous_term: Term
    commit: Index
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_MESSAGE_ENTRIES)] = ()


class AppendAnswer(_Message, frozen=True, tag="a"):
    """The log is stored, and the leader's, through `index`. Rejected: it differs at `index`, and
    the hint is the last place that may be the same."""

    index: Index
    rejected: bool = False
    hint_index: Index = 0
    hint_term: Term = 0


class Heartbeat(_Message, frozen=True, tag="H"):
    """The leader is there. `commit` never lies above what the receiver has acknowledged."""

    commit: Index
    round: Round


class HeartbeatAnswer(_Message, frozen=True, tag="h"):
    """In round `round` of its heartbeats the sender still was the leader."""

    round: Round


class SnapshotChunk(_Message, frozen=True, tag="S"):
    """Bytes of a snapshot from `offset`. The whole is answered by AppendAnswer, once stored."""

    index: Index
    snapshot_term: Term
    membership: Membership
    size: Size
    offset: Size
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_CHUNK_BYTES)]


class SnapshotAnswer(_Message, frozen=True, tag="s"):
    """Of the snapshot at `index`, the bytes from `offset` are missing."""

    index: Index
    offset: Size


class TimeoutNow(_Message, frozen=True, tag="T"):
    """From the leader: become it."""


FromLeader = Append | Heartbeat | SnapshotChunk
Message: TypeAlias = (
    VoteRequest
    | VoteAnswer
    | Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | SnapshotChunk
    | SnapshotAnswer
    | TimeoutNow
)

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def decode(data: Buffer) -> Message:
    """A message that is whole in itself, within all limits; ProtocolError otherwise."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a consensus message of {len(data):,} bytes; too large")
    try:
        message: Message = _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"not a consensus message: {error}") from error
    check(message)
    return message


def check(message: Message) -> None:
    """ProtocolError if a message contradicts itself, whatever the state of the receiver."""
    if message.source == message.to:
        raise ProtocolError(f"node {message.source} sent a message to itself")
    if message.term == 0:
        raise ProtocolError("a message of term 0: nobody can have sent it")
    if isinstance(message, Append):
        _check_entries(message)
    elif isinstance(message, SnapshotChunk):
        _check_chunk(message)
    elif isinstance(message, VoteRequest) and message.last_term >= message.term:
        raise ProtocolError("a candidate's log is of its own term or newer")


def _check_entries(message: Append) -> None:
    index, term = message.previous_index, message.previous_term
    if (index == 0) != (term == 0):
        raise ProtocolError(f"no entry has index {index} and term {term}")
    for entry in message.entries:
        index += 1
        if entry.index != index:
            raise ProtocolError(f"entry {entry.index} stands where {index} should")
        if not max(term, 1) <= entry.term:
            raise ProtocolError(f"entry {index} of term {entry.term} follows one of term {term}")
        if entry.kind is EntryKind.MEMBERSHIP:
            unpack_membership(entry.data)
        term = entry.term
    if term > message.term:
        raise ProtocolError(f"an entry of term {term} in a message of term {message.term}")


def _check_chunk(message: SnapshotChunk) -> None:
    end = message.offset + len(message.data)
    if end > message.size or (not message.data and message.size):
        raise ProtocolError(f"bytes {message.offset} to {end} of a snapshot of {message.size}")
    if not 1 <= message.snapshot_term <= message.term or message.index == 0:
        raise ProtocolError("a snapshot of a term or place that cannot be")
    try:
        message.membership.check()
    except PenstockError as error:
        raise ProtocolError(f"a snapshot with a wrong membership: {error.message}") from error
    if not message.membership.voters:
        raise ProtocolError("a snapshot with a membership without voters")
