"""What the core asks its shell to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.core.index import Stored
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry


@dataclass(slots=True)
class Append:
    """Write this entry to the journal; hand it to `Fabric.committed` when it is safe enough."""

    entry: Entry


@dataclass(slots=True)
class Send:
    """Send these bytes, a whole frame, to a connection."""

    connection: int
    parts: list[Buffer]


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


@dataclass(slots=True)
class Deliver:
    """Read the slices and send them as one POP answer or DELIVER frame."""

    connection: int
    verb: int
    request: int
    flags: int
    slices: list[Slice]
    merges: bool = False  # whether the client can read merged batches


@dataclass(slots=True)
class Serve:
    """Read the batches of records (location, length, base); send them as the answer to a FETCH.
    In those that are `moved`, by the base that is stored, readers must find another base and
    arrival. (Not by location: those that are nowhere on this node have none.)"""

    connection: int
    request: int
    start: int
    end: int
    batches: list[tuple[int, int, int]]
    moved: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Read:
    """Read a batch of a shard, given with what its record says of it, and hand it over: later, and
    None if nobody has it whole."""

    shard: int
    meta: bytes
    stored: Stored
    then: Callable[[Buffer | None], None]


@dataclass(slots=True)
class Free:
    """Bytes of records are not needed any more: their locations, and how many of each."""

    places: list[tuple[int, int]]


@dataclass(slots=True)
class Close:
    """Close a connection after what was sent before."""

    connection: int


Effect: TypeAlias = Append | Send | Deliver | Serve | Read | Free | Close
