"""Changes to messages of a queue, as the log keeps them: what was decided, not what was asked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.wire.frames import MASKED, mask_bytes


class Op(IntEnum):
    """What becomes of messages. Those up to DEAD need a grant."""

    ACK = 1
    NACK = 2  # arg: delay in us
    EXTEND = 3  # arg: lease in us
    DEAD = 4
    EXPIRE = 5  # the lease ran out
    DROP = 6  # time-to-live is over
    PURGE = 7  # everything of a lane before a position
    RELEASE = 8  # of a message that is held, or was pushed with a delay
    REDRIVE = 9  # of a dead letter
    BURY = 10  # a dead letter is dropped
    RETURN = 11  # arg: delay in us; of a leased message, whose delivery does not count


class Change(NamedTuple):
    """One change. `position`, `span` and perhaps a mask name messages; grant 0: not leased."""

    op: int
    span: int
    grant: int
    position: int
    arg: int = 0
    mask: int = 0


class Given(NamedTuple):
    """A grant as the log keeps it."""

    number: int
    position: int
    span: int
    lease_us: int


_HEAD = struct.Struct("<II")
_CHANGE = struct.Struct("<B3xIQQQ")
_GIVEN = struct.Struct("<QQI4xQ")


def pack_changes(stream: int, changes: list[Change]) -> bytes:
    """The meta of a CHANGE record."""
    parts = [_HEAD.pack(stream, len(changes))]
    for op, span, grant, position, arg, mask in changes:
        if mask:
            parts.append(_CHANGE.pack(op | MASKED, span, grant, position, arg))
            parts.append(mask.to_bytes(mask_bytes(span), "little"))
        else:
            parts.append(_CHANGE.pack(op, span, grant, position, arg))
    return b"".join(parts)


def read_changes(meta: bytes) -> tuple[int, list[Change]]:
    """Stream and changes of a CHANGE record."""
    stream, count = _HEAD.unpack_from(meta)
    changes: list[Change] = []
    at = _HEAD.size
    for _ in range(count):
        op, span, grant, position, arg = _CHANGE.unpack_from(meta, at)
        at, mask = at + _CHANGE.size, 0
        if op & MASKED:
            width = mask_bytes(span)
            mask = int.from_bytes(meta[at : at + width], "little")
            op, at = op ^ MASKED, at + width
        changes.append(Change(op, span, grant, position, arg, mask))
    return stream, changes


def pack_grants(stream: int, grants: Sequence[Given]) -> bytes:
    """The meta of a GRANT record."""
    if len(grants) == 1:
        return _HEAD.pack(stream, 1) + _GIVEN.pack(*grants[0])
    return _HEAD.pack(stream, len(grants)) + b"".join([_GIVEN.pack(*g) for g in grants])


def read_grants(meta: bytes) -> tuple[int, list[Given]]:
    """Stream and grants of a GRANT record."""
    stream, count = _HEAD.unpack_from(meta)
    items = _GIVEN.iter_unpack(meta[_HEAD.size : _HEAD.size + count * _GIVEN.size])
    return stream, [Given._make(item) for item in items]
