"""What a flush will write, before it is made: for a shell that writes it first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.store.flush import INLINE_BYTES, Flush
from penstock.store.record import frame, record_length
from penstock.store.segments import OpenSegment
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry


class Ahead(NamedTuple):
    """Bytes of whole records, and where they belong."""

    name: str
    offset: int
    parts: list[Buffer]

    def is_of(self, flush: Flush) -> bool:
        """Whether this is all that a flush writes, to the byte."""
        if len(flush.pieces) != 1 or flush.sync:
            return False
        (piece,) = flush.pieces
        if piece.opening is not None or (piece.name, piece.offset) != (self.name, self.offset):
            return False
        return self.parts == piece.parts or b"".join(self.parts) == b"".join(piece.parts)


def ahead_of(segment: OpenSegment, synced: int, entries: Sequence[Entry]) -> Ahead | None:
    """What these entries are in the open segment, right behind what is in it; None if they are more
    than may be written at once, or it has no room for them."""
    ahead = Ahead(segment.name, segment.used, [])
    end = segment.used
    for entry in entries:
        payload = entry.payload
        length = record_length(len(entry.meta), 0 if payload is None else len(payload))
        frame(
            ahead.parts, length, segment.number << 32 | end, synced, entry.shard, entry.kind,
            entry.epoch, entry.number, entry.meta, payload,
        )  # fmt: skip
        end += length
    fits = end <= segment.capacity and end - segment.used <= INLINE_BYTES
    return ahead if fits else None
