"""Open objects as bytes: a snapshot of all, or of those that changed since the last one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from penstock.consumers.objects import OpenObject, OpenObjects
from penstock.consumers.progress import SnapshotRef, name_of
from penstock.consumers.stateful import Stateful
from penstock.errors import ProtocolError

S = TypeVar("S")

VERSION = 1


class Snapshot(NamedTuple):
    """What has to be stored: (name, bytes) puts an entry there, (name, None) takes it away.

    `full`: entries that are not named here have to go. Fragments that wait for their time are not
    in it: they are read again from the progress's offset.
    """

    ref: SnapshotRef
    entries: list[tuple[bytes, bytes | None]]
    full: bool


class _Record(msgspec.Struct, array_like=True, frozen=True):
    version: int
    key: bytes
    state: bytes
    count: int
    first_us: int
    last_us: int
    first_offset: int
    last_offset: int
    tail_offset: int
    end_us: int | None
    tick_us: int | None


def pack(stateful: Stateful[S], found: OpenObject[S]) -> bytes:
    """One open object."""
    return msgspec.msgpack.encode(
        _Record(
            VERSION, found.key, stateful.encode(found.state), found.count, found.first_us,
            found.last_us, found.first_offset, found.last_offset, found.tail_offset, found.end_us,
            found.tick_us,
        )
    )  # fmt: skip


def unpack(stateful: Stateful[S], packed: bytes) -> OpenObject[S]:
    """What `pack` made; ProtocolError if it is something else, or of another version."""
    try:
        record = msgspec.msgpack.decode(packed, type=_Record)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not an object of a snapshot: {error}") from error
    if record.version != VERSION:
        raise ProtocolError(f"an object of a snapshot of version {record.version}")
    found = OpenObject(
        record.key, stateful.decode(record.state), record.first_us, record.first_offset
    )
    found.count = record.count
    found.last_us = record.last_us
    found.last_offset = record.last_offset
    found.tail_offset = record.tail_offset
    found.end_us = record.end_us
    found.tick_us = record.tick_us
    return found


def entries_of(
    stateful: Stateful[S], objects: OpenObjects[S], full: bool
) -> list[tuple[bytes, bytes | None]]:
    """The entries of a snapshot of now."""
    by_key = objects.by_key
    chosen: Iterable[bytes] = by_key if full else sorted(objects.changed)
    entries: list[tuple[bytes, bytes | None]] = [
        (name_of(key), pack(stateful, by_key[key])) for key in chosen
    ]
    if not full:
        entries += [(name_of(key), None) for key in sorted(objects.ended - by_key.keys())]
    return entries
