"""One partition's fragments into objects: time, order, what may be committed, and resuming.

Fragments that are ahead of the watermark wait until it has passed them, and are then folded by
(time, offset). Which fragments belong together is so the same for every order of arrival within
the delay, and how the input is cut into batches does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np

from penstock.consumers.calls import ErrorPolicy
from penstock.consumers.dump import Position, dump_parts, load_parts
from penstock.consumers.folding import Folding, microseconds
from penstock.consumers.fragments import NEVER_US, Fragment, Fragments, Rows
from penstock.consumers.held import Held
from penstock.consumers.ledger import Ledger
from penstock.consumers.moved import Moved
from penstock.consumers.objects import FOREVER_US
from penstock.consumers.progress import Progress, SnapshotRef, name_of
from penstock.consumers.replay import Replay
from penstock.consumers.runs import RunFolding
from penstock.consumers.snapshot import Snapshot, unpack
from penstock.consumers.stateful import BulkStateful, Flags, Stateful
from penstock.consumers.steps import Limits, Step
from penstock.errors import ClosedError, InvalidError, LimitError

S = TypeVar("S")


class Assembler(Generic[S]):
    """The state machine of one partition. Feed it with fragments from `next_offset` on.

    It starts where `progress` says; `objects` are the bytes of the snapshot that the progress
    refers to. After an error it is of no more use: make another from what was committed.
    """

    def __init__(
        self,
        stateful: Stateful[S],
        progress: Progress | None = None,
        objects: Iterable[bytes] = (),
        *,
        partition: int = 0,
        on_error: ErrorPolicy | None = None,
        limits: Limits | None = None,
        bulk: bool = True,
        moved: Sequence[Moved] = (),
    ) -> None:
        """`moved`: keys that are passed over where fragments are read again: others have them."""
        policy = on_error or ErrorPolicy()
        completion = stateful.completion
        self._limits = limits or Limits()
        self._stateful = stateful
        self._folding = Folding(stateful, partition, policy, self._limits)
        self._bulk: RunFolding[S] | None = None
        if (
            bulk
            and isinstance(stateful, BulkStateful)
            and policy == ErrorPolicy()
            and completion.count is None
            and completion.period is None
        ):
            self._bulk = RunFolding(self._folding, stateful, partition)
        self._by_arrival = completion.time == "arrival"
        self._lag_us = max(1, microseconds(completion.delay) or 0)
        self._idle_after_us = microseconds(completion.idle_after)
        self._held = Held()
        self._moved = moved
        self._broken = False
        self._clock: tuple[int, int] | None = None  # (now, highest time) of the last fragments
        self._resume(progress or Progress.start(), objects)

    def _resume(self, progress: Progress, objects: Iterable[bytes]) -> None:
        folding, snapshot = self._folding, progress.snapshot
        self.next_offset = folding.position = progress.offset
        self._high_us = NEVER_US
        self._replay: Replay | None = None
        self._ledger = Ledger(folding, self._held, self._limits, progress)
        if snapshot is not None:
            self._high_us, folding.watermark_us = snapshot.high_us, snapshot.watermark_us
            ended = set(progress.ended)
            for found in (unpack(self._stateful, packed) for packed in objects):
                if name_of(found.key) in ended:
                    folding.objects.ended.add(found.key)
                else:
                    folding.objects.restore(found)
        if progress.offset < progress.through:
            self._replay = Replay(progress, self._moved)
            folding.muted = True
        self._advance(progress.high_us)

    @classmethod
    def load(
        cls, stateful: Stateful[S], parts: Sequence[bytes], *, partition: int = 0,
        on_error: ErrorPolicy | None = None, limits: Limits | None = None, bulk: bool = True,
        moved: Sequence[Moved] = (),
    ) -> Assembler[S]:  # fmt: skip
        """An assembler that goes on where the one stood of which this is the dump.

        ProtocolError if it is no dump, or of a version that is not known here.
        """
        made = cls(
            stateful, partition=partition, on_error=on_error, limits=limits, bulk=bulk, moved=moved
        )
        found = load_parts(parts, made._folding, made._held)
        made.next_offset, made._high_us, made._clock = found.next_offset, found.high_us, found.clock
        if found.replay is not None:
            made._replay = Replay(Progress.decode(found.replay), moved, found.replay_left)
            made._folding.muted = True
        made._ledger.restore(found.advances, found.snapshot)
        return made

    # --- steps -----------------------------------------------------------------------------

    def take(self, fragments: Fragments, now_us: int) -> Step:
        """Folds fragments; those before `next_offset` are passed over, their order is kept.

        HandlerError: the user's code raised. LimitError: a bound was reached.
        """
        fragments.check()
        self._check_usable()
        self._ledger.check(self.next_offset)
        known = int(np.searchsorted(fragments.offsets, self.next_offset))
        fresh = fragments.cut(known, len(fragments)) if known else fragments
        if len(fresh):
            self._broken = True  # until all of it is done
            parts = [fresh] if self._replay is None else self._replay.cuts(fresh)
            for part in parts:
                self._take_part(part)
            if self._replay is not None and self.next_offset >= self._replay.progress.through:
                self._end_replay()
            self._clock = now_us, self._high_us
            self._broken = False
        return self._finished_step()

    def tick(self, now_us: int, *, at_end: bool) -> Step:
        """Lets time go on without fragments.

        `at_end`: the partition has been read to its end just now. Only then can silence count:
        otherwise what has not been read yet would be late.
        """
        self._check_usable()
        if self._clock is None:
            self._clock = now_us, self._high_us
        if at_end:
            self._broken = True
            self._end_replay()
            self._advance_by_clock(now_us)
            self._broken = False
        return self._finished_step()

    def finish(self) -> Step:
        """There is nothing more to come: time goes on for ever, so that silence ends what it can.

        For input that has an end. After that only the step counts.
        """
        self._check_usable()
        self._broken = True
        self._end_replay()
        self._advance(FOREVER_US)
        return self._finished_step()

    def _check_usable(self) -> None:
        if self._broken:
            raise ClosedError(
                "an assembler that failed does not go on",
                advice="Make a new one from the progress that was committed last.",
            )

    def _finished_step(self) -> Step:
        folding = self._folding
        folding.objects.compact()
        step, folding.step = folding.step, Step()
        step.wants_snapshot = self._ledger.wants_snapshot(self.next_offset)
        return step

    # --- fragments -------------------------------------------------------------------------

    def _take_part(self, part: Fragments) -> None:
        """Fragments between which nothing else happened."""
        first = int(part.offsets[0])
        replay = self._replay
        if replay is not None:
            if first >= replay.progress.through:
                self._end_replay()
                replay = None
            elif (advanced_us := replay.advance_before(first)) is not None:
                self._advance(advanced_us)
        rows = self._rows(part)
        wanted = None if replay is None else replay.wanted(part, rows.times_us)
        self.next_offset = int(part.offsets[-1]) + 1
        snapshot = self._ledger.snapshot_ref
        if wanted is not None and snapshot is not None and first < snapshot.offset:
            # All that was in time and was not folded into the snapshot's objects waited then.
            ahead = rows.times_us > self._folding.watermark_us
            self._held.add(rows.pick(np.flatnonzero(ahead & wanted)))
        elif self._folding.eager:
            self._take_eagerly(rows, wanted)
        else:
            self._take_held(rows, wanted)
        self._check_limits()

    def _rows(self, part: Fragments) -> Rows:
        times_us = part.arrived_us if self._by_arrival else part.times_us
        highest = np.maximum(np.maximum.accumulate(times_us), self._high_us)
        if self._by_arrival:
            times_us = highest  # a clock that was set back does not make anything late
        before = np.concatenate((np.array([self._high_us], np.int64), highest[:-1]))
        return Rows(part.keys, part.values, times_us, part.offsets, before)

    def _behind(self, rows: Rows) -> Flags:
        watermarks = np.maximum(rows.high_us - self._lag_us, self._folding.watermark_us)
        behind: Flags = rows.times_us <= watermarks
        return behind

    def _take_held(self, rows: Rows, wanted: Flags | None) -> None:
        """Rows wait until their time; those that are behind it cut the others into parts."""
        behind = self._behind(rows)
        if wanted is not None:
            behind &= wanted
        start = 0
        for row in np.flatnonzero(behind).tolist():
            self._take_ahead(rows, wanted, start, row)
            self._folding.position = int(rows.offsets[row]) + 1
            fragment = Fragment(
                rows.keys[row], rows.values[row], int(rows.times_us[row]), int(rows.offsets[row])
            )
            self._folding.take_behind(fragment, int(rows.high_us[row]))
            start = row + 1
        self._take_ahead(rows, wanted, start, len(rows))

    def _take_ahead(self, rows: Rows, wanted: Flags | None, start: int, stop: int) -> None:
        if start == stop:
            return
        part = rows.cut(start, stop)
        high_us = _highest(part)
        position = int(part.offsets[-1]) + 1
        if wanted is not None:
            part = part.pick(np.flatnonzero(wanted[start:stop]))
        self._held.add(part)
        self._folding.position = position
        self._advance(high_us)

    def _take_eagerly(self, rows: Rows, wanted: Flags | None) -> None:
        high_us = _highest(rows)
        behind = self._behind(rows)
        if wanted is not None:
            chosen = np.flatnonzero(wanted)
            rows, behind = rows.pick(chosen), behind[chosen]
        in_order = bool((rows.times_us[1:] >= rows.times_us[:-1]).all()) and not behind.any()
        self._folding.position = self.next_offset
        if not (in_order and self._fold_in_bulk(rows, high_us - self._lag_us)):
            self._folding.fold_eagerly(rows, behind.tolist(), self._lag_us)
        self._folding.position = self.next_offset
        self._advance(high_us)

    def _fold_in_bulk(self, rows: Rows, limit_us: int) -> bool:
        return self._bulk is not None and self._bulk.fold(rows, limit_us)

    # --- time ------------------------------------------------------------------------------

    def _advance(self, high_us: int) -> None:
        """Moves the highest time on; what waited and what is due by that is dealt with in order."""
        self._high_us = max(self._high_us, high_us)
        watermark_us = max(self._folding.watermark_us, self._high_us - self._lag_us)
        self._folding.watermark_us = watermark_us
        released = self._held.release(watermark_us)
        if released is None or not self._fold_in_bulk(released, watermark_us):
            if released is not None:
                self._folding.fold(released)
            self._folding.fire(watermark_us)

    def _advance_by_clock(self, now_us: int) -> None:
        assert self._clock is not None
        since_us, high_us = self._clock
        if self._by_arrival:
            target_us = now_us
        elif self._idle_after_us is None or now_us - since_us < self._idle_after_us:
            return
        else:
            target_us = high_us + now_us - since_us
        if self._high_us == NEVER_US or target_us <= self._high_us:
            return
        self._ledger.advanced(self.next_offset, target_us)
        self._folding.position = self.next_offset
        self._advance(target_us)

    def _end_replay(self) -> None:
        """Everything that the owner before had read is read again, or is no longer there."""
        if self._replay is None:
            return
        through = self._replay.progress.through
        if (advanced_us := self._replay.advance_before(through)) is not None:
            self._advance(advanced_us)
        self.next_offset = max(self.next_offset, through)
        self._replay = None
        self._folding.muted = False

    # --- what may be committed -------------------------------------------------------------

    @property
    def watermark_us(self) -> int:
        """The time up to which nothing more is in time; monotone."""
        return self._folding.watermark_us

    @property
    def high_us(self) -> int:
        """The highest time so far, by fragments or by the clock."""
        return self._high_us

    @property
    def goes_by_clock(self) -> bool:
        """Whether time may go on without fragments, so that `tick` leads to something."""
        return self._by_arrival or self._idle_after_us is not None

    @property
    def snapshot_ref(self) -> SnapshotRef | None:
        """The snapshot that `progress()` builds on."""
        return self._ledger.snapshot_ref

    @property
    def replaying(self) -> bool:
        """Whether fragments are read again that the owner before had read."""
        return self._replay is not None

    @property
    def open_count(self) -> int:
        """Open objects."""
        return len(self._folding.objects)

    @property
    def held_count(self) -> int:
        """Fragments that wait for their time."""
        return self._held.count

    def progress(self) -> Progress:
        """What may be committed once the results of all steps so far are delivered.

        Take it before the next step. While a new owner reads again what was read before, it is the
        progress that it was made with.
        """
        if self._replay is not None:
            return self._replay.progress
        return self._ledger.progress(self.next_offset, self._high_us)

    def snapshot(self, reference: bytes, *, full: bool = False) -> Snapshot:
        """Open objects as they are, or what changed of them since the last snapshot.

        From now on `progress()` builds on it: what is returned must be durable before that progress
        is, or together with it. InvalidError while fragments are read again.
        """
        self._check_usable()
        if self._replay is not None:
            raise InvalidError("no snapshot before everything is read again that was read before")
        return self._ledger.snapshot(reference, full, self.next_offset, self._high_us)

    def dump(self) -> list[bytes]:
        """Everything that is known, in parts, for `load`: also fragments that wait for their time.

        Take it before the next step. It changes nothing; what a snapshot has is in it too.
        """
        self._check_usable()
        replay = self._replay
        position = Position(
            self.next_offset,
            self._high_us,
            self._clock,
            self._ledger.advances,
            self._ledger.snapshot_ref,
            None if replay is None else replay.progress.encode(),
            0 if replay is None else replay.left,
        )
        return dump_parts(position, self._folding, self._held)

    # --- a partition that is split -----------------------------------------------------------

    def passed(self, offset: int) -> Step:
        """There is nothing more to come before this offset."""
        self._check_usable()
        if self._replay is not None and offset >= self._replay.progress.through:
            self._broken = True
            self._end_replay()
            self._broken = False
        self.next_offset = max(self.next_offset, offset)
        return self._finished_step()

    def seed(self, owns: Callable[[bytes], bool]) -> list[bytes]:
        """A dump of some keys only, for an assembler of another partition, whose offsets go on
        where this one stands. InvalidError while fragments are read again."""
        self._check_usable()
        if self._replay is not None:
            raise InvalidError("no seed before everything is read again that was read before")
        position = Position(self.next_offset, self._high_us, self._clock, [], None, None, 0)
        return dump_parts(position, self._folding, self._held, owns)

    def give_up(self, moved: Moved) -> None:
        """Another has these keys from now on: nothing comes of them here."""
        self._check_usable()
        self._moved = (*self._moved, moved)
        self._folding.give_up(moved.has)
        rows = self._held.rows()
        if rows is not None:
            kept = [at for at, key in enumerate(rows.keys) if not moved.has(key)]
            self._held = Held()
            self._held.add(rows.pick(np.array(kept, np.intp)))
            self._ledger.held = self._held

    def _check_limits(self) -> None:
        limits, held = self._limits, self._held
        if held.count > limits.held_fragments or held.bytes > limits.held_bytes:
            raise LimitError(
                f"{held.count:,} fragments ({held.bytes:,} bytes) wait for their time",
                advice="Shorten the delay, raise the limit, or use more partitions.",
            )


def _highest(rows: Rows) -> int:
    return max(int(rows.high_us[0]), int(rows.times_us.max()))
