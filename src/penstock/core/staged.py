"""Staged batches of one shard: stored like any others, and seen by nobody until they are published.

A staged batch has no place in its queue or partition yet. What stands in its bytes is a base of its
own, `STAGED` and the number of its record, by which the cleaner, copies and repairs know it; that
stays so when a small record (`StagesShown`) gives it its place. Nothing is written again then.

Only a batch whose topic has grown since it was placed is late: it stays in its stage, published and
not yet seen, until its rows have been passed on (`core.late_stages`).
"""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.index import BatchIndex, Stored
from penstock.core.lanes import Lane
from penstock.core.queue import Places, QueueShard
from penstock.core.records import (
    Folds,
    LateShown,
    PushMeta,
    StagesDropped,
    StagesSecured,
    StagesShown,
)
from penstock.wire.batch import Columns, Header
from penstock.wire.growth import ANY_GENERATION

if TYPE_CHECKING:
    from penstock.core.shard import Shard

STAGED = 1 << 60  # above all offsets, and all positions of queues
STAGE_BYTES = 16  # of the id of a stage
NOBODY, LATE = -1, -2  # instead of a place: see `StagesShown`
SECURED_US = 7 * 86_400 * 1_000_000  # so long the home may be unreachable after it has decided
_NAME = struct.Struct(f"<{STAGE_BYTES}sQ")


class Staged(NamedTuple):
    """One staged batch: where it belongs, and what its header says that counts when it is shown.
    `generation` is that of its topic when its keys placed it."""

    stamped: int
    stream: int
    partition: int
    count: int  # type: ignore[assignment]  # a field, not the method of tuple
    priority: int = 0
    due_us: int = 0
    ttl_ms: int = 0
    generation: int = ANY_GENERATION
    id: bytes = b""
    damaged: bool = False


@dataclass(slots=True)
class Stage:
    """What one stage has in a shard, in order. The last three are the owner's memory."""

    ttl_us: int
    batches: dict[int, Staged] = field(default_factory=dict)  # by what stands in their bytes
    secured: bool = False
    bytes: int = 0
    touched_us: int = 0
    coming: int = 0  # batches that are accepted and not committed yet
    leaving: bool = False  # it is being published

    @property
    def messages(self) -> int:
        """In all its batches."""
        return sum(each.count for each in self.batches.values())

    @property
    def deadline_us(self) -> int:
        """When it is dropped unless something happens before."""
        return self.touched_us + (SECURED_US if self.secured else self.ttl_us)


def pack_name(stage: bytes, ttl_us: int, message_id: bytes) -> bytes:
    """What the record of a staged batch has instead of an id."""
    return _NAME.pack(stage, ttl_us) + message_id


def read_name(packed: bytes) -> tuple[bytes, int, bytes]:
    """Stage, its duration, and the message's own id."""
    stage, ttl_us = _NAME.unpack_from(packed)
    return stage, ttl_us, packed[_NAME.size :]


def lane_with(queue: QueueShard, base: int) -> Lane | None:
    """The lane of a batch that has this base in its stored bytes, if there is one."""
    if base < STAGED:
        return queue.lane_at(base)
    return next((lane for lane in queue.lanes.values() if lane.index.has_stamp(base)), None)


class Staging:
    """All stages of a shard. Methods named like a past event fold one record."""

    def __init__(self) -> None:
        self.index = BatchIndex()
        self.stages: dict[bytes, Stage] = {}
        self.late: dict[bytes, None] = {}  # those that are published, in this order
        self.bytes = 0

    def stage(self, name: bytes, ttl_us: int) -> Stage:
        """A stage; made when first used."""
        stage = self.stages.get(name)
        if stage is None:
            stage = self.stages[name] = Stage(ttl_us)
        return stage

    def stored(self, meta: PushMeta, header: Header, location: int, length: int) -> None:
        """A batch is committed in this record."""
        name, ttl_us, message_id = read_name(meta.id)
        stage = self.stage(name, ttl_us)
        stage.touched_us = max(stage.touched_us, header.arrived_us)
        generation = header.generation if header.columns & Columns.KEYS else ANY_GENERATION
        stage.batches[meta.base] = Staged(
            meta.base, meta.stream, meta.partition, meta.count, header.priority, header.due_us,
            header.ttl_ms, generation, message_id,
        )  # fmt: skip
        self.index.append(meta.base, meta.count, location, length, header.arrived_us)
        stage.bytes += length
        self.bytes += length

    def lost(self, meta: PushMeta) -> None:
        """A batch is damaged: it counts, and nobody will be given what is there."""
        name, ttl_us, message_id = read_name(meta.id)
        self.stage(name, ttl_us).batches[meta.base] = Staged(
            meta.base, meta.stream, meta.partition, meta.count, id=message_id, damaged=True
        )

    def take(self, stamped: int) -> Stored | None:
        """Takes a batch out, without freeing it; None if it is damaged, or not there."""
        stored = self.index.find(stamped)
        if stored is not None:
            self.index.finish(stamped, stored.live)
            self.bytes -= stored.length
        return stored

    def dropped(self, name: bytes, but: AbstractSet[int] = frozenset()) -> Places:
        """A stage is gone, but for what is late of it; where its other batches were."""
        stage = self.stages.pop(name, None)
        if stage is None:
            return []
        taken = [self.take(stamped) for stamped in stage.batches if stamped not in but]
        late = {stamped: each for stamped, each in stage.batches.items() if stamped in but}
        if late:
            self.stages[name] = stage
            self.late[name] = None
            stage.batches, stage.leaving = late, False
        return [(each.location, each.live_bytes) for each in taken if each is not None]

    def first_late(self) -> tuple[Stage, Staged] | None:
        """The late batch that is to be passed on before all others."""
        for name in self.late:
            stage = self.stages[name]
            return stage, next(iter(stage.batches.values()))
        return None

    def take_late(self, stamped: int) -> tuple[Staged, Stored | None] | None:
        """Takes a late batch out of its stage, without freeing it; None if it is not there."""
        for name in self.late:
            stage = self.stages[name]
            if stamped in stage.batches:
                staged = stage.batches.pop(stamped)
                self._forget_empty(name)
                return staged, self.take(stamped)
        return None

    def _forget_empty(self, name: bytes) -> None:
        if name in self.late and not self.stages[name].batches:
            del self.stages[name], self.late[name]

    def drop_stream(self, stream: int) -> Places:
        """A stream is gone: what was staged for it is, too. Its stages stay, and lack that."""
        freed: Places = []
        for name, stage in list(self.stages.items()):
            for stamped in [s for s, each in stage.batches.items() if each.stream == stream]:
                del stage.batches[stamped]
                if (stored := self.take(stamped)) is not None:
                    freed.append((stored.location, stored.live_bytes))
            self._forget_empty(name)
        return freed

    def moved(self, before: Stored, length: int) -> None:
        """A batch was copied elsewhere, and is as long as that now."""
        self.bytes += length - before.length

    def restart(self, now_us: int) -> None:
        """After recovery, or when the shard has another owner: durations start anew."""
        for stage in self.stages.values():
            stage.touched_us, stage.coming, stage.leaving = now_us, 0, False

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> list[Any]:
        """Plain data for `restore`; empty if there is nothing. A stage without a committed batch
        is not in it."""
        rows = [
            (name, each.ttl_us, list(each.batches.values()), each.secured, each.bytes)
            for name, each in self.stages.items()
            if each.batches
        ]
        return [rows, self.index.snapshot(), list(self.late)] if rows else []

    @classmethod
    def restore(cls, data: list[Any]) -> Staging:
        """The staging that made this snapshot; call `restart` before use."""
        staging = cls()
        rows, columns, late = data or ([], None, [])
        for name, ttl_us, batches, secured, size in rows:
            items = {each.stamped: each for each in map(Staged._make, batches)}
            staging.stages[name] = Stage(ttl_us, items, secured, size)
        staging.late = dict.fromkeys(late)
        if columns is not None:
            staging.index = BatchIndex.restore(columns)
            staging.bytes = sum(stored.length for stored in staging.index.rows())
        return staging


# --- fold: what the notes say ------------------------------------------------------------------


def _secured(shard: Shard, note: StagesSecured, number: int, now_us: int) -> None:
    for name in note.stages:
        if (stage := shard.staging.stages.get(name)) is not None:
            stage.secured, stage.touched_us = note.secured, now_us


def _dropped(shard: Shard, note: StagesDropped, number: int, now_us: int) -> None:
    for name in note.stages:
        _free(shard, name)


def _shown(shard: Shard, note: StagesShown, number: int, now_us: int) -> None:
    batches: dict[int, Staged] = {}
    for name in note.stages:
        if (stage := shard.staging.stages.get(name)) is not None:
            batches.update(stage.batches)
    for stamped, base in note.placed:
        staged = batches.get(stamped)
        if staged is not None and base >= 0:  # what is left is freed below, unless it is late
            stored = None if staged.damaged else shard.staging.take(stamped)
            _place(shard, staged, stored, base, note.at_us)
    late = {stamped for stamped, base in note.placed if base == LATE}
    for name in note.stages:
        _free(shard, name, late)


def _late_shown(shard: Shard, note: LateShown, number: int, now_us: int) -> None:
    if (found := shard.staging.take_late(note.stamped)) is not None:
        _place(shard, *found, note.base, note.at_us)


def passed_on(shard: Shard, stream: int, stamped: int) -> None:
    """Folds that the rows of a late batch are in the outbox."""
    found = shard.staging.take_late(stamped)
    if found is not None and (stored := found[1]) is not None:
        shard.streams[stream].totals.free([(stored.location, stored.live_bytes)])


def _free(shard: Shard, name: bytes, but: AbstractSet[int] = frozenset()) -> None:
    stage = shard.staging.stages.get(name)
    streams = [] if stage is None else [each.stream for each in stage.batches.values()]
    freed = shard.staging.dropped(name, but)
    definition = next((shard.streams[s] for s in streams if s in shard.streams), None)
    if freed and definition is not None:
        definition.totals.free(freed)


def _place(
    shard: Shard, staged: Staged, stored: Stored | None, base: int, at_us: int
) -> None:
    """A batch gets its place, and one that is damaged, too."""
    definition = shard.streams.get(staged.stream)
    if definition is None:
        return
    if stored is None:
        shard.lost(PushMeta(staged.stream, staged.partition, base, staged.count, 0, 0, 0))
        return
    header = Header(
        b"", stored.length, base, 0, 0, at_us, 0, 0, 0, staged.priority, 0, staged.count, 0, 0, 0,
        staged.due_us, staged.ttl_ms, 0, 0, 0,
    )  # fmt: skip
    if definition.info.kind == "topic":
        partition = shard.partition(staged.stream, staged.partition)
        partition.stored(header, stored.location, stored.length)
        partition.index.stamp(base, staged.stamped)
        return
    queue = shard.queue(staged.stream)
    if staged.id:
        queue.ids.add(staged.id, base, at_us)
    queue.stored(header, stored.location, stored.length, None, None)
    queue.lane(staged.priority).index.stamp(base, staged.stamped)


STAGING_NOTES: Folds = {
    StagesSecured: _secured,
    StagesDropped: _dropped,
    StagesShown: _shown,
    LateShown: _late_shown,
}
