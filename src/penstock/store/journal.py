"""The journal: one sequential log for all shards of a node, with group commit.

The owner appends entries, asks for the next flush, runs it (in a thread if it likes), and hands it
back to `finish`, which says what is committed. At most one flush runs at a time.

A flush writes, and syncs if it has to. An owner that asks for small ones *apart* only writes them,
at once, and gets what is to be synced from `next_sync`: while that runs in a thread, it goes on
writing. So nobody who asked for less than a sync waits for one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from penstock.store.disk import Disk, DiskError
from penstock.store.files import DataFile, Files
from penstock.store.flush import Finished, Flush, Opening, Piece, Recycling, Sync, uncommitted
from penstock.store.locations import JOURNAL, SPARE, file_name, locate, numbers, split
from penstock.store.record import (
    FILE_HEADER_BYTES,
    MAX_RECORD_BYTES,
    NO_SHARD,
    FileHeader,
    frame,
    record_length,
)
from penstock.store.segments import OpenSegment, Segment, Sizes
from penstock.store.unsynced import Unsynced
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

SEGMENT_BYTES = 64 << 20
MAX_FLUSH_BYTES = 16 << 20
MAX_UNSYNCED_BYTES = 16 << 20
MAX_UNSYNCED_US = 1_000_000
MAX_PATIENCE_US = 5_000  # of entries that nobody waits for: others take them along until then
MAX_PENDING_BYTES = 256 << 20
MAX_SPARES = 8
_SYNCED = Durability.SYNCED


class Journal:
    """Appends entries of all shards in order; see the module for how it is driven.

    `follows` is the position at which the recovered journal ends, all of it synced; appending
    always begins with a new segment. `recovered` are the segments that recovery found.
    Not thread safe, except that a flush may run elsewhere.
    """

    def __init__(
        self,
        disk: Disk, files: Files, directory: int, follows: int = 0,
        recovered: Sequence[Segment] = (),
        segment_bytes: int = SEGMENT_BYTES,
        max_flush_bytes: int = MAX_FLUSH_BYTES,
        max_unsynced_bytes: int = MAX_UNSYNCED_BYTES,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._files = files
        self._directory = directory
        self.segment_bytes = segment_bytes
        self._max_flush_bytes = max_flush_bytes
        self._max_unsynced_bytes = max_unsynced_bytes
        self._max_pending_bytes = max_pending_bytes
        self._queue: deque[Entry] = deque()
        self._framed: deque[Flush] = deque()
        self._running: Flush | None = None
        self._syncing: Sync | None = None
        self._unsynced = Unsynced()
        self._open: OpenSegment | None = None
        self._failed: set[int] = set()
        self._sizes = Sizes(segment_bytes)
        self._follows = follows
        names = disk.names()
        # The file that the journal ends in may be gone, but positions never go back.
        files.reserve([*names, file_name(JOURNAL, split(follows)[0])])
        self._spares = [file_name(SPARE, number) for number in numbers(names, SPARE)]
        self.pending_bytes = 0
        """Bytes appended and not yet written."""
        self.appended_bytes = 0
        self.appended_records = 0
        self.syncs = 0  # that worked
        self.stopped: DiskError | None = None
        """Why nothing is flushed, until `resume`."""
        self.written = follows
        self.synced = follows
        for segment in recovered:
            if segment.number not in files:
                files.add(DataFile(segment.number, JOURNAL))
            files[segment.number].used = segment.used
            files[segment.number].sealed = True

    @property
    def writing(self) -> bool:
        """Whether a flush runs."""
        return self._running is not None

    @property
    def busy(self) -> bool:
        """Whether a flush or a sync runs."""
        return self._running is not None or self._syncing is not None

    @property
    def committed(self) -> int:
        """The position up to which all that was written is as durable as it was asked to be."""
        return self.waiting[0].location if self.waiting else self.written

    @property
    def waiting(self) -> Sequence[Entry]:
        """What was written, and is not committed before it is synced; in order."""
        return self._unsynced.waiting

    def in_line(self) -> list[Entry]:
        """What is to be written, in order; after a failure, also what has to be written again."""
        return [*(entry for flush in self._framed for entry in flush.entries), *self._queue]

    @property
    def tail(self) -> int:
        """The position that the next framed record gets, unless it needs a new segment."""
        return self._follows if self._open is None else self._open.end

    def segments(self) -> list[Segment]:
        """All segments, oldest first; of a failed one only the synced part counts as used."""
        return [
            Segment(file.number, file.used, file.sealed, locate(file.number, file.used))
            for file in self._files.all()
            if file.kind == JOURNAL
        ]

    def append(self, entry: Entry) -> None:
        """Queue an entry; its location is known once it is framed, at the latest in its flush.

        An entry of level MEMORY is framed at once, so that its owner may commit it now and have its
        payload read through `unwritten`. ValueError: larger than a record may be. DiskError (full):
        too much is pending; nothing was queued.
        """
        payload = entry.payload
        length = record_length(len(entry.meta), 0 if payload is None else len(payload))
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"a record of {length} bytes; the limit is {MAX_RECORD_BYTES}")
        if self.pending_bytes + length > self._max_pending_bytes and self.pending_bytes:
            raise DiskError(f"{self.pending_bytes} bytes wait for the journal", full=True)
        entry.length = length
        self.pending_bytes += length
        self.appended_bytes += length
        self.appended_records += 1
        self._queue.append(entry)
        if not entry.level:  # it is kept in memory
            while self._queue:
                self._fill(self._last_framed())

    def end_of_written(self, room: int) -> OpenSegment | None:
        """Where the next flush begins if all that was appended is written, nobody waits for a sync,
        and so many bytes more have room there; else None."""
        line = self._queue or self._framed or self._running is not None or self.waiting
        end = self._open
        if line or self.stopped is not None or end is None or end.used + room > end.capacity:
            return None
        return end

    def next_flush(self, now_us: int, apart: bool = False) -> Flush | None:
        """What is to be done now; None: nothing, or a flush runs, or the journal is stopped.

        With `apart`, small ones are to be run at once, and `next_sync` is called after this.
        """
        self._unsynced.let_go()
        if self._running is not None or self.stopped is not None:
            return None
        if self._queue:
            self._fill(self._last_framed())
        if self._framed:
            flush = self._framed[0]
            flush.apart = apart and flush.is_small
            if self._syncing is not None and not flush.apart:
                return None
            self._framed.popleft()
        elif self._is_sync_due(now_us) and not apart:
            flush = Flush(self._disk)
            flush.end = self.written
        else:
            return None
        flush.started_us = now_us
        if not flush.apart:
            self._decide_on_sync(flush, now_us)
        self._running = flush
        return flush

    def _decide_on_sync(self, flush: Flush, now_us: int) -> None:
        flush.sync = (
            flush.level >= _SYNCED
            or flush.sync
            or self._is_sync_wanted(now_us, flush.bytes)
        )
        flush.at_once = flush.sync and not self._unsynced.bytes and flush.is_one_write
        flush.sync_name = file_name(JOURNAL, split(flush.end)[0])

    def next_sync(self, now_us: int) -> Sync | None:
        """A sync that is to be run now, if there is one, and neither a flush nor another runs."""
        if self.busy or self.stopped is not None or not self._is_sync_wanted(now_us):
            return None
        self._syncing = self._unsynced.next_sync(self._disk, self.written, now_us)
        return self._syncing

    def next_due(self) -> int | None:
        """When `next_flush` should be called although nothing is appended, in microseconds."""
        unsynced = self._unsynced
        if unsynced.since_us is None or self.busy or self.stopped is not None:
            return None
        due_us = unsynced.since_us + MAX_UNSYNCED_US
        if unsynced.patient_us is None:
            return due_us
        return min(due_us, unsynced.patient_us + MAX_PATIENCE_US)

    def finish(self, flush: Flush, error: DiskError | None = None) -> Finished:
        """Take a flush back after its run, with the error that it raised.

        After an error the journal is stopped. Nothing is trusted that was not synced before: all
        such entries are framed again, in order, for a new segment, and written once `resume` was
        called. What is committed stays committed.
        """
        if flush is not self._running:
            raise ValueError("this flush is not running")
        self._running = None
        if error is not None:
            return self._fail(flush, error)
        self._grow(flush)
        self.pending_bytes -= flush.bytes
        self.written = flush.end
        committed = flush.uncommitted
        if flush.sync:
            committed = [*self.waiting, *committed]
            self.syncs += 1
            self._all_synced(flush.end)
            return Finished(committed, [])
        return Finished(self._unsynced.add(flush, committed), [])

    def safe_when_written(self, flush: Flush) -> Sequence[Entry]:
        """What `finish` will say is committed by a flush that was run; nothing if somebody waits
        for a sync, as it takes longer to say then."""
        return () if flush.level >= _SYNCED or self.waiting else flush.uncommitted

    def finish_sync(self, sync: Sync, error: DiskError | None = None) -> Finished:
        """Take a sync back after its run, with the error that it raised; as `finish`. A write that
        failed meanwhile has put everything off to a new segment: then it changes nothing."""
        if sync is not self._syncing:
            return Finished([], [])
        self._syncing = None
        if error is not None:
            return self._fail(None, error)
        self.synced = sync.end
        self.syncs += 1
        return Finished(self._unsynced.synced(sync), [])

    def is_syncing(self, sync: Sync) -> bool:
        """Whether its end matters: it was not given up, as a write failed meanwhile."""
        return sync is self._syncing

    def resume(self) -> None:
        """Go on after a failure, with a new segment."""
        self.stopped = None

    def unwritten(self, location: int) -> Buffer | None:
        """The payload of the record at `location`, while it is framed and not yet written."""
        if self._running is not None:
            payload = self._running.payload_at(location)
            if payload is not None:
                return payload
        for flush in self._framed:
            payload = flush.payload_at(location)
            if payload is not None:
                return payload
        return None

    @property
    def spares(self) -> int:
        """Files that are ready to become segments."""
        return len(self._spares)

    def add_spare(self, name: str) -> None:
        """One more of them, of `segment_bytes`; what is in it does not matter."""
        self._spares.append(name)

    def recycle(self, number: int) -> Recycling:
        """How to let a dead sealed segment go: its file is kept for a new one, or deleted. To be
        run, in a thread if the caller likes, and handed back to `finish_recycling`, before another.

        The caller guarantees that a durable checkpoint refers to nothing in it. ValueError: the
        segment is open or unknown.
        """
        file = self._files.get(number)
        if file is None or file.kind != JOURNAL or not file.sealed:
            raise ValueError(f"{number} is not a sealed journal segment")
        size = self.segment_bytes if len(self._spares) < MAX_SPARES else None
        return Recycling(self._disk, number, size)

    def finish_recycling(self, recycling: Recycling) -> None:
        """A segment is gone; after an error nothing of this is known, and it may be tried again."""
        if recycling.spare is not None:
            self._spares.append(recycling.spare)
        self._files.drop(recycling.number)

    def _is_sync_wanted(self, now_us: int, more_bytes: int = 0) -> bool:
        """Whether somebody waits for what was written, or too much is not synced, or for too long.
        """
        much = self._unsynced.bytes + more_bytes >= self._max_unsynced_bytes
        return self._unsynced.awaited or much or self._is_sync_due(now_us)

    def _is_sync_due(self, now_us: int) -> bool:
        since, patient = self._unsynced.since_us, self._unsynced.patient_us
        if patient is not None and now_us - patient >= MAX_PATIENCE_US:
            return True
        return since is not None and now_us - since >= MAX_UNSYNCED_US

    def _last_framed(self) -> Flush:
        if not self._framed or self._framed[-1].bytes >= self._max_flush_bytes:
            self._framed.append(Flush(self._disk))
        return self._framed[-1]

    def _fill(self, flush: Flush, limit: int | None = None) -> None:
        """Frame queued entries for `flush`, in order, until it is full."""
        limit = self._max_flush_bytes if limit is None else limit
        queue, entries, synced = self._queue, flush.entries, self.synced
        piece = flush.pieces[-1] if flush.pieces else None
        while queue and flush.bytes < limit:
            entry = queue.popleft()
            length = entry.length
            segment = self._open
            if segment is None or segment.used + length > segment.capacity:
                segment = self._roll(flush, length)
                piece = flush.pieces[-1]
            elif piece is None:
                piece = Piece(segment.number, segment.name, segment.used, None)
                flush.pieces.append(piece)
            position = segment.number << 32 | segment.used
            frame(
                piece.parts, length, position, synced, entry.shard, entry.kind, entry.epoch,
                entry.number, entry.meta, entry.payload,
            )  # fmt: skip
            entry.location = position
            segment.used += length
            flush.bytes += length
            entries.append(entry)
            level = entry.level
            if level > flush.level:
                flush.level = level
            if not level or entry.committed:
                flush.mixed = True
            piece.end = position + length
        if piece is not None:
            flush.end = piece.end

    def _roll(self, flush: Flush, length: int) -> OpenSegment:
        """Begin a new segment in `flush`, which then has to sync; the last one is full."""
        before = self._open
        follows = self.tail
        capacity = max(self._sizes.next(bool(self._spares)), FILE_HEADER_BYTES + length)
        number = self._files.allocate()
        segment = self._open = OpenSegment(number, capacity)
        self._files.add(DataFile(number, JOURNAL))
        usual = capacity == self.segment_bytes
        opening = Opening(
            FileHeader(JOURNAL, number, NO_SHARD, self._directory, follows).pack(),
            follows,
            capacity,
            self._spares.pop() if usual and self._spares else None,
            None if before is None else before.number,
        )
        flush.pieces.append(Piece(number, segment.name, FILE_HEADER_BYTES, opening))
        flush.sync = True
        return segment

    def _grow(self, flush: Flush) -> None:
        for piece in flush.pieces:
            self._files[piece.number].used = split(piece.end)[1]
            # Only now, because a sealed segment may be dropped once nothing in it is live: until
            # the next one is written, it may be what a restart needs.
            if piece.opening is not None and piece.opening.before is not None:
                self._files[piece.opening.before].sealed = True
        for number in self._failed:
            self._files[number].sealed = True
        self._failed.clear()

    def _all_synced(self, position: int) -> None:
        self.synced = position
        self._unsynced.clear()

    def _fail(self, flush: Flush | None, error: DiskError) -> Finished:
        self.stopped = error
        self._sizes.failed(error.full)
        self._syncing = None  # of one that runs it will not matter how it ends
        unsynced = self._unsynced.entries
        for entry in unsynced:
            entry.committed = entry.committed or entry.level < _SYNCED
        flushes = list(self._framed) if flush is None else [flush, *self._framed]
        entries = unsynced + [entry for each in flushes for entry in each.entries]
        trusted = self.synced if flush is None else max(self.synced, flush.synced)
        kept = bisect_left(entries, trusted, key=lambda entry: entry.location)
        committed = uncommitted(entries[:kept])
        for entry in committed:
            entry.committed = True
        self._distrust(flushes, trusted)
        self._framed.clear()
        self._all_synced(trusted)
        self.written = trusted
        return Finished(committed, self._frame_again(entries[kept:]))

    def _distrust(self, flushes: list[Flush], trusted: int) -> None:
        """Cut all segments at the trusted position, and forget those that were never made."""
        for piece in (piece for flush in flushes for piece in flush.pieces):
            opening = piece.opening
            if opening is not None and not opening.done:
                self._files.drop(piece.number)
                # If a creation was begun it is not known whether it used its spare up.
                if opening.recycle is not None and not opening.begun:
                    self._spares.append(opening.recycle)
                continue
            file = self._files.get(piece.number)
            if file is not None:
                self._failed.add(file.number)
                file.used = split(piece.end)[1] if piece.end <= trusted else 0
        number, offset = split(trusted)
        if self._open is not None and self._open.number in self._files:
            self._failed.add(self._open.number)
        if number in self._files:
            self._files[number].used = offset
        self._open = None
        self._follows = trusted

    def _frame_again(self, entries: list[Entry]) -> list[tuple[Entry, int]]:
        """Frame all entries for one flush and one segment: its header replaces all first copies."""
        moved = [
            (entry, entry.location)
            for entry in entries
            if entry.payload is not None and (entry.committed or not entry.level)
        ]
        later, self._queue = self._queue, deque(entries)
        total = sum(entry.length for entry in entries)
        if entries:
            flush = Flush(self._disk)
            self._roll(flush, total)
            self._fill(flush, limit=total)
            self._framed.append(flush)
        self.pending_bytes = total + sum(entry.length for entry in later)
        self._queue = later
        return moved
