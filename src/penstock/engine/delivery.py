"""Turning stored batches into answers: reading, checking, cutting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.core.effects import Deliver, Serve, Slice
from penstock.core.runs import full, rows_of
from penstock.errors import DamagedError, PenstockError
from penstock.store.locations import split
from penstock.wire import frames
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.frames import Flag, Verb

WHOLE_BYTES = 1 << 20  # a batch over this is cut to what was granted, so that frames stay bounded

Found = Batch | PenstockError  # a stored batch, or why it cannot be had


class Answer(NamedTuple):
    """A frame to send, and what could not be read for it."""

    connection: int
    parts: list[Buffer]
    damaged: list[str]


def deliver(effect: Deliver, found: list[Found]) -> Answer:
    """The frame with the granted messages. A damaged batch is left out and reported."""
    heads: list[bytes] = []
    batches: list[Buffer] = []
    damaged: list[str] = []
    messages = 0
    for part, stored in zip(effect.slices, found, strict=True):
        try:
            batch = _cut(part, _checked(stored))
        except PenstockError as error:
            damaged.append(f"shard {part.shard}, position {part.run.position}: {error.message}")
            continue
        run = part.run
        messages += run.messages
        batches.append(batch)
        heads.append(
            frames.GRANT.pack(
                part.grant,
                run.position,
                run.span,
                part.shard,
                min(part.deliveries, 0xFFFF),
                len(batch),
            )
        )
    body = frames.COUNT.pack(len(heads), messages) + b"".join(heads)
    size = len(body) + sum(map(len, batches))
    head = frames.frame_head(effect.verb, effect.request, effect.flags, size)
    return Answer(effect.connection, [head + body, *batches], damaged)


def _checked(found: Found) -> Batch:
    if isinstance(found, PenstockError):
        raise found
    return found


def _cut(part: Slice, batch: Batch) -> Buffer:
    """The batch as it is if most of it is wanted, or a new one with the granted rows."""
    run = part.run
    contiguous = run.mask == full(run.span)
    if contiguous and 2 * run.messages > batch.count and len(batch.buffer) <= WHOLE_BYTES:
        return batch.buffer
    if contiguous and run.messages == batch.count:
        return batch.buffer
    rows = batch.rows_at(rows_of(run.mask).astype(np.int64) + run.position)
    if len(rows) != run.messages:
        raise DamagedError("a stored batch lacks messages that it should hold")
    return batch.take(rows)


def serve(effect: Serve, found: list[Found]) -> Answer:
    """The frame with the batches of a partition, up to the first damaged one."""
    batches: list[Buffer] = []
    damaged: list[str] = []
    for stored in found:
        if isinstance(stored, PenstockError):
            damaged.append(stored.message)
            if not batches:
                parts: list[Buffer] = [frames.error_frame(Verb.FETCH, effect.request, stored)]
                return Answer(effect.connection, parts, damaged)
            break
        batches.append(stored.buffer)
    body = frames.FETCH_HEAD.pack(effect.start, effect.end, len(batches))
    size = len(body) + sum(map(len, batches))
    head = frames.frame_head(Verb.FETCH, effect.request, Flag.RESPONSE, size)
    return Answer(effect.connection, [head + body, *batches], damaged)


class ReadJob:
    """Reads that would wait for the device: run it elsewhere, then hand it to the engine."""

    def __init__(self, effect: Deliver | Serve, read: Callable[[int, int, int], Found]) -> None:
        self.effect = effect
        self._read = read
        self.found: list[Found] = []

    def run(self) -> None:
        """Reads everything; never raises."""
        self.found = [self._read(*place) for place in places(self.effect)]


def places(effect: Deliver | Serve) -> list[tuple[int, int, int]]:
    """Where the records of an effect are: location, length, and the base of their batch."""
    if isinstance(effect, Deliver):
        return [(part.location, part.length, part.base) for part in effect.slices]
    return effect.batches


def files_of(effect: Deliver | Serve) -> set[int]:
    """Numbers of the files that an effect is read from."""
    return {split(location)[0] for location, _, _ in places(effect)}


def bytes_of(effect: Deliver | Serve) -> int:
    """What has to be read for an effect."""
    return sum(length for _, length, _ in places(effect))


def build(effect: Deliver | Serve, found: list[Found]) -> Answer:
    """The answer that an effect asks for."""
    if isinstance(effect, Deliver):
        return deliver(effect, found)
    return serve(effect, found)
