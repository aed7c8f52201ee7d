"""Records of a shard's log: their kinds, and what stands in them beside a batch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from penstock.core.changes import Given
from penstock.wire.messages import ReservedPart, StagesOf, StreamInfo, Transact


class Kind(IntEnum):
    """What a record says. FORWARDED is added when it carries out part of a transaction."""

    BARRIER = 0  # says nothing; somebody waits for it to be safe
    PUSH = 1  # a batch, to a queue or a partition
    GRANT = 2
    CHANGE = 3
    NOTE = 4  # one of Note
    TRANSACTION = 5
    CONSENSUS = 6  # what the control plane stores; in no shard
    COPY = 7  # a batch of a shard whose whole state is copied from its owner
    RESET = 8  # such a copy begins: what was known of the shard does not count any more
    OUTGOING = 9  # a transaction of a cluster: what concerns other shards is in the outbox
    FORWARDED = 0x80


class PushMeta(NamedTuple):
    """Where a batch belongs, and enough of its header to go on when the batch is damaged."""

    stream: int
    partition: int
    base: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    producer: int
    sequence: int
    instance: int
    held: bool = False
    id: bytes = b""
    waits: bytes = b""  # what a held message waits for: a packed `Waits`


class Forward(NamedTuple):
    """Which part of which transaction a record carries out."""

    home: int
    index: int  # type: ignore[assignment]  # a field, not the method of tuple
    number: int


_PUSH = struct.Struct("<IIQIIQQHBx")
_FORWARD = struct.Struct("<H2xIQ")


def pack_push(meta: PushMeta) -> bytes:
    """The meta of a PUSH record."""
    stream, partition, base, count, producer, sequence, instance, held, key, waits = meta
    return (
        _PUSH.pack(stream, partition, base, count, instance, producer, sequence, len(key), held)
        + key + waits
    )  # fmt: skip


def read_push(meta: bytes) -> PushMeta:
    """The meta of a PUSH record, read."""
    (stream, partition, base, count, instance, producer, sequence, size, held) = _PUSH.unpack_from(
        meta
    )
    end = _PUSH.size + size
    key, waits = meta[_PUSH.size : end], meta[end:]
    return PushMeta(
        stream, partition, base, count, producer, sequence, instance, bool(held), key, waits
    )


def pack_forward(forward: Forward, meta: bytes) -> bytes:
    """The meta of a forwarded record."""
    return _FORWARD.pack(*forward) + meta


def read_forward(meta: bytes) -> tuple[Forward, bytes]:
    """Which part of which transaction, and the meta proper."""
    return Forward(*_FORWARD.unpack_from(meta)), meta[_FORWARD.size :]


class _Note(msgspec.Struct, tag=True, array_like=True):
    """Base of notes: small facts that change a shard's state."""


class Committed(_Note):
    """A group committed an offset, and a state (empty: none) with it."""

    stream: int
    partition: int
    group: str
    offset: int
    state: bytes = b""


class Claimed(_Note):
    """A group member has a partition (or gave it up: no owner). What was given up may be reserved
    for another, as long as the lease says."""

    stream: int
    partition: int
    group: str
    owner: str
    token: int
    lease_us: int
    reserved: str = ""


class Trimmed(_Note):
    """Retention forgot what is before an offset."""

    stream: int
    partition: int
    start: int


class Thinned(_Note):
    """Keep-latest removed rows (a little-endian bit mask) of the batch at `base`."""

    stream: int
    partition: int
    base: int
    mask: bytes


class Written(_Note):
    """An entry of a table. Its version is the record's log number. A producer (0: none) and its
    sequence make a resend of the write harmless."""

    stream: int
    key: bytes
    value: bytes
    expires_us: int = 0
    session: int = 0
    producer: int = 0
    sequence: int = 0
    mark: int = 0


class Removed(_Note):
    """Entries of a table are gone. No keys: a removal found nothing, and used up its number."""

    stream: int
    keys: list[bytes]
    producer: int = 0
    sequence: int = 0


class Registered(_Note):
    """A named producer has a new instance."""

    producer: int
    instance: int


class Forgotten(_Note):
    """The empty part of a queue is forgotten; a later one gives out grants from this number on."""

    stream: int
    first_grant: int


class Defined(_Note):
    """Control: a stream exists, or has other settings."""

    info: StreamInfo


class Deleted(_Note):
    """Control: a stream is gone."""

    stream: int


class SessionBegun(_Note):
    """Control: a session exists."""

    session: int
    ttl_us: int


class SessionEnded(_Note):
    """Control: a session is over."""

    session: int


class Delivered(_Note):
    """Another shard has carried out its parts up to this one: they leave the outbox."""

    target: int
    number: int
    index: int


class SessionOpened(_Note):
    """Its home shard, in a cluster: a session exists."""

    session: int
    ttl_us: int


class SessionBound(_Note):
    """Its home shard: entries of a shard may be bound to the session from now on."""

    session: int
    shard: int


class SessionClosed(_Note):
    """Its home shard: the session is over; the shards that have entries of it are told."""

    session: int


class Unbound(_Note):
    """A session is over: all entries of this shard that are bound to it are gone."""

    session: int


class Sealed(_Note):
    """A partition has given part of its keys to children: what they have comes after `offset`.
    Each of them, given with its shard, is told by the outbox."""

    stream: int
    partition: int
    generation: int
    offset: int
    children: list[tuple[int, int]]


class Opened(_Note):
    """A partition that a growth added begins, at the offset at which its parent was sealed."""

    stream: int
    partition: int
    offset: int


class StagesSecured(_Note):
    """Stages are about to be published, and last until that is decided; or they are not."""

    stages: list[bytes]
    secured: bool = True


class StagesDropped(_Note):
    """Stages are gone, with what was staged."""

    stages: list[bytes]


class StagesShown(_Note):
    """Stages are published: the place of each batch, by what stands in its bytes; -1: nobody is
    given it, because a message with its id is there already; -2: it is late, and waits to be
    passed on."""

    stages: list[bytes]
    at_us: int
    placed: list[tuple[int, int]]


class LateShown(_Note):
    """A late batch cannot be told apart: it is published as a whole where it was staged."""

    stamped: int
    base: int
    at_us: int


class PublicationMade(_Note):
    """Its home shard: stages are published under a key and number; their shards are told."""

    key: str
    number: int
    digest: int
    at_us: int
    shards: list[StagesOf]


class PublicationRefused(_Note):
    """A home shard: stages came too late to be published; their shards are told."""

    shards: list[StagesOf]


class PublicationsForgotten(_Note):
    """A home shard: what was published under these keys is not known any more."""

    keys: list[str]


class Reserved(_Note):
    """Messages of a queue are leased for a reservation."""

    stream: int
    key: str
    number: int
    grants: list[Given]


class ReservationSealed(_Note):
    """The home shard of its key: what a reservation is, is decided; its shards are told."""

    stream: int
    key: str
    number: int
    at_us: int
    parts: list[ReservedPart]


class ReservationRefused(_Note):
    """The home shard of its key: what these shards leased for a reservation is not part of it; they
    are told."""

    stream: int
    key: str
    number: int
    shards: list[int]


class ReservationsEnded(_Note):
    """The home shard of their key: reservations are acknowledged, or given back; their shards are
    told. Numbers up to `through` are finished."""

    stream: int
    key: str
    numbers: list[int]
    through: int
    acked: bool
    at_us: int


class BooksForgotten(_Note):
    """A home shard: reservations of these queues and keys are not known any more."""

    books: list[tuple[int, str]]


class AllDelivered(_Note):
    """On a node that stands alone: as `Delivered`, for several targets at once."""

    parts: list[tuple[int, int, int]]


class Edge(NamedTuple):
    """A held message (queue and id) waits for an entry (table and key); once that exists, it has a
    mark."""

    table: int
    key: bytes
    stream: int
    id: bytes
    mark: int = 0


class Watched(_Note):
    """Messages of a shard wait for entries of this one. Those of `met` are there already: the shard
    is told."""

    shard: int
    kept: list[Edge]
    met: list[Edge]


class EdgesMet(_Note):
    """Entries exist that held messages of this shard wait for, or waited for."""

    edges: list[Edge]


class HoldsEnded(_Note):
    """The time-to-live of held messages is over: they are finished, and fall back."""

    stream: int
    ids: list[bytes]


class HeldBefore(_Note):
    """A message was to be held whose id is known: it is not stored again."""

    stream: int
    id: bytes


Note = (
    Committed | Claimed | Trimmed | Thinned | Written | Removed | Registered | Forgotten | Defined
    | Deleted | SessionBegun | SessionEnded | Delivered | SessionOpened | SessionBound
    | SessionClosed | Unbound | Sealed | Opened | StagesSecured | StagesDropped | StagesShown
    | LateShown | PublicationMade | PublicationRefused | PublicationsForgotten | Reserved
    | ReservationSealed | ReservationsEnded | BooksForgotten | ReservationRefused | Watched
    | EdgesMet | HoldsEnded | HeldBefore | AllDelivered
)  # fmt: skip


class Drop(NamedTuple):
    """Messages of a queue that leave a shard, nobody having been given any: a whole batch. Or one
    that was staged, and is late."""

    stream: int
    position: int
    span: int


class Outgoing(msgspec.Struct, array_like=True):
    """What an OUTGOING record says: the transaction, the shard of each of its parts, and what the
    home shard itself gives up for them."""

    targets: list[int]
    transact: Transact
    drops: list[Drop] = []


Folds = dict[type, Callable[[Any, Any, int, int], None]]  # by kind of note: how a shard takes it

pack_note = msgspec.msgpack.Encoder().encode
_note = msgspec.msgpack.Decoder(Note)
_transaction = msgspec.msgpack.Decoder(Transact)
pack_outgoing = msgspec.msgpack.Encoder().encode
_outgoing = msgspec.msgpack.Decoder(Outgoing)


def read_note(meta: bytes) -> Note:
    """The note in a NOTE record."""
    note: Note = _note.decode(meta)
    return note


def read_transaction(meta: bytes) -> Transact:
    """The transaction in a TRANSACTION record."""
    return _transaction.decode(meta)


def read_outgoing(meta: bytes) -> Outgoing:
    """The transaction in an OUTGOING record, and where its parts belong."""
    return _outgoing.decode(meta)
