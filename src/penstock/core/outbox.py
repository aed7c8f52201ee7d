"""The outbox of a home shard: parts of its records that other shards still have to carry out.

It is a fold of the shard's own log, like everything else in a shard: a record brings parts in, a
`Delivered` note takes them out. Parts for one target stay in the order of the log, and are carried
out there in that order: the target needs to remember one number for each home shard, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from penstock.core.records import AllDelivered, Delivered, Edge, Folds
from penstock.errors import LimitError, ProtocolError
from penstock.wire import messages as m

MAX_OUTSTANDING_PARTS = 50_000  # of one home shard; one transaction more is always let in
MAX_OUTSTANDING_BYTES = 64 << 20
PART_OVERHEAD = 200  # bytes of memory for a part beside what it carries, roughly
EDGE_OVERHEAD = 150  # the same for one of its edges
MAX_MERGED_BYTES = 1 << 20  # of parts that are carried out in one record


class EndSession(msgspec.Struct, array_like=True):
    """A session has ended: the entries that are bound to it go."""

    session: int


class OpenPartition(msgspec.Struct, array_like=True):
    """A partition begins at an offset: its parent was sealed there."""

    stream: int
    partition: int
    offset: int


class PublishStages(msgspec.Struct, array_like=True):
    """Stages of the target become visible, in this order."""

    stages: list[bytes]


class DropStages(msgspec.Struct, array_like=True):
    """Stages of the target will not be published."""

    stages: list[bytes]


class KeepReserved(msgspec.Struct, array_like=True):
    """What the target leased for a reservation is its own from now on."""

    stream: int
    key: str
    number: int


class EndReserved(msgspec.Struct, array_like=True):
    """A reservation is over: the target acknowledges its messages, or has them back."""

    stream: int
    key: str
    number: int
    acked: bool


class WatchKeys(msgspec.Struct, array_like=True):
    """Held messages of the home wait for entries of the target."""

    edges: list[Edge]


class MeetEdges(msgspec.Struct, array_like=True):
    """Entries of the home exist that held messages of the target wait for."""

    edges: list[Edge]


Part = (
    m.TxnSettle | m.TxnCommit | m.TxnWrite | m.TxnPush | EndSession | OpenPartition
    | PublishStages | DropStages | KeepReserved | EndReserved | m.TxnHold | WatchKeys | MeetEdges
)  # fmt: skip
# A part's kind, on the way and in a snapshot, is its place here: add at the end.
_KINDS = (
    m.TxnSettle, m.TxnCommit, m.TxnWrite, m.TxnPush, EndSession, OpenPartition,
    PublishStages, DropStages, KeepReserved, EndReserved, m.TxnHold, WatchKeys, MeetEdges,
)  # fmt: skip
_DECODERS: list[Any] = [msgspec.msgpack.Decoder(kind) for kind in _KINDS]


class Packed(NamedTuple):
    """A part on its way: the log number of its record, its index in that, what it is, its bytes."""

    number: int
    index: int  # type: ignore[assignment]  # a field, not the method of tuple
    kind: int
    body: bytes


def read_part(packed: Packed) -> Part:
    """The part itself; ProtocolError if it is none."""
    if not 0 <= packed.kind < len(_DECODERS):
        raise ProtocolError(f"a part of kind {packed.kind} is not known")
    try:
        part: Part = _DECODERS[packed.kind].decode(packed.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a part that cannot be read: {error}") from error
    return part


class HasOutbox(Protocol):
    """A shard."""

    outbox: Outbox


TxnPart = m.TxnSettle | m.TxnCommit | m.TxnWrite | m.TxnPush | m.TxnHold


def parts_of(txn: m.Transact) -> list[TxnPart]:
    """The parts of a transaction; their order gives them their index."""
    return [*txn.acks, *txn.commits, *txn.writes, *txn.pushes, *txn.holds]


def _pack(number: int, index: int, part: Part) -> Packed:
    return Packed(number, index, _KINDS.index(type(part)), m.pack(part))


def merged(parts: list[Part]) -> Part:
    """One part that is carried out as these are, one after the other; see `can_merge`."""
    edges = [edge for part in parts for edge in cast("WatchKeys | MeetEdges", part).edges]
    return type(cast("WatchKeys | MeetEdges", parts[0]))(edges)


def can_merge(part: Part, before: Part) -> bool:
    """Whether a part can be carried out in one record with the one before it."""
    return type(part) is type(before) and isinstance(part, WatchKeys | MeetEdges)


def _of_hold(hold: m.TxnHold) -> int:
    parts: list[Part] = [*hold.writes, *hold.pushes]
    keys = sum([len(key) + EDGE_OVERHEAD for _, key in hold.after])
    return len(hold.batch) + keys + sum(map(bytes_of, parts))


def _of_edges(part: WatchKeys | MeetEdges) -> int:
    return sum([len(edge.key) + len(edge.id) + EDGE_OVERHEAD for edge in part.edges])


# What parts carry, in bytes; those of the other kinds carry nothing of note.
_CARRIED: dict[type, Callable[[Any], int]] = {
    m.TxnPush: lambda part: len(part.batch),
    m.TxnWrite: lambda part: len(part.key) + len(part.value or b""),
    PublishStages: lambda part: sum(map(len, part.stages)),
    DropStages: lambda part: sum(map(len, part.stages)),
    m.TxnHold: _of_hold,
    WatchKeys: _of_edges,
    MeetEdges: _of_edges,
}


def bytes_of(part: Part) -> int:
    """What a part has in memory, roughly."""
    carried = _CARRIED.get(type(part))
    return PART_OVERHEAD if carried is None else PART_OVERHEAD + carried(part)


class Outbox:
    """Parts by target shard, each line in the order of the log. Every method folds, or looks."""

    __slots__ = ("_lines", "bytes", "parts")

    def __init__(self) -> None:
        self._lines: dict[int, dict[tuple[int, int], Part]] = {}
        self.parts = 0
        self.bytes = 0

    def add(self, target: int, number: int, index: int, part: Part) -> None:
        """A record of the home shard has a part for a target."""
        self._lines.setdefault(target, {})[number, index] = part
        self.parts += 1
        self.bytes += bytes_of(part)

    def delivered(self, target: int, number: int, index: int) -> None:
        """The target has carried out its parts up to this one."""
        line, last = self._lines.get(target, {}), (number, index)
        for at in list(takewhile(lambda at: at <= last, line)):
            self.parts -= 1
            self.bytes -= bytes_of(line.pop(at))
        if not line:
            self._lines.pop(target, None)

    def has_room(self) -> None:
        """LimitError if so much is outstanding that nothing more may be."""
        if self.parts >= MAX_OUTSTANDING_PARTS or self.bytes >= MAX_OUTSTANDING_BYTES:
            raise LimitError(
                f"{self.parts:,} parts of transactions wait for other shards already",
                advice="Retry when the nodes that own those shards can be reached again.",
            )

    def targets(self) -> list[int]:
        """Shards that parts are outstanding for."""
        return list(self._lines)

    def next(self, target: int) -> tuple[int, int, Part] | None:
        """The first part for a target: number, index, part."""
        for (number, index), part in self._lines.get(target, {}).items():
            return number, index, part
        return None

    def line(self, target: int) -> list[tuple[int, int, Part]]:
        """All parts for a target, in order: number, index, part."""
        return [(*at, part) for at, part in self._lines.get(target, {}).items()]

    def first(self, target: int, safe: int, most: int, most_bytes: int) -> list[Packed]:
        """The first parts for a target whose records are committed, that is, up to number `safe`:
        at most so many, and so many bytes, but one in any case. All before them are carried out."""
        found: list[Packed] = []
        for (number, index), part in self._lines.get(target, {}).items():
            most_bytes -= bytes_of(part)
            if number > safe or len(found) >= most or (found and most_bytes < 0):
                break
            found.append(_pack(number, index, part))
        return found

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[int, Packed]]:
        """Plain data for `restore`."""
        return list(self._rows())

    def _rows(self) -> Iterator[tuple[int, Packed]]:
        for target, line in self._lines.items():
            for (number, index), part in line.items():
                yield target, _pack(number, index, part)

    @classmethod
    def restore(cls, rows: list[Any]) -> Outbox:
        """The outbox that made this snapshot."""
        outbox = cls()
        for target, packed in rows:
            part = Packed._make(packed)
            outbox.add(target, part.number, part.index, read_part(part))
        return outbox


def _delivered(shard: HasOutbox, note: Delivered, number: int, now_us: int) -> None:
    shard.outbox.delivered(note.target, note.number, note.index)


def _all_delivered(shard: HasOutbox, note: AllDelivered, number: int, now_us: int) -> None:
    for part in note.parts:
        shard.outbox.delivered(*part)


OUTBOX_NOTES: Folds = {Delivered: _delivered, AllDelivered: _all_delivered}
