"""One trip of the journal to the disk."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import msgspec

from penstock.store.disk import Disk
from penstock.store.locations import JOURNAL, SPARE, file_name, split
from penstock.store.record import FILE_HEADER_BYTES
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

INLINE_BYTES = 64 << 10  # of a flush that is so quick that it may be run on an event loop
APART_BYTES = 8 << 10  # the same if a sync follows: a thread that syncs may as well write


class Opening:
    """How a new segment comes into being."""

    __slots__ = ("before", "begun", "done", "follows", "header", "recycle", "size")

    def __init__(
        self, header: bytes, follows: int, size: int, recycle: str | None, before: int | None
    ) -> None:
        self.header = header
        self.follows = follows
        self.size = size
        self.recycle = recycle
        self.before = before
        """The segment that ends here and has to be synced first, unless it failed."""
        self.begun = False
        self.done = False


class Piece(msgspec.Struct, eq=False):
    """What one flush writes to one segment."""

    number: int
    name: str
    offset: int
    opening: Opening | None
    parts: list[Buffer] = msgspec.field(default_factory=list)
    end: int = 0


class Flush(msgspec.Struct, eq=False):
    """Framed entries and the disk calls that make them durable.

    The journal fills it; from `Journal.next_flush` to `Journal.finish` it belongs to whoever calls
    `run`, which may be another thread: it uses the disk and its own fields, nothing else.
    """

    disk: Disk
    entries: list[Entry] = msgspec.field(default_factory=list)
    pieces: list[Piece] = msgspec.field(default_factory=list)
    at_once: bool = False
    """One write to one segment in which all before it is synced: that and the sync are one call."""
    apart: bool = False
    """It is written only, whatever its entries asked for: a `Sync` follows."""
    bytes: int = 0
    level: Durability = Durability.MEMORY
    mixed: bool = False
    """Some entries count as committed already: the finish has to pick the others."""
    sync: bool = False
    sync_name: str = ""
    end: int = 0
    synced: int = 0
    """How far the journal was synced in this run; read by `finish`, also after an error."""
    started_us: int = 0

    @property
    def uncommitted(self) -> list[Entry]:
        """Its entries without those that count as committed already."""
        return uncommitted(self.entries) if self.mixed else self.entries

    @property
    def is_one_write(self) -> bool:
        """It goes on in the segment that is open, and needs no other."""
        return len(self.pieces) == 1 and self.pieces[0].opening is None

    @property
    def is_small(self) -> bool:
        """It may be written where others wait."""
        limit = APART_BYTES if self.level >= Durability.SYNCED else INLINE_BYTES
        return self.bytes <= limit and self.is_one_write

    def run(self) -> None:
        """Write everything; if `sync` is set, all of it is durable when this returns.

        On DiskError nothing is known about what was written after `synced`; the caller passes the
        error to `Journal.finish`, and never runs the flush again.
        """
        disk = self.disk
        if self.at_once:
            (piece,) = self.pieces
            disk.write_synced(piece.name, piece.offset, piece.parts)
            self.synced = self.end
            return
        for piece in self.pieces:
            if piece.opening is None:
                disk.write(piece.name, piece.offset, piece.parts)
            else:
                self._open(piece, piece.opening)
        if self.sync:
            disk.sync(self.sync_name)
            self.synced = self.end

    def _open(self, piece: Piece, opening: Opening) -> None:
        disk = self.disk
        if opening.before is not None:
            disk.sync(file_name(JOURNAL, opening.before))
            self.synced = opening.follows
        opening.begun = True
        disk.create(piece.name, opening.size, opening.recycle)
        opening.done = True
        disk.write(piece.name, FILE_HEADER_BYTES, piece.parts)
        # The header comes last: until it is there the file does not count, and the journal ends
        # where it did before. So entries that are appended again after a failure replace their
        # first copies at once, also if the process dies in between.
        disk.write(piece.name, 0, (opening.header,))
        disk.sync_names()

    def payload_at(self, location: int) -> Buffer | None:
        """The payload of the record at `location`, if it is one of this flush."""
        entries = self.entries
        if not entries or location < entries[0].location:  # most are: they were written before
            return None
        at = bisect_left(entries, location, key=lambda entry: entry.location)
        if at < len(entries) and entries[at].location == location:
            return entries[at].payload
        return None


def uncommitted(entries: list[Entry]) -> list[Entry]:
    """Those that are neither kept in memory only nor committed before."""
    return [entry for entry in entries if entry.level and not entry.committed]


class Finished(NamedTuple):
    """What a flush changed."""

    committed: list[Entry]
    """Newly as durable as they asked for, in append order; without those of level MEMORY. One that
    only asked to be written may come before an earlier one of another shard that waits for a sync.
    """
    moved: list[tuple[Entry, int]]
    """Committed before, and now elsewhere because their segment failed; with the record's old
    location. Only those with a payload, which `unwritten` serves until it is written again."""


class Sync:
    """Makes durable what was written before; it may run while more is written.

    From `Journal.next_sync` to `Journal.finish_sync` it belongs to whoever calls `run`.
    """

    __slots__ = ("_disk", "_name", "bytes", "end", "entries", "started_us")

    def __init__(
        self, disk: Disk, end: int, entries: int, size: int, started_us: int
    ) -> None:
        self._disk = disk
        self._name = file_name(JOURNAL, split(end)[0])
        self.end = end
        """The position up to which all is durable then."""
        self.entries = entries
        """How many of those that were written and not synced, the oldest, and their bytes."""
        self.bytes = size
        self.started_us = started_us

    def run(self) -> None:
        """On DiskError nothing is known of what was not synced before: it is never run again."""
        self._disk.sync(self._name)


class Recycling:
    """Lets a dead segment go. A large file takes its time to be deleted.

    From `Journal.recycle` to `Journal.finish_recycling` it belongs to whoever calls `run`.
    """

    __slots__ = ("_disk", "_size", "number", "spare")

    def __init__(self, disk: Disk, number: int, size: int | None) -> None:
        self._disk = disk
        self._size = size
        self.number = number
        self.spare: str | None = None
        """The name that it is kept by, after the run."""

    def run(self) -> None:
        """Keeps a file of the size that a new segment needs, if such are wanted, and nobody still
        has to send what is in it."""
        name = file_name(JOURNAL, self.number)
        if self._disk.size(name) == self._size and self._disk.let_go(name):
            spare = file_name(SPARE, self.number)
            self._disk.rename(name, spare)
            self.spare = spare
        else:
            self._disk.delete(name)
