"""Changes to messages of a queue, as the log keeps them: what was decided, not what was asked."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple


class Op(IntEnum):
    """What becomes of messages. Those up to DEAD need a grant."""

    ACK = 1
    NACK = 2  # arg: delay in us
    EXTEND = 3  # arg: lease in us
    DEAD = 4
    EXPIRE = 5  # the lease ran out
    DROP = 6  # time-to-live is over
    PURGE = 7  # everything of a lane before a position
    RELEASE = 8  # of a held message
    REDRIVE = 9  # of a dead letter
    BURY = 10  # a dead letter is dropped


class Change(NamedTuple):
    """One change. `position` and `span` name messages; a grant of 0 means: not leased."""

    op: int
    span: int
    grant: int
    position: int
    arg: int = 0


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
    return _HEAD.pack(stream, len(changes)) + b"".join([_CHANGE.pack(*c) for c in changes])


def read_changes(meta: bytes) -> tuple[int, list[Change]]:
    """Stream and changes of a CHANGE record."""
    stream, count = _HEAD.unpack_from(meta)
    items = _CHANGE.iter_unpack(meta[_HEAD.size : _HEAD.size + count * _CHANGE.size])
    return stream, [Change._make(item) for item in items]


def pack_grants(stream: int, grants: list[Given]) -> bytes:
    """The meta of a GRANT record."""
    return _HEAD.pack(stream, len(grants)) + b"".join([_GIVEN.pack(*g) for g in grants])


def read_grants(meta: bytes) -> tuple[int, list[Given]]:
    """Stream and grants of a GRANT record."""
    stream, count = _HEAD.unpack_from(meta)
    items = _GIVEN.iter_unpack(meta[_HEAD.size : _HEAD.size + count * _GIVEN.size])
    return stream, [Given._make(item) for item in items]
