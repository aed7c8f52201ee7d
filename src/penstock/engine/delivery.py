"""Turning stored batches into answers: cutting and merging them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.core.effects import Deliver, Serve, Slice
from penstock.core.runs import rows_of
from penstock.engine.reader import Found, Place
from penstock.errors import DamagedError, PenstockError
from penstock.store.locations import split
from penstock.wire import frames
from penstock.wire.batch import Batch, Columns, count_of, restamped
from penstock.wire.buffers import Buffer
from penstock.wire.frames import Flag, Verb
from penstock.wire.merge import MERGE_FROM, OneRow, merge, one_row
from penstock.wire.plain import part_of

_LACKING = "a stored batch lacks messages that it should hold"
_MAX_DELTA = (1 << 31) - 1  # of a row offset
WHOLE_BYTES = 1 << 20  # a batch over this is cut to what was granted, so that frames stay bounded


class Answer(NamedTuple):
    """A frame to send, and what could not be read for it."""

    connection: int
    parts: list[Buffer]
    damaged: list[str]
    missing: int = 0  # messages that were granted, and are left out


class _Delivery:
    """The grants and batches of one frame, as they are put together."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.batches: list[Buffer] = []
        self.damaged: list[str] = []
        self.messages = 0

    def add(self, part: Slice, found: Found) -> None:
        """A batch as it is, or cut. A damaged one is left out and reported."""
        try:
            batch = _cut(part, found)
        except PenstockError as error:
            self.damaged.append(f"shard {part.shard}, position {part.position}: {error.message}")
            return
        self._grant(part, part.mask.bit_length(), len(batch), 0)
        self.batches.append(batch)
        self.messages += part.mask.bit_count()

    def add_all(self, parts: Sequence[Slice], found: list[Found], merges: bool) -> None:
        """All of these, those of one message each merged if that is wanted."""
        at = 0
        for end, rows in _stretches(found, merges):
            if len(rows) >= MERGE_FROM:
                self.add_merged(parts[at:end], rows)
            else:
                for part, each in zip(parts[at:end], found[at:end], strict=True):
                    self.add(part, each)
            at = end

    def add_merged(self, parts: Sequence[Slice], rows: Sequence[OneRow]) -> None:
        """Batches of one message each as one batch, shared by their grants."""
        firsts: list[Slice] = []
        owners: list[int] = []
        following: dict[tuple[int, int, int, int], int] = {}  # what goes on with a grant: which
        for part in parts:
            shard, grant, position, _, deliveries = part[:5]
            number = following.pop((shard, grant, deliveries, position), -1)
            if number < 0:
                number = len(firsts)
                firsts.append(part)
            following[shard, grant, deliveries, position + 1] = number
            owners.append(number)
        batch = merge(rows, 0, owners)
        length, shared = len(batch), len(firsts)
        for part, count in zip(firsts, np.bincount(owners).tolist(), strict=True):
            self._grant(part, count, length, shared)
            length = shared = 0
        self.batches.append(batch)
        self.messages += len(parts)

    def _grant(self, part: Slice, count: int, length: int, shared: int) -> None:
        deliveries = min(part.deliveries, 0xFFFF)
        self.heads.append(
            frames.GRANT.pack(
                part.grant, part.position, count, part.shard, deliveries, length, shared
            )
        )


def deliver(effect: Deliver, found: list[Found]) -> Answer:
    """The frame with the granted messages. A damaged batch is left out and reported. There is no
    frame for a subscription that would get nothing."""
    delivery = _Delivery()
    if any(part.moved for part in effect.slices):
        pairs = zip(effect.slices, found, strict=True)
        found = [each if p.moved is None else as_shown(each, p.moved) for p, each in pairs]
    if len(found) == 1:
        delivery.add(effect.slices[0], found[0])
    else:
        delivery.add_all(effect.slices, found, effect.merges)
    missing = 0
    if delivery.damaged:
        missing = sum(part.mask.bit_count() for part in effect.slices) - delivery.messages
        if not delivery.heads and effect.verb == Verb.DELIVER:
            return Answer(effect.connection, [], delivery.damaged, missing)
    # Who pops is told how many there were: that none could be read does not mean there are no more.
    told = delivery.messages + (missing if effect.verb == Verb.POP else 0)
    body = frames.COUNT.pack(len(delivery.heads), told) + b"".join(delivery.heads)
    size = len(body) + sum(map(len, delivery.batches))
    head = frames.frame_head(effect.verb, effect.request, effect.flags, size)
    parts = [head + body, *delivery.batches]
    return Answer(effect.connection, parts, delivery.damaged, missing)


def as_shown(found: Found, moved: tuple[int, int]) -> Found:
    """A stored batch with the base and arrival that readers must find in it."""
    return found if isinstance(found, PenstockError) else restamped(found, *moved)


def _stretches(found: list[Found], merges: bool) -> Iterator[tuple[int, list[OneRow]]]:
    """Cuts a list into stretches that can be merged and others: where each ends, and its rows."""
    rows: list[OneRow] = []
    if not merges or len(found) < MERGE_FROM:
        yield len(found), rows
        return
    for at, each in enumerate(found):
        row = None if isinstance(each, PenstockError) else one_row(each)
        if row is not None:
            rows.append(row)
            continue
        if rows:
            yield at, rows
            rows = []
        yield at + 1, []
    if rows:
        yield len(found), rows


def _cut(part: Slice, found: Found) -> Buffer:
    """The batch as it is if most of it is wanted, or a new one with the granted rows."""
    if isinstance(found, PenstockError):
        raise found
    mask, stored = part.mask, count_of(found)
    messages = mask.bit_count()
    contiguous = messages == mask.bit_length()
    if contiguous and 2 * messages > stored and len(found) <= WHOLE_BYTES:
        return found
    if contiguous and messages == stored:
        return found
    if contiguous and (cut := part_of(found, part.position, messages)) is not None:
        return cut
    batch = Batch.parse(found, verify=False)
    first = part.position - batch.header.base
    if contiguous and not batch.header.columns & Columns.DELTAS and first >= 0:
        if first + messages > stored:
            raise DamagedError(_LACKING)
        return batch.span(first, messages)
    rows = batch.rows_at(rows_of(part.mask).astype(np.int64) + part.position)
    if len(rows) != messages:
        raise DamagedError(_LACKING)
    return batch.take(rows)


def serve(effect: Serve, found: list[Found]) -> Answer:
    """The frame with the batches of a partition, up to the first damaged one."""
    batches: list[Buffer] = []
    damaged: list[str] = []
    at = 0
    bases = [base for _, _, base in effect.batches]
    for each, (_, _, stamped) in enumerate(effect.batches) if effect.moved else ():
        if (moved := effect.moved.get(stamped)) is not None:
            bases[each], found[each] = moved[0], as_shown(found[each], moved)
    for end, rows in _stretches(found, True):
        offsets = bases[at:end]
        if len(rows) >= MERGE_FROM and offsets[-1] - offsets[0] <= _MAX_DELTA:
            batches.append(_joined(offsets, rows))
            at = end
            continue
        for stored in found[at:end]:
            if isinstance(stored, PenstockError):
                damaged.append(stored.message)
                break
            batches.append(stored)
        if damaged:
            break
        at = end
    if damaged and not batches:
        error = found[0]
        assert isinstance(error, PenstockError)
        parts: list[Buffer] = [frames.error_frame(Verb.FETCH, effect.request, error)]
        return Answer(effect.connection, parts, damaged)
    body = frames.FETCH_HEAD.pack(effect.start, effect.end, len(batches))
    size = len(body) + sum(map(len, batches))
    head = frames.frame_head(Verb.FETCH, effect.request, Flag.RESPONSE, size)
    return Answer(effect.connection, [head + body, *batches], damaged)


def _joined(offsets: list[int], rows: list[OneRow]) -> Buffer:
    """Neighbours of a partition as one batch; rows that were left out between them stay out."""
    first = offsets[0]
    dense = offsets[-1] - first + 1 == len(rows)
    return merge(rows, first, None if dense else [offset - first for offset in offsets])


class ReadJob:
    """Reads that would wait for the device: run it elsewhere, then hand it to the engine."""

    def __init__(
        self, effect: Deliver | Serve, number: int, read: Callable[[Sequence[Place]], list[Found]]
    ) -> None:
        self.effect = effect
        self.number = number  # among those that are owed
        self._read = read
        self.found: list[Found] = []

    def run(self) -> None:
        """Reads everything; never raises."""
        self.found = self._read(places(self.effect))


def places(effect: Deliver | Serve) -> list[Place]:
    """Where the records of an effect are."""
    if isinstance(effect, Deliver):
        return [part[5:8] for part in effect.slices]
    return effect.batches


def files_of(effect: Deliver | Serve) -> set[int]:
    """Numbers of the files that an effect is read from."""
    return {split(location)[0] for location, _, _ in places(effect)}


def bytes_of(effect: Deliver | Serve) -> int:
    """What has to be read for an effect."""
    return sum(length for _, length, _ in places(effect))


def build(effect: Deliver | Serve, found: list[Found]) -> Answer:
    """The answer that an effect asks for. Bytes that nobody has foreseen, or a defect, cost one
    answer, not the node: what was to be delivered is damaged then, and whoever asked is told."""
    try:
        return deliver(effect, found) if isinstance(effect, Deliver) else serve(effect, found)
    except Exception as error:
        damaged = [f"an answer cannot be made: {error!r}"]
        if isinstance(effect, Deliver) and effect.verb == Verb.DELIVER:
            messages = sum(part.mask.bit_count() for part in effect.slices)
            return Answer(effect.connection, [], damaged, messages)
        verb = effect.verb if isinstance(effect, Deliver) else Verb.FETCH
        refusal = frames.error_frame(verb, effect.request, DamagedError(damaged[0]))
        return Answer(effect.connection, [refusal], damaged)
