"""What the nodes that hold a shard say to each other. A link keeps their order until it breaks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.wire.buffers import Buffer
from penstock.wire.limits import MAX_FRAME_BYTES

_HEAD = struct.Struct("<BxHIQQQ")  # what it is, shard, epoch, up to three numbers
_RECORD = struct.Struct("<BxxxIQII")  # kind, epoch, number, sizes of meta and payload
_NO_PAYLOAD = 0xFFFFFFFF


class Record(NamedTuple):
    """One record of a shard's log, as its owner logged it."""

    kind: int
    epoch: int
    number: int
    meta: bytes
    payload: Buffer | None

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return _RECORD.size + len(self.meta) + (0 if self.payload is None else len(self.payload))


class Probe(NamedTuple):
    """Owner to follower: where are you? Sent when a link, an epoch or a copy begins anew; whatever
    was said in an earlier round does not count any more."""

    shard: int
    epoch: int
    round: int


class Position(NamedTuple):
    """Follower to owner: my log ends here, with a record of that epoch. Accepted follows."""

    shard: int
    epoch: int
    round: int
    last: int
    last_epoch: int


class Records(NamedTuple):
    """Owner to follower: what follows in the log. Whoever folds it must know the definitions of
    this version."""

    shard: int
    epoch: int
    version: int
    records: list[Record]


class Accepted(NamedTuple):
    """Follower to owner: I have all up to here, and all up to there on the disk."""

    shard: int
    epoch: int
    round: int
    received: int
    synced: int


class Stale(NamedTuple):
    """Whoever knows a later epoch, to an owner that does not: you own this shard no more."""

    shard: int
    epoch: int


class Confirm(NamedTuple):
    """Owner to follower: am I still the owner? `number` comes back in the answer."""

    shard: int
    epoch: int
    number: int


class Confirmed(NamedTuple):
    """Follower to owner: I know of no later epoch."""

    shard: int
    epoch: int
    number: int


Message = Probe | Position | Records | Accepted | Stale | Confirm | Confirmed
_TYPES: tuple[type[Message], ...] = (
    Probe, Position, Records, Accepted, Stale, Confirm, Confirmed,
)  # fmt: skip
_NUMBERS = {kind: number for number, kind in enumerate(_TYPES)}
_RECORDS = _NUMBERS[Records]


def pack(message: Message) -> list[Buffer]:
    """The parts of a message; payloads are not copied."""
    number = _NUMBERS[type(message)]
    if isinstance(message, Records):
        count = len(message.records)
        parts: list[Buffer] = [_head(number, *message[:3], count)]
        for record in message.records:
            parts += _pack_record(record)
        return parts
    return [_head(number, *message)]


def _head(number: int, shard: int, epoch: int, *numbers: int) -> bytes:
    return _HEAD.pack(number, shard, epoch, *numbers, *(0,) * (3 - len(numbers)))


def _pack_record(record: Record) -> list[Buffer]:
    size = _NO_PAYLOAD if record.payload is None else len(record.payload)
    head = _RECORD.pack(record.kind, record.epoch, record.number, len(record.meta), size)
    if record.payload is None:
        return [head + record.meta]
    return [head + record.meta, record.payload]


def unpack(data: memoryview) -> Message:
    """A message; its payloads are copies that the caller owns. ProtocolError if it is none."""
    if not _HEAD.size <= len(data) <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a message between nodes has {len(data)} bytes")
    number, *fields = _HEAD.unpack_from(data)
    if number >= len(_TYPES):
        raise ProtocolError(f"message {number} between nodes is not known")
    kind = _TYPES[number]
    if number == _RECORDS:
        shard, epoch, version, count, _ = fields
        return Records(shard, epoch, version, list(_unpack_records(data[_HEAD.size :], count)))
    if len(data) != _HEAD.size:
        raise ProtocolError("a message between nodes is longer than it says")
    message: Message = kind._make(fields[: len(kind._fields)])
    return message


def _unpack_records(data: memoryview, count: int) -> Iterator[Record]:
    at = 0
    for _ in range(count):
        if at + _RECORD.size > len(data):
            raise ProtocolError("records between nodes are cut short")
        kind, epoch, number, meta_size, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        end = at + meta_size + (0 if size == _NO_PAYLOAD else size)
        if end > len(data):
            raise ProtocolError("records between nodes are cut short")
        meta = bytes(data[at : at + meta_size])
        payload = None if size == _NO_PAYLOAD else bytearray(data[at + meta_size : end])
        yield Record(kind, epoch, number, meta, payload)
        at = end
    if at != len(data):
        raise ProtocolError("records between nodes are longer than they say")
