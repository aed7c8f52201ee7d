"""What the core asks its shell to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from penstock.core.index import Stored
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry


class Send(msgspec.Struct):
    """Send these bytes, a whole frame, to a connection."""

    connection: int
    parts: list[Buffer]
    behind: bool = False  # not before every Deliver and Serve for the connection that came earlier


class Slice(NamedTuple):
    """Part of the batch in the record at `location`: the messages of a run, under a grant or 0."""

    shard: int
    grant: int
    position: int
    mask: int
    deliveries: int
    location: int
    length: int
    base: int  # that stands in the stored bytes
    moved: tuple[int, int] | None = None  # base and arrival that readers must find there instead


class Deliver(msgspec.Struct):
    """Read the slices and send them as one POP answer or DELIVER frame."""

    connection: int
    verb: int
    request: int
    flags: int
    slices: list[Slice]
    merges: bool = False  # whether the client can read merged batches


class Serve(msgspec.Struct):
    """Read the batches of records (location, length, base); send them as the answer to a FETCH.
    In those that are `moved`, by the base that is stored, readers must find another base and
    arrival. (Not by location: those that are nowhere on this node have none.)"""

    connection: int
    request: int
    start: int
    end: int
    batches: list[tuple[int, int, int]]
    moved: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)


class Read(msgspec.Struct):
    """Read a batch of a shard, given with what its record says of it, and hand it over: later, to
    `Fabric.was_read`."""

    shard: int
    meta: bytes
    stored: Stored
    then: Callable[[Buffer | None], None]


class Free(msgspec.Struct):
    """Bytes of records are not needed any more: their locations, and how many of each."""

    places: list[tuple[int, int]]


class Close(msgspec.Struct):
    """Close a connection after what was sent before."""

    connection: int


# An entry is to be written to the journal, and handed to `Fabric.committed` when it is safe enough.
Effect: TypeAlias = Entry | Send | Deliver | Serve | Read | Free | Close
