"""Everything that an assembler knows, as bytes: the next owner of a partition goes on with the next
fragment and reads nothing again.

A dump is a list of parts, none of them much larger than `PART_BYTES` unless a single state is: a
head, parts with open objects, parts with fragments that wait for their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from penstock.consumers.folding import Folding
from penstock.consumers.fragments import NEVER_US, Rows
from penstock.consumers.held import Held
from penstock.consumers.objects import OpenObject
from penstock.consumers.progress import Ignored, IgnoreList, SnapshotRef
from penstock.consumers.snapshot import pack, unpack
from penstock.errors import ProtocolError
from penstock.wire.columns import Longs

S = TypeVar("S")

VERSION = 1
PART_BYTES = 256 << 10
_PART_ROWS = 4096  # of those that wait: their times and offsets take room too


class Position(NamedTuple):
    """Where an assembler stands in time and in the partition."""

    next_offset: int
    high_us: int
    clock: tuple[int, int] | None
    advances: list[tuple[int, int]]
    snapshot: SnapshotRef | None
    replay: bytes | None  # the progress that is being read again up to
    replay_left: int  # moves of the clock that are still ahead in it


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    position: Position
    watermark_us: int
    ignore: list[tuple[bytes, int, int, int]]
    ended: list[bytes]
    object_parts: int
    held_parts: int


class _Object(msgspec.Struct, array_like=True, frozen=True):
    packed: bytes
    unsaved: tuple[int, int] | None  # the lowest such offset, and the highest time before it
    saved: bool
    changed: bool


class _HeldPart(msgspec.Struct, array_like=True, frozen=True):
    keys: list[bytes]
    values: list[bytes]
    times_us: bytes
    offsets: bytes
    high_us: bytes


_read_head = msgspec.msgpack.Decoder(_Head).decode
_read_objects = msgspec.msgpack.Decoder(list[_Object]).decode
_read_held = msgspec.msgpack.Decoder(_HeldPart).decode


# --- out -----------------------------------------------------------------------------------


def dump_parts(
    position: Position,
    folding: Folding[S],
    held: Held,
    owns: Callable[[bytes], bool] | None = None,
) -> list[bytes]:
    """The parts of a dump; nothing is changed by it. With `owns`, of these keys only, as if no
    snapshot had anything of them and nothing of theirs was over."""
    encode = msgspec.msgpack.encode
    rows = held.rows()
    if owns is None:
        objects = [_told(folding, found) for found in folding.objects]
    else:
        objects = [_anew(folding, found) for found in folding.objects if owns(found.key)]
        if rows is not None:
            rows = rows.pick(np.flatnonzero([owns(key) for key in rows.keys]))
    packed = [encode(each) for each in _object_parts(objects)]
    waiting = [encode(each) for each in _held_parts(rows)]
    head = _Head(
        VERSION,
        position,
        folding.watermark_us,
        [] if owns else [(name, *entry) for name, entry in folding.ignore.entries()],
        [] if owns else sorted(folding.objects.ended),
        len(packed),
        len(waiting),
    )
    return [encode(head), *packed, *waiting]


def _told(folding: Folding[S], found: OpenObject[S]) -> _Object:
    unsaved = None if found.unsaved is None else (found.unsaved, found.unsaved_high_us)
    changed = found.key in folding.objects.changed
    return _Object(pack(folding.stateful, found), unsaved, found.saved, changed)


def _anew(folding: Folding[S], found: OpenObject[S]) -> _Object:
    # What was read before its first fragment does not matter: nobody reads that again for it.
    return _Object(pack(folding.stateful, found), (found.first_offset, NEVER_US), False, True)


def _object_parts(objects: list[_Object]) -> Iterator[list[_Object]]:
    part: list[_Object] = []
    size = 0
    for found in objects:
        part.append(found)
        size += len(found.packed)
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _held_parts(rows: Rows | None) -> Iterator[_HeldPart]:
    if rows is None or not len(rows):
        return
    sizes = np.fromiter(map(len, rows.values), np.int64, len(rows))
    ends = np.cumsum(sizes)
    start = 0
    while start < len(rows):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + PART_BYTES, "right"))
        stop = min(max(stop, start + 1), start + _PART_ROWS, len(rows))
        part = rows.cut(start, stop)
        yield _HeldPart(
            part.keys, part.values, _packed(part.times_us), _packed(part.offsets),
            _packed(part.high_us),
        )  # fmt: skip
        start = stop


def _packed(column: Longs) -> bytes:
    return column.astype("<i8", copy=False).tobytes()


# --- in ------------------------------------------------------------------------------------


def load_parts(parts: Sequence[bytes], folding: Folding[S], held: Held) -> Position:
    """Puts what a dump has into an empty folding and an empty Held; where it stood.

    ProtocolError if it is no dump, is not whole, or is of a version that is not known here.
    """
    try:
        head = _read_head(parts[0])
        if head.version != VERSION:
            raise ProtocolError(f"a dump of version {head.version}, which is not known here")
        if len(parts) != 1 + head.object_parts + head.held_parts:
            raise ProtocolError(f"a dump of {len(parts)} parts is not whole")
        objects = map(_read_objects, parts[1 : 1 + head.object_parts])
        waiting = [_rows(_read_held(part)) for part in parts[1 + head.object_parts :]]
        found = [(each, unpack(folding.stateful, each.packed)) for part in objects for each in part]
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise ProtocolError(f"a dump that cannot be read: {error}") from error
    folding.position = head.position.next_offset
    folding.watermark_us = head.watermark_us
    folding.ignore = IgnoreList((name, Ignored(*entry)) for name, *entry in head.ignore)
    folding.objects.ended.update(head.ended)
    for each, restored in found:
        _restore(folding, each, restored)
    for rows in waiting:
        held.add(rows)
    return head.position


def _restore(folding: Folding[S], told: _Object, found: OpenObject[S]) -> None:
    objects = folding.objects
    objects.restore(found)
    found.saved = told.saved
    if told.unsaved is not None:
        objects.unsaved(found, *told.unsaved)
    if told.changed:
        objects.changed.add(found.key)
    folding.measure(found)


def _rows(part: _HeldPart) -> Rows:
    columns = [np.frombuffer(each, "<i8") for each in (part.times_us, part.offsets, part.high_us)]
    if {len(part.values), *map(len, columns)} != {len(part.keys)}:
        raise ValueError("columns of different length")
    times_us, offsets, high_us = (column.astype(np.int64) for column in columns)
    return Rows(part.keys, part.values, times_us, offsets, high_us)

