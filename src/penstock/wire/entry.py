"""A record on its way into the journal: what the core hands over and gets back when it is safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.errors import PenstockError
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability

RECORD_HEADER_BYTES = 56


class Reader(Protocol):
    """Whoever something is delivered to, as long as it wants that."""

    over: bool


class Entry(msgspec.Struct, eq=False):
    """A record on its way into the journal.

    The journal holds `meta` and `payload` until they are synced; they must not change meanwhile.
    `location` is 0 until the record is framed, and changes if its segment fails before it is
    synced. `done` is for the caller: the journal hands the entry back and does not call it.
    `answer` is called before `done`: whoever waits for it need not wait for what follows from it;
    unless it is `in_turn`, as others wait for what follows.
    `reply` is that answer, or what `done` would deliver, and the connection it is for, if it is
    known beforehand: then it may leave as soon as the disk has the entry, which is `answered` then.
    Not if it is for a `reader` that is over by then.
    `failed` tells whoever waits that the disk refuses; the entry stays in line all the same, and is
    `refused` from then on: nobody waits for it any more. Who is told may set `failed` and `done`
    anew, to hear what becomes of it.
    """

    shard: int
    kind: int
    epoch: int
    number: int
    meta: bytes
    payload: Buffer | None = None
    level: Durability = Durability.SYNCED
    done: Callable[[Entry], None] | None = None
    answer: Callable[[], None] | None = None
    failed: Callable[[PenstockError], None] | None = None
    location: int = 0
    length: int = 0
    reply: tuple[int, bytes] | None = None
    reader: Reader | None = None
    committed: bool = False
    answered: bool = False
    refused: bool = False
    in_turn: bool = False
    patient: bool = False  # nobody waits for it: no sync is begun for its sake, for a while
    local: bool = False  # concerns this node alone: it is not replicated, and waits for nobody

    @property
    def payload_location(self) -> int:
        """Where the payload's bytes are, once framed."""
        return payload_location(self.location, len(self.meta))


def payload_location(location: int, meta_bytes: int) -> int:
    """Where the payload of a record starts."""
    return location + RECORD_HEADER_BYTES + meta_bytes + (-meta_bytes & 7)
