"""Checkpoints and cleaning: what keeps restarts short and the data directory small.

One thing at a time, in steps: `next_step` prepares one on the loop thread, the shell runs it
elsewhere, `end_step` takes it back. What was acknowledged does not depend on any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import numpy as np

from penstock.core.liveness import Liveness, grown_partition
from penstock.core.partition import Partition
from penstock.core.runs import rows_of
from penstock.engine.preparing import Preparing
from penstock.engine.room import Room
from penstock.engine.scrubbing import EVERY_US, PAUSE_US, Scrub
from penstock.engine.thinning import thin
from penstock.store.checkpoint import CheckpointWriter, drop_older, next_checkpoint
from penstock.store.cleaner import Cleaner, Move, Positions
from penstock.store.disk import DiskError
from penstock.store.files import Limits
from penstock.store.locations import JOURNAL, split
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

SHARDS_A_STEP = 8
STEP_BYTES = 4 << 20  # of snapshots: a step ends with the shard that passes it
THIN_MESSAGES = 1000  # new ones before a keep-latest partition is thinned again
RETRY_US = 5_000_000
LOOK_EVERY_US = 50_000

_encode = msgspec.msgpack.Encoder().encode
Work = Callable[[], object]
_OVER = object()


class Pace(NamedTuple):
    """When there is enough to do: journal between two checkpoints, and what is worth cleaning; how
    often old files are read through, with which pauses; and how many segments are made ahead."""

    checkpoint_bytes: int = 384 << 20
    checkpoint_records: int = 200_000
    limits: Limits = Limits()
    scrub_every_us: int = EVERY_US
    scrub_pause_us: int = PAUSE_US
    prepared: int = 0


class Step:
    """A piece of work that waits for the disk."""

    def __init__(self, run: Work) -> None:
        self.run = run


class Maintenance:
    """Decides what to do next, and does it in steps."""

    def __init__(self, engine: Engine, cleaner: Cleaner, pace: Pace) -> None:
        self.engine = engine
        self.cleaner = cleaner
        self.pace = pace
        now_us = engine.fabric.kernel.now_us
        self.scrub = Scrub(engine, now_us, pace.scrub_pause_us, pace.scrub_every_us)
        self.preparing = Preparing(engine, pace.prepared)
        self.room = Room(engine)
        self.checkpoints = 0
        self.begun = 0  # checkpoints; the last of them may be under way
        self.finished = 0  # the number, among those begun, of the last that is durable
        self.failures = 0  # pieces of work that the disk refused
        self.cleaned_files = 0
        self.position = 0  # replay starts here, by the last checkpoint
        self._appended = 0  # bytes and records at the last checkpoint
        self._records = 0
        self._covered: set[int] = set()  # cleaned files that a checkpoint must cover first
        self._left: set[int] = set()  # of those, what the last checkpoint could not let go
        self._kept: set[int] = set()  # damaged files: not cleaned again, never dropped
        self._thinned: dict[tuple[int, int], int] = {}  # partition: its end when it was thinned
        self._work: Generator[Work | None, None, None] | None = None
        self._running = False
        self._wait_us = 0
        self._wanted = False
        self._dropped = 0  # checkpoints, up to the last that has let go what it covers
        self._moves = 0  # records that are elsewhere because their segment failed
        self.changed = True  # something was written since the last look for work
        self._look_us = 0  # not before this

    # --- what to do ------------------------------------------------------------------------

    def recovered(self, position: int, records: int) -> None:
        """Replay started here and took so many records: they count as journal since then."""
        self.position = position
        self._records = -records

    def want_checkpoint(self) -> None:
        """The next step begins a checkpoint, whether it is due or not, also after a failure."""
        self._wanted = True
        self._wait_us = 0

    def next_step(self, now_us: int) -> Step | None:
        """The next piece of work, if there is any and none is running."""
        if self._running or self.engine.journal.stopped is not None or now_us < self._wait_us:
            return None
        self._wait_us = 0
        if self._work is None:
            if self._wanted or (self.changed and now_us >= self._look_us):
                self._work = self._choose()
                if self._work is None:
                    self.changed, self._look_us = False, now_us + LOOK_EVERY_US
                    self.preparing.look(now_us)
            if self._work is None and now_us >= self.scrub.due_us:
                self._work = self.scrub.round(now_us)
            if self._work is None and now_us >= self.preparing.due_us:
                self._work = self.preparing.round(now_us)
            if self._work is None:
                return None
        try:
            work = next(self._work, _OVER)
        except DiskError:
            self._give_up(now_us)
            return None
        if work is _OVER:
            self._work, self.changed, self._look_us = None, True, 0
            return self.next_step(now_us)
        if work is None:  # it waits for the journal
            return None
        self._running = True
        return Step(work)  # type: ignore[arg-type]

    def end_step(self, error: DiskError | None, now_us: int) -> None:
        """A step was run. After an error the whole thing is given up, and tried again later."""
        self._running = False
        if error is not None:
            if self._work is not None:
                with suppress(StopIteration, DiskError):
                    self._work.throw(error)
            self._give_up(now_us)

    def _give_up(self, now_us: int) -> None:
        self._work = None
        self._wait_us = now_us + RETRY_US
        self.failures += 1

    def next_due(self) -> int | None:
        """When to look again after a failure."""
        if self._running or self.engine.journal.stopped is not None:
            return None  # there will be an event
        if self._wait_us:
            return self._wait_us
        if self._work is not None:
            return None
        due_us = min(self.scrub.due_us, self.preparing.due_us)
        return min(self._look_us, due_us) if self.changed else due_us

    def is_over(self, before: tuple[int, int]) -> bool:
        """Whether a checkpoint was made, and what it covers let go, or something has failed since
        `progress` was this."""
        checkpoints, failures = before
        made = self.checkpoints > checkpoints and self._dropped == self.checkpoints
        return made or self.failures > failures

    @property
    def progress(self) -> tuple[int, int]:
        """For `is_over`."""
        return self.checkpoints, self.failures

    @property
    def waiting(self) -> bool:
        """Whether `next_step` may have something to do."""
        return not self._running

    @property
    def dead_segments(self) -> int:
        """Those of the journal that the next checkpoint lets go: they will be spares."""
        files = (self.engine.files.get(number) for number in self._covered)
        return sum(file is not None and file.kind == JOURNAL for file in files)

    def _choose(self) -> Generator[Work | None, None, None] | None:
        if self._is_due():
            return self._checkpoint()
        limits = self.pace.limits
        if self.room.is_scarce:
            limits = limits._replace(dead_bytes=0)
        victims = self.engine.files.victims(limits)
        for number in victims:
            file = self.engine.files[number]
            if number in self._covered or number in self._kept:
                continue
            if file.live == 0:
                self._covered.add(number)
            else:
                return self._clean(number)
        if self._covered and self.room.is_unknown:
            return self.room.look()
        return self._choose_thinning()

    def _choose_thinning(self) -> Generator[Work | None, None, None] | None:
        while (partition := grown_partition(self.engine.fabric.kernel)) is not None:
            done = self._thinned.get((partition.stream, partition.number), partition.start)
            if partition.end - done >= max(THIN_MESSAGES, partition.live_messages // 2):
                self._forget_thinned()
                return self._thin(partition)
        return None

    def _forget_thinned(self) -> None:
        """Those of topics that were deleted."""
        known = self.engine.fabric.kernel.streams
        self._thinned = {key: end for key, end in self._thinned.items() if key[0] in known}

    def _is_due(self) -> bool:
        if self._wanted or (self.room.is_scarce and not self._covered <= self._left):
            return True
        journal = self.engine.journal
        least = journal.segment_bytes  # that is what one has on the disk, however little is used
        reclaimable = sum(
            max(file.used, least if file.kind == JOURNAL else 0)
            for n in self._covered
            if (file := self.engine.files.get(n)) is not None
        )
        return (
            journal.appended_bytes - self._appended + reclaimable >= self.pace.checkpoint_bytes
            or journal.appended_records - self._records >= self.pace.checkpoint_records
        )

    # --- checkpoint ------------------------------------------------------------------------

    def _checkpoint(self) -> Generator[Work | None, None, None]:
        """One that fails is wanted again: a full disk waits for what it lets go."""
        self._wanted = False
        self.begun += 1
        try:
            yield from self._snapshot_all()
        except DiskError:
            self._wanted = True
            raise

    def _snapshot_all(self) -> Generator[Work | None, None, None]:
        """Snapshots all shards, a few at a time, while the node goes on."""
        engine, fabric = self.engine, self.engine.fabric
        position, replicas = engine.journal.committed, engine.replicas
        while replicas is not None and not replicas.is_committed(position):
            yield None  # what is not committed is in no snapshot, and would not be replayed either
        moves = self._moves
        self._appended = engine.journal.appended_bytes
        self._records = engine.journal.appended_records
        covered = set(self._covered)
        writers: list[CheckpointWriter] = []
        yield lambda: writers.append(next_checkpoint(engine.disk))
        writer = writers[0]
        yield _adding(writer, {"identity": engine.identity})
        for sections in self._sections():
            yield _adding(writer, sections)
        # Definitions come after the shards: whatever is in a shard's snapshot must be defined when
        # it is loaded, because its records are not folded again.
        control = _encode(fabric.control_log.snapshot())
        yield _adding(writer, {"control": control, "files": engine.files.dump()})
        if engine.consensus.number:
            yield _adding(writer, {"consensus": engine.consensus.dump()})
        if replicas is not None and (withheld := replicas.withheld):
            broken = engine.broken_shards
            kept = [sorted(withheld - broken), sorted(withheld & broken)]
            yield _adding(writer, {"withheld": _encode(kept)})
        safe: list[Entry] = []
        fabric.kernel.barrier(Durability.SYNCED, safe.append, local=True)
        engine.settle(fabric.kernel.now_us)
        while not safe:  # the journal must hold all that the snapshots build on
            yield None
        if moves != self._moves:  # the snapshots may name places that are given up
            self._wanted = True
            return
        synced = engine.journal.synced
        yield lambda: writer.commit(position, synced)
        yield lambda: drop_older(engine.disk, writer.number)
        self.position = position
        self.checkpoints += 1
        self.finished = self.begun
        yield from self._drop(covered)
        self._left = set(self._covered)
        self._dropped = self.checkpoints

    def _sections(self) -> Iterator[dict[str, bytes]]:
        """Snapshots of all shards that hold something: a few at a time, fewer of large ones."""
        fabric = self.engine.fabric
        sections: dict[str, bytes] = {}
        size = 0
        for shard in fabric.kernel.shards:
            fabric.queues.forget_idle(shard)
            if shard.last:
                packed = sections[f"shard-{shard.id}"] = _encode(shard.snapshot())
                size += len(packed)
            if sections and (len(sections) >= SHARDS_A_STEP or size >= STEP_BYTES):
                self.engine.settle(fabric.kernel.now_us)  # what is forgotten is noted in the log
                yield sections
                sections, size = {}, 0
        self.engine.settle(fabric.kernel.now_us)
        if sections:
            yield sections

    def _drop(self, covered: set[int]) -> Generator[Work | None, None, None]:
        """Files that are not needed any more: cleaned before the checkpoint, and not replayed."""
        engine = self.engine
        for number in sorted(covered):
            file = engine.files.get(number)
            if file is None or file.live:
                self._covered.discard(number)
                continue
            if file.kind == JOURNAL and number >= split(self.position)[0]:
                continue
            if number in engine.reading:  # the next checkpoint will find it again
                continue
            self._covered.discard(number)
            if file.kind == JOURNAL:
                recycling = engine.journal.recycle(number)
                yield recycling.run
                engine.journal.finish_recycling(recycling)
            else:
                yield _deleting(engine, file.name)
                engine.files.drop(number)  # after an error the next checkpoint finds it again
        yield engine.disk.sync_names

    # --- keep-latest -----------------------------------------------------------------------

    def _thin(self, partition: Partition) -> Generator[Work | None, None, None]:
        self._thinned[partition.stream, partition.number] = partition.end
        return thin(self.engine, partition)

    # --- cleaning --------------------------------------------------------------------------

    def _clean(self, number: int) -> Generator[Work | None, None, None]:
        """Copies what is live out of a file."""
        job = self.cleaner.clean(number)
        more: list[bool] = []
        try:
            while True:
                yield lambda: more.append(job.plan_scan())
                if not more[-1]:
                    break
                job.choose(_Owner(Liveness(self.engine.fabric.kernel)))
                yield job.copy
            yield job.sync
        except DiskError:
            job.abandon()
            raise
        self._apply(job.finish())
        self.engine.read_damage.extend(
            f"{damage.file} at {damage.offset}: {damage.reason}" for damage in job.damages
        )
        (self._kept if job.damages else self._covered).add(number)
        self.cleaned_files += 1
        if job.damages and self.engine.mender is not None:
            self.engine.mender.look(number, job.damages)

    def _apply(self, moves: list[Move]) -> None:
        liveness, files = Liveness(self.engine.fabric.kernel), self.engine.files
        for move in moves:
            before = liveness.moved(
                move.shard, move.kind, move.meta, move.old_location, move.new_location,
                move.new_length, move.rows,
            )  # fmt: skip
            if before is None:
                continue
            files.freed(move.old_location, before.live_bytes)
            # What is live of it is what will be freed, to the byte: a file that seems to have
            # nothing that anybody wants is deleted.
            after = before._replace(rows=move.rows, length=move.new_length)
            files.stored(move.new_location, after.live_bytes)

    def repaired(self, number: int) -> None:
        """A damaged batch of a file has a copy elsewhere, and a checkpoint makes that last. A file
        in which nothing else is wanted may go."""
        file = self.engine.files.get(number)
        if file is not None and not file.live:
            self._kept.discard(number)
        self.want_checkpoint()

    def moved_by_failure(self, entry: Entry, old: int) -> None:
        """A record was appended again because its segment failed before it was synced."""
        self._moves += 1
        liveness = Liveness(self.engine.fabric.kernel)
        before = liveness.at(entry.shard, entry.kind, entry.meta)
        if before is not None and before.location == old:
            liveness.moved(
                entry.shard, entry.kind, entry.meta, old, entry.location, entry.length, before.rows
            )
            self.engine.files.freed(old, before.live_bytes)
            self.engine.files.stored(entry.location, before.live_bytes)

    def figures(self) -> dict[str, Any]:
        """For `penstock top` and the like."""
        return {
            "checkpoints": self.checkpoints,
            "cleaned_files": self.cleaned_files,
            "scrubs": self.scrub.passes,
            "scrub_damages": self.scrub.damages,
            "prepared_segments": self.preparing.made,
        }


class _Owner:
    """Answers the cleaner's question from the core's state."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness

    def live_positions(
        self, shard: int, kind: int, meta: bytes, location: int
    ) -> Literal["all"] | Positions | None:
        """Positions of the batch that are wanted."""
        stored = self._liveness.at(shard, kind, meta)
        if stored is None or stored.location != location or not stored.live:
            return None
        if stored.live == stored.rows:
            return "all"
        mask = self._liveness.live_mask(shard, kind, meta, stored)
        return rows_of(mask).astype(np.int64) + stored.stamped


def _adding(writer: CheckpointWriter, sections: dict[str, bytes]) -> Work:
    def add() -> None:
        for key, data in sections.items():
            writer.add(key, data)

    return add


def _deleting(engine: Engine, name: str) -> Work:
    return lambda: engine.disk.delete(name)
