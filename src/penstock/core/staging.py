"""Staging: batches that are stored and seen by nobody, until their stage is published or dropped.

The depth of a queue is checked when a batch is staged; what is published does not wait for room any
more. Priority counts as always, delay and time-to-live from the publication on, and an id is
looked up then: of two messages with one id the one that is published first is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.late_stages import LateStages, is_late
from penstock.core.outbox import DropStages, PublishStages
from penstock.core.pushes import Pushes
from penstock.core.queues import Queues
from penstock.core.records import (
    Forward,
    Kind,
    Note,
    PushMeta,
    StagesDropped,
    StagesSecured,
    StagesShown,
    pack_forward,
    pack_note,
    pack_push,
)
from penstock.core.shard import ORIGIN_BITS, Shard, Stream
from penstock.core.staged import LATE, NOBODY, STAGE_BYTES, STAGED, Stage, Staged, pack_name
from penstock.core.topics import Topics
from penstock.errors import ConflictError, InvalidError, LimitError, NotFoundError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import PushExtra

MAX_STAGES = 10_000  # of one shard
MAX_STAGE_BATCHES = 10_000  # of one stage in one shard
MAX_STAGE_BYTES = 1 << 30
MAX_STAGED_BYTES = 32 << 30  # of one node
STAGE_MS = 86_400_000  # a stage lasts so long after its last push, unless that says otherwise
MAX_STAGE_MS = 30 * STAGE_MS
EXPIRE_EVERY_US = 1_000_000


class Stages:
    """The stages of a node."""

    def __init__(
        self, kernel: Kernel, queues: Queues, topics: Topics, pushes: Pushes, forwards: Forwards
    ) -> None:
        self.kernel = kernel
        self.queues = queues
        self.topics = topics
        self.pushes = pushes
        self.forwards = forwards
        self.late = LateStages(kernel, topics, pushes, forwards)
        pushes.stages = self
        forwards.carriers[PublishStages] = self._publish
        forwards.carriers[DropStages] = self._drop
        kernel.timers.at(kernel.now_us + EXPIRE_EVERY_US, self._expire)

    # --- writing ---------------------------------------------------------------------------

    def known(self, shard: Shard, extra: PushExtra) -> int | None:
        """The base of a batch with the same id in the same stage: it was sent again."""
        stage = shard.staging.stages.get(extra.stage)
        if stage is None or extra.id is None:
            return None
        return next((s for s, each in stage.batches.items() if each.id == extra.id), None)

    def check(self, shard: Shard, stream: Stream, batch: Batch, extra: PushExtra) -> None:
        """Raises what is wrong with a staged batch, beside what would be wrong with any."""
        self.check_level()
        if len(extra.stage) != STAGE_BYTES or not 0 <= extra.stage_ms <= MAX_STAGE_MS:
            raise InvalidError(f"a stage has {STAGE_BYTES} bytes and lasts 30 days at most")
        if extra.hold:
            raise InvalidError("what is staged cannot be held as well")
        if stream.info.kind == "queue" and stream.options.ordered == "key":
            raise InvalidError('a queue with ordered="key" takes nothing that is staged')
        if stream.info.kind == "queue" and stream.options.gangs:
            raise InvalidError("a queue of gangs takes nothing that is staged")
        stage = shard.staging.stages.get(extra.stage)
        if stage is None and len(shard.staging.stages) >= MAX_STAGES:
            raise LimitError(f"{MAX_STAGES:,} stages are in one shard already")
        if stage is not None:
            self._check_stage(shard, extra.stage, stage, batch)
        size = batch.header.length + sum(each.staging.bytes for each in self.kernel.shards)
        if size > MAX_STAGED_BYTES:
            raise LimitError(f"{size:,} bytes would be staged on this node")

    def check_level(self) -> None:
        """ConflictError if not all nodes of the cluster know of stages and reservations."""
        if self.kernel.shared and not self.kernel.staging:
            raise ConflictError(
                "not all nodes of the cluster know of stages and reservations yet",
                advice="Upgrade the other nodes first.",
            )

    def _check_stage(self, shard: Shard, name: bytes, stage: Stage, batch: Batch) -> None:
        if stage.secured or stage.leaving or name in shard.staging.late:
            raise ConflictError("this stage is being published: nothing can be added to it")
        if len(stage.batches) + stage.coming >= MAX_STAGE_BATCHES:
            raise LimitError(f"a stage has {MAX_STAGE_BATCHES:,} batches in one shard already")
        if stage.bytes + batch.header.length > MAX_STAGE_BYTES:
            raise LimitError(f"a stage has {stage.bytes:,} bytes in one shard already")

    def accept(
        self, shard: Shard, stream: Stream, partition: int, batch: Batch, extra: PushExtra,
        level: Durability,
    ) -> Entry:  # fmt: skip
        """Logs a batch, which has been checked. Once it is committed it is part of its stage."""
        header, now_us = batch.header, self.kernel.now_us
        base = STAGED | shard.last + 1 << ORIGIN_BITS
        batch.stamp(base, shard.epoch, now_us)
        ttl_us = (extra.stage_ms or STAGE_MS) * 1000
        name = pack_name(extra.stage, ttl_us, extra.id or b"")
        meta = PushMeta(
            stream.info.id, partition, base, header.count, header.producer, header.sequence,
            header.instance, False, name,
        )  # fmt: skip
        shard.accepted(meta, now_us)
        level = shard.level_in_turn(level)
        entry = self.kernel.log(shard, Kind.PUSH, pack_push(meta), level, None, batch.buffer)
        stage = shard.staging.stage(extra.stage, ttl_us)
        stage.coming += 1
        stage.touched_us = now_us
        entry.done = partial(self._stored, shard, stage, meta, batch)
        shard.invisible.add(entry.number)
        return entry

    def _stored(
        self, shard: Shard, stage: Stage, meta: PushMeta, batch: Batch, entry: Entry
    ) -> None:
        shard.invisible.discard(entry.number)
        stage.coming = max(0, stage.coming - 1)
        if meta.stream not in self.kernel.streams:  # deleted while the batch was on its way
            self.kernel.free([(entry.location, entry.length)])
        else:
            shard.stored(meta, batch, entry.location, entry.length)

    # --- before they are published ---------------------------------------------------------

    def check_whole(self, shard: Shard, parts: list[m.StagedPart]) -> None:
        """NotFoundError if a stage is not there as a whole, ConflictError if it is being written,
        or published."""
        for part in parts:
            stage = shard.staging.stages.get(part.stage)
            if stage is not None and self._idle(shard, part.stage) is None:
                raise ConflictError("a stage is still being written, or is being published")
            if stage is None or stage.messages != part.messages:
                found = 0 if stage is None else stage.messages
                raise NotFoundError(
                    f"stage {part.stage.hex()} has {found:,} of {part.messages:,} messages in "
                    f"shard {shard.id}: it ran out, or was dropped; nothing is published",
                    advice="Stage it again, and let it last longer.",
                )

    def secure(self, shard: Shard, parts: list[m.StagedPart]) -> Entry:
        """Has stages last until they are published; what to wait for."""
        self.check_whole(shard, parts)
        names = [part.stage for part in parts]
        return self.kernel.note(shard, StagesSecured(names), Durability.REPLICATED)

    def unsecure(self, shard: Shard, parts: list[m.StagedPart]) -> None:
        """They are not published now, and last as long as they would have."""
        names = [part.stage for part in parts if self._idle(shard, part.stage) is not None]
        if names:
            self.kernel.note(shard, StagesSecured(names, False), Durability.REPLICATED)

    def _idle(self, shard: Shard, name: bytes) -> Stage | None:
        """A stage to which nothing happens at the moment; what is logged now is folded now."""
        stage = shard.staging.stages.get(name)
        if stage is None or stage.coming or stage.leaving or name in shard.staging.late:
            return None
        return stage

    # --- how they end ----------------------------------------------------------------------

    def _publish(self, part: PublishStages, shard: Shard, forward: Forward) -> Entry | None:
        """Gives all batches of stages their places. They are visible once that is committed."""
        stages = {name: self._unpublished(shard, name) for name in part.stages}
        found = {name: each for name, each in stages.items() if each is not None}
        if not found:
            return None
        placed = [
            (staged.stamped, self._place(shard, staged))
            for each in found.values()
            for staged in each.batches.values()
            if staged.stream in self.kernel.streams
        ]
        note = StagesShown(list(found), self.kernel.now_us, placed)
        touched = {(s.stream, s.partition) for e in found.values() for s in e.batches.values()}
        for each in found.values():
            each.leaving = True
        level = shard.level_in_turn(self.forwards.level)
        entry = self._log(shard, forward, note, level)
        entry.done = partial(self._shown, shard, note, touched)
        shard.invisible.add(entry.number)
        return entry

    def _unpublished(self, shard: Shard, name: bytes) -> Stage | None:
        stage = shard.staging.stages.get(name)
        return None if stage is None or stage.leaving or name in shard.staging.late else stage

    def _place(self, shard: Shard, staged: Staged) -> int:
        """The base of a batch that becomes visible, or why it gets none (see `StagesShown`)."""
        stream = self.kernel.streams[staged.stream]
        if is_late(stream, staged):
            return LATE
        ids = shard.queue(staged.stream).ids if staged.id else None
        if ids is not None:
            ids.expire(self.kernel.now_us - stream.options.id_window_ms * 1000)
            if ids.find(staged.id) is not None:
                return NOBODY
        base = self.pushes.place_rows(
            shard, stream, staged.partition, staged.priority, staged.count
        )
        if ids is not None:
            ids.add(staged.id, base, self.kernel.now_us)
        return base

    def _shown(
        self, shard: Shard, note: StagesShown, touched: set[tuple[int, int]], entry: Entry
    ) -> None:
        shard.invisible.discard(entry.number)
        shard.noted(note, entry.number, self.kernel.now_us)
        self.late.begin(shard)
        for stream, number in sorted(touched) if shard.owned else ():
            definition = self.kernel.streams.get(stream)
            if definition is None:
                continue
            if definition.info.kind == "topic":
                self.topics.arrived(stream, number)
            elif (queue := shard.queues.get(stream)) is not None:
                self.queues.arrived(queue)

    def _drop(self, part: DropStages, shard: Shard, forward: Forward) -> Entry | None:
        names = [name for name in part.stages if self._idle(shard, name) is not None]
        if not names:
            return None
        note = StagesDropped(names)
        entry = self._log(shard, forward, note, self.forwards.level)
        shard.noted(note, entry.number, self.kernel.now_us)
        return entry

    def _log(self, shard: Shard, forward: Forward, note: Note, level: Durability) -> Entry:
        meta = pack_forward(forward, pack_note(note))
        return self.kernel.log(shard, Kind.NOTE | Kind.FORWARDED, meta, level)

    def discard(self, call: m.DiscardStages) -> tuple[int, Entry]:
        """Drops stages that nobody publishes; how many, and what to wait for."""
        shard = self._served(call.shard)
        names = [
            name
            for name in call.stages
            if (stage := self._idle(shard, name)) is not None and not stage.secured
        ]
        entry = self.kernel.note(shard, StagesDropped(names), self.forwards.level)
        return len(names), entry

    def _served(self, number: int) -> Shard:
        if not 0 <= number < len(self.kernel.shards):
            raise InvalidError(f"shard {number}: there are {len(self.kernel.shards)}")
        return self.kernel.served(number)

    def _expire(self) -> None:
        now_us = self.kernel.now_us
        self.kernel.timers.at(now_us + EXPIRE_EVERY_US, self._expire)
        for shard in self.kernel.shards:
            if shard.staging.stages and shard.owned:
                self.late.begin(shard)
                over = list(self._overdue(shard, now_us))
                if over:
                    self.kernel.note(shard, StagesDropped(over), Durability.WRITTEN)

    def _overdue(self, shard: Shard, now_us: int) -> Iterator[bytes]:
        for name, stage in shard.staging.stages.items():
            if stage.deadline_us <= now_us and self._idle(shard, name) is not None:
                yield name
