"""The open sessions of one bucket of keys, in columns: no code runs for each key or each row.

The same sessions as those of the consumers' assembler. Rows lie unsorted until one of their key's
sessions may be over: an end is behind the watermark, or the silence after the last row that was
known. Then all rows of these keys are sorted at once, and cut into sessions. Keys with rows that
came late go another way (`behind`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from penstock.consumers.fragments import NEVER_US
from penstock.consumers.moved import Moved
from penstock.consumers.objects import FOREVER_US
from penstock.consumers.sessions import Sessionizer
from penstock.consumers.stateful import Flags
from penstock.errors import LimitError
from penstock.spark import records
from penstock.spark.behind import Times, fold_behind
from penstock.spark.buckets import SMALL_LOG_BYTES, Saved, check_stateful
from penstock.spark.grouping import Rules, Sessions, over_by
from penstock.spark.open_rows import OpenRows, Part
from penstock.spark.session_log import Chunk, Head
from penstock.spark.slots import Slots
from penstock.wire.columns import Longs

MOST_ROWS = 16_000_000  # open fragments of a bucket
MOST_BYTES = 1 << 30
MOST_ROWS_AT_ONCE = 4_000_000  # in the results of one batch of Arrow, whose columns have a bound
MOST_BYTES_AT_ONCE = 128 << 20
_FEW_SLOTS = 4_096  # not worth clearing up


class SessionBucket:
    """Feed it with the fragments of each micro-batch, then store what `save` gives.

    After an error it is of no more use.
    """

    def __init__(
        self, sessionizer: Sessionizer, head: bytes | None = None, chunks: Iterable[bytes] = ()
    ) -> None:
        check_stateful(sessionizer)
        completion = sessionizer.completion
        self._sessionizer = sessionizer
        self._rules = Rules.of(completion)
        self._idle_us = completion.idle_after and round(completion.idle_after * 1e6)
        self._slots = Slots()
        self._open = OpenRows()
        self._results: list[pa.RecordBatch] = []
        self._at = Head.start() if head is None else Head.decode(head)
        self._saved_offset = self._at.next_offset  # rows from here on are not in the log
        if head is not None:
            self._restore(Chunk.decode(chunks))

    @property
    def token(self) -> bytes:
        """Which `save` this is as of."""
        return self._at.token

    def _restore(self, chunk: Chunk) -> None:
        slots = self._slots.numbered(chunk.keys)
        part = Part(chunk.values, chunk.times_us, chunk.offsets, chunk.folds_us, slots, chunk.ends)
        self._open.add(part)
        self._expect(part)

    # --- steps -----------------------------------------------------------------------------

    def take(
        self, keys: pa.BinaryArray, values: pa.BinaryArray, times_us: Longs, now_us: int = 0,
        ends: Flags | None = None,
    ) -> list[pa.RecordBatch]:  # fmt: skip
        """Takes the fragments of a micro-batch, in the order in which they are to count.

        `ends`: which of them are ends; the sessionizer tells if it is not given.
        """
        at, rules = self._at, self._rules
        if ends is None:
            ends = self._sessionizer.ends(values.to_pylist())
        if len(keys):
            highest = np.maximum(np.maximum.accumulate(times_us), at.high_us)
            high_us = np.concatenate((np.array([at.high_us], np.int64), highest[:-1]))
            watermarks = np.maximum(high_us - rules.lag_us, at.watermark_us)
            offsets = np.arange(at.next_offset, at.next_offset + len(keys), dtype=np.int64)
            part = Part(values, times_us, offsets, np.maximum(times_us, watermarks),
                        self._slots.numbered(keys), ends)  # fmt: skip
            behind: Flags = times_us <= watermarks
            at.next_offset += len(keys)
            at.high_us = int(highest[-1])
            if behind.any():
                part = self._take_behind(part, high_us, behind)
            self._advance(part)
            at.since_us, at.since_high_us = now_us, at.high_us
        return self._finish_step()

    def tick(self, now_us: int) -> list[pa.RecordBatch]:
        """The clock has gone on without fragments."""
        at = self._at
        target_us = at.since_high_us + now_us - at.since_us
        idle_us = self._idle_us
        if idle_us is not None and now_us - at.since_us >= idle_us and at.high_us > NEVER_US:
            at.high_us = max(at.high_us, target_us)
            self._advance(Part.empty())
        return self._finish_step()

    def flush(self) -> list[pa.RecordBatch]:
        """There is nothing more to come: time goes on for ever."""
        self._at.watermark_us = FOREVER_US - 1
        self._advance(Part.empty())
        return self._finish_step()

    def _finish_step(self) -> list[pa.RecordBatch]:
        opened = self._open
        if opened.count > MOST_ROWS or opened.bytes > MOST_BYTES:
            raise LimitError(
                f"{opened.count:,} fragments ({opened.bytes:,} bytes) of open sessions in a bucket",
                advice="Use more buckets or partitions, or a shorter timeout.",
            )
        if len(self._slots) > _FEW_SLOTS + 2 * opened.count:
            used = opened.used_slots(len(self._slots))
            opened.renumber(self._slots.keep(used))
        results, self._results = self._results, []
        return results

    # --- rows ------------------------------------------------------------------------------

    def _take_behind(self, part: Part, high_us: Longs, behind: Flags) -> Part:
        """Deals with the keys of rows that are behind the watermark; gives the rows left."""
        at, slots = self._at, self._slots
        chosen = np.zeros(len(slots), np.bool_)
        chosen[part.slots[behind]] = True
        known, places = self._open.of_slots(chosen)
        ours = chosen[part.slots]
        rows = Part.joined([known, part.pick(np.flatnonzero(ours))])
        found = fold_behind(
            rows, slots.of(rows.slots), len(known),
            Times(at.watermark_us, high_us[ours], behind[ours], at.high_us), self._rules,
            self._sessionizer.completion,
        )  # fmt: skip
        self._add_results(found.sessions)
        if found.late.any():
            late = rows.pick(np.flatnonzero(found.late))
            self._results.append(records.late(late, slots.of(late.slots)))
        self._open.remove(places, found.gone[: len(known)])
        keep = np.ones(len(part), np.bool_)
        keep[ours] = ~found.gone[len(known) :]
        return part.pick(np.flatnonzero(keep))

    def _advance(self, part: Part) -> None:
        """Takes rows in that are in time, and lets time go on."""
        at, slots, rules = self._at, self._slots, self._rules
        at.watermark_us = max(at.watermark_us, at.high_us - rules.lag_us)
        self._expect(part)
        ended = part.ends if rules.eager else part.ends & (part.times_us <= at.watermark_us)
        due = slots.due_us <= at.watermark_us
        due[part.slots[ended]] = True
        if not rules.eager:
            due[self._open.ended_through(at.watermark_us)] = True
        fresh_due = due[part.slots]
        known, places = self._open.of_slots(due)
        rows = Part.joined([known, part.pick(np.flatnonzero(fresh_due))])
        slots.due_us[due] = FOREVER_US
        if len(rows):
            found = over_by(rows, at.watermark_us, rules)
            self._add_results(found.sessions)
            self._open.remove(places, found.gone[: len(known)])
            slots.due_us[found.slots] = found.due_us
            keep = np.ones(len(part), np.bool_)
            keep[fresh_due] = ~found.gone[len(known) :]
            part = part.pick(np.flatnonzero(keep))
        self._open.add(part)

    def _expect(self, part: Part) -> None:
        """The sessions of rows may be over when there is nothing more for so long."""
        if self._rules.timeout_us is not None and len(part):
            over_us = part.times_us + self._rules.timeout_us
            np.minimum.at(self._slots.due_us, part.slots, over_us)

    def _add_results(self, sessions: Sessions) -> None:
        id_of, eager = self._sessionizer.fragment_id, self._rules.eager
        for part in sessions.cut(MOST_ROWS_AT_ONCE, MOST_BYTES_AT_ONCE):
            keys = self._slots.of(part.rows.slots[part.starts])
            self._results.append(records.finished(part, keys, id_of, eager))

    def parted(self, moved: Moved) -> SessionBucket:
        """A bucket of some of the keys, which are no business of this one any more; time in it is
        what it is here."""
        chosen = np.fromiter(map(moved.has, self._slots.names), np.bool_, len(self._slots))
        part, places = self._open.of_slots(chosen)
        self._open.remove(places, np.ones(len(part), np.bool_))
        other = SessionBucket(self._sessionizer)
        other._at = replace(self._at, token=b"", base_bytes=0, log_bytes=0)
        keys = pa.array(self._slots.of(part.slots), pa.binary())
        other._restore(
            Chunk(keys, part.values, part.times_us, part.offsets, part.folds_us, part.ends)
        )
        return other

    # --- what is stored --------------------------------------------------------------------

    def save(self, *, full: bool = False) -> Saved:
        """What has changed since the last call, to be stored before the next fragments come.

        `full`: all that there is, instead of what was stored before.
        """
        at, opened = self._at, self._open
        replaces = full or at.log_bytes > max(SMALL_LOG_BYTES, at.base_bytes)
        part = opened.since(0 if replaces else self._saved_offset)
        removed = np.concatenate([np.empty(0, np.int64), *opened.removed])
        keys = pa.array(self._slots.of(part.slots), pa.binary())
        rows = Chunk(keys, part.values, part.times_us, part.offsets, part.folds_us, part.ends)
        chunk = rows.encode(removed[:0] if replaces else removed)
        opened.removed, self._saved_offset = [], at.next_offset
        at.token = secrets.token_bytes(12)
        if replaces:
            at.base_bytes, at.log_bytes = len(chunk), 0
        else:
            at.log_bytes += len(chunk)
        return Saved(msgspec.msgpack.encode(at), chunk, replaces)
