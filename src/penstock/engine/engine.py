"""One node without its I/O: the core, the journal, and what keeps the data directory small.

A shell hands in frames and time, runs flushes and jobs (in threads, if it likes), and sends what is
in `outputs`. Everything here runs in the shell's one loop thread; only `run()` of flushes and jobs
may run elsewhere.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.core.effects import Close, Deliver, Effect, Free, Read, Send, Serve
from penstock.core.fabric import Fabric
from penstock.core.index import Stored
from penstock.core.records import Kind
from penstock.engine.consensus_log import ConsensusLog
from penstock.engine.delivery import Answer, ReadJob, build, files_of, places
from penstock.engine.foresight import Foreseen, Foresight
from penstock.engine.maintenance import Maintenance, Pace
from penstock.engine.owed import Owed
from penstock.engine.reader import BatchReader, Found
from penstock.engine.replicas import Replicas
from penstock.errors import PenstockError, StorageError
from penstock.store.cleaner import Cleaner
from penstock.store.disk import Disk, DiskError
from penstock.store.files import Files
from penstock.store.flush import Finished, Flush, Sync
from penstock.store.journal import Journal
from penstock.store.locations import split
from penstock.store.scan import Damage
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

RETRY_US = 1_000_000  # how often a refusing disk is tried again
Output = Send  # bytes for a connection; no bytes: close it
BUSY_BYTES = 64 << 20  # waiting for the journal: the shell should stop to take requests


class Mender(Protocol):
    """Whoever fetches damaged batches from elsewhere; see `engine.repairs`."""

    repaired: int  # batches

    def begin(self, effect: Deliver | Serve, found: list[Found]) -> bool:
        """Whether it takes an answer over that lacks damaged batches."""

    def complete(
        self, shard: int, batches: Sequence[tuple[bytes, Stored]], found: list[Found],
        then: Callable[[], None],
    ) -> bool:  # fmt: skip
        """Whether it does something about damaged batches of a shard that was read."""

    def look(self, file: int, damages: Sequence[Damage]) -> None:
        """Parts of a file are damaged."""


class UnsettledError(Exception):
    """Something that the core wants done cannot be done. The engine is not used any more."""


class CopyJob:
    """Reads batches that are not an answer; `then` is called when that is done."""

    def __init__(self, reader: BatchReader, places: list[tuple[int, int, int]]) -> None:
        self._reader = reader
        self._places = places
        self._known = reader.known(places)
        self.found: list[Found] = []
        self.then: Callable[[], object] = list

    def run(self) -> None:
        """Reads everything; never raises."""
        self.found = self._reader.wait(self._places, self._known)


class Engine:
    """See the module. Made by `engine.recovery.open_engine`."""

    def __init__(
        self, disk: Disk, files: Files, journal: Journal, fabric: Fabric, cleaner: Cleaner,
        pace: Pace,
    ) -> None:  # fmt: skip
        self.disk = disk
        self.files = files
        self.journal = journal
        self.fabric = fabric
        self.reader = BatchReader(disk, files, journal)
        self.outputs: list[Output] = []
        self.answer_bytes = 0  # of messages in `outputs`
        self.owed = Owed()
        self._foresight = Foresight(fabric, journal)
        self.jobs: deque[ReadJob | CopyJob] = deque()
        self.reading: Counter[int] = Counter()  # files that jobs read: they must not be dropped
        self.maintenance = Maintenance(self, cleaner, pace)
        self.read_damage: deque[str] = deque(maxlen=100)
        self.recovered: dict[str, Any] = {}
        # In a cluster: shards that recovery found without a batch, and without all of their state.
        self.damaged_shards: set[int] = set()
        self.broken_shards: set[int] = set()
        self.identity = b""  # of the data directory; goes into every checkpoint
        self.consensus = ConsensusLog()
        self.replicas: Replicas | None = None  # in a cluster
        self.mender: Mender | None = None  # in a cluster
        self.failed: UnsettledError | None = None
        self.on_failure: Callable[[Exception], None] | None = None  # told why, once
        self._retry_us: int | None = None
        fabric.extra_figures = self._figures

    # --- events ----------------------------------------------------------------------------

    def receive(self, connection: int, frame: Buffer, now_us: int) -> None:
        """One frame of a connection."""
        self.fabric.handle(connection, frame, now_us)
        self.settle(now_us)

    def foresee(self, connection: int, frame: bytearray, now_us: int) -> Foreseen | None:
        """What comes of a frame if it is handed in now, at this time, and the next flush is run at
        once; None unless that is plain. See `engine.foresight`."""
        if self.replicas is not None or self.outputs or self.failed is not None:
            return None
        return self._foresight.of(connection, frame, now_us)

    def disconnect(self, connection: int) -> None:
        """A connection is gone."""
        self.fabric.disconnect(connection)

    def pause(self, connection: int, paused: bool, now_us: int) -> None:
        """A connection takes nothing more for now, or takes it again."""
        self.fabric.pause(connection, paused, now_us)
        self.settle(now_us)

    def tick(self, now_us: int) -> None:
        """Time passes; a disk that refused is tried again."""
        if self._retry_us is not None and self._retry_us <= now_us:
            self._retry_us = None
            self.journal.resume()
        self.fabric.tick(now_us)
        self.settle(now_us)

    def next_due(self) -> int | None:
        """When `tick`, `next_flush` or `maintenance` should be called although nothing arrives."""
        due_us = self.fabric.next_due()
        for other_us in (self.journal.next_due(), self._retry_us, self.maintenance.next_due()):
            if other_us is not None and (due_us is None or other_us < due_us):
                due_us = other_us
        return due_us

    @property
    def busy(self) -> bool:
        """More waits for the disk, or for replicas, than should: take no more requests until that
        is less. Not while the disk refuses: that may last, requests that would have to wait are
        refused, and all others go on. What can be in line by then is less than the second limit."""
        waiting = self.journal.pending_bytes
        if self.replicas is not None:
            waiting = max(waiting, self.replicas.waiting_bytes)
        if waiting <= BUSY_BYTES:
            return False
        return self.fabric.kernel.refusing is None or waiting > 3 * BUSY_BYTES

    # --- the journal -----------------------------------------------------------------------

    def next_flush(self, now_us: int, apart: bool = False) -> Flush | None:
        """What to write now, if anything. Run it, then call `end_flush`. One that is small, and of
        a node that stands alone, is written `apart` if that is wanted: run it at once, and what
        `next_sync` gives."""
        return self.journal.next_flush(now_us, apart and self.replicas is None)

    def next_sync(self, now_us: int) -> Sync | None:
        """What to sync now, if anything. Run it, then call `end_sync`."""
        return self.journal.next_sync(now_us)

    def end_flush(
        self,
        flush: Flush,
        error: DiskError | None,
        now_us: int,
        send: Callable[[], None] | None = None,
    ) -> None:
        """A flush was run: what it made safe is answered. `send` may take the outputs early."""
        self._end(self.journal.finish(flush, error), now_us, send)
        if error is not None:
            self._refuse(error, now_us)
        elif self.fabric.kernel.refusing is not None:
            self.fabric.refuse(None)
        self.settle(now_us)

    def end_sync(
        self,
        sync: Sync,
        error: DiskError | None,
        now_us: int,
        send: Callable[[], None] | None = None,
    ) -> None:
        """A sync was run; as `end_flush`."""
        current = self.journal.is_syncing(sync)
        self._end(self.journal.finish_sync(sync, error), now_us, send)
        if error is not None and current:
            self._refuse(error, now_us)
        self.settle(now_us)

    def _end(
        self, finished: Finished, now_us: int, send: Callable[[], None] | None
    ) -> None:
        self.maintenance.changed = True
        for entry, old in finished.moved:
            self.maintenance.moved_by_failure(entry, old)
        self._commit(finished.committed, now_us, send)

    def _commit(
        self, entries: list[Entry], now_us: int, send: Callable[[], None] | None = None
    ) -> None:
        """Entries are as safe on this node as they were asked to be."""
        for entry in entries:
            if entry.payload is not None:
                self.reader.recent.add(entry.location, entry.payload)
                self.files.stored(entry.location, entry.length)
        if self.replicas is not None:
            self.replicas.finished(entries, now_us)
            entries = self.replicas.take_committed()
        self._hand_back(entries, now_us, send)

    def _hand_back(
        self, entries: list[Entry], now_us: int, send: Callable[[], None] | None = None
    ) -> None:
        if send is None:
            self.fabric.committed(entries, now_us)
            return

        def answered() -> None:
            self.settle(now_us)
            send()

        self.fabric.committed(entries, now_us, answered)

    def replicated(self, now_us: int) -> None:
        """Call after every event of `replicas`: what it committed is answered."""
        assert self.replicas is not None
        while entries := self.replicas.take_committed():
            self._hand_back(entries, now_us)
            self.settle(now_us)
        self.settle(now_us)

    def _refuse(self, error: DiskError, now_us: int) -> None:
        what = "is full" if error.full else "fails"
        refusal = StorageError(f"the disk {what}: {error}")
        self.fabric.refuse(refusal)
        self._retry_us = now_us + RETRY_US
        for entry in self.journal.in_line():
            answered = entry.committed or entry.answered or entry.level == Durability.MEMORY
            if entry.failed is not None and not answered:
                failed, entry.failed, entry.refused = entry.failed, None, True
                failed(refusal)  # it may want to hear of what comes after that

    # --- effects ---------------------------------------------------------------------------

    def settle(self, now_us: int) -> None:
        """Carries out what the core wants, until it wants nothing more. UnsettledError if that
        fails, and from then on."""
        if self.failed is not None:
            raise UnsettledError(str(self.failed)) from self.failed
        try:
            while effects := self.fabric.take_effects():
                self._carry_out(effects, now_us)
        except UnsettledError:  # of a call inside this one
            raise
        except Exception as error:
            # The core has numbered its records and gone on from them. Without those that are lost
            # here, later ones would be acknowledged behind a gap in the log, which the next start
            # refuses. So it is neither the failure of one request or one piece of maintenance, nor
            # one of the disk's, which passes: whoever takes it for that must not go on with this.
            self.failed = UnsettledError(f"what is to be done cannot be: {error!r}")
            if self.on_failure is not None:
                self.on_failure(error)
            raise self.failed from error

    def _carry_out(self, effects: list[Effect], now_us: int) -> None:
        at_once: list[Entry] = []
        for effect in effects:
            if isinstance(effect, Entry):
                self._append(effect, at_once, now_us)
            elif isinstance(effect, Send):
                if not self.owed.holds(effect):
                    self.outputs.append(effect)
            elif isinstance(effect, Free):
                self.files.freed_all(effect.places)
            elif isinstance(effect, Deliver | Serve):
                self._answer(effect)
            elif isinstance(effect, Read):
                self._read(effect)
            elif isinstance(effect, Close):
                self.outputs.append(Output(effect.connection, []))
        if at_once:
            self._commit(at_once, now_us)

    def _append(self, entry: Entry, at_once: list[Entry], now_us: int) -> None:
        replicas = self.replicas
        if replicas is not None:
            # What is in one node's memory alone would be gone with it, and its numbers used twice.
            if entry.kind == Kind.BARRIER and entry.level == Durability.MEMORY:
                replicas.appended(entry, now_us)  # only other nodes are asked: nothing to write
                return
            entry.level = max(entry.level, Durability.WRITTEN)
        self.journal.append(entry)
        if replicas is not None:
            replicas.appended(entry, now_us)
        elif not entry.level:  # it is kept in memory
            at_once.append(entry)

    def _answer(self, effect: Deliver | Serve) -> None:
        wanted = places(effect)
        found = self.reader.now(wanted)
        if found is not None:
            self._send(effect, found)
            return
        known = self.reader.known(wanted)
        number = self.owed.begin(effect)
        self.jobs.append(ReadJob(effect, number, lambda those: self.reader.wait(those, known)))
        self.reading.update(files_of(effect))

    def _read(self, effect: Read) -> None:
        stored = effect.stored
        job = CopyJob(self.reader, [(stored.location, stored.length, stored.stamped)])
        files = Counter({split(stored.location)[0]})

        def then() -> None:
            (found,) = job.found
            self.fabric.was_read(effect, None if isinstance(found, PenstockError) else found)
            self.settle(self.fabric.kernel.now_us)

        def read() -> None:
            self.reading -= files
            damaged, batches = isinstance(job.found[0], PenstockError), [(effect.meta, stored)]
            if not (
                damaged
                and self.mender
                and self.mender.complete(effect.shard, batches, job.found, then)
            ):
                then()

        job.then = read
        self.reading.update(files)
        self.jobs.append(job)

    def _send(self, effect: Deliver | Serve, found: list[Found]) -> None:
        answer = build(effect, found)
        if answer.damaged and self.mender is not None and self.mender.begin(effect, found):
            return
        self._put_out(effect, answer)

    def send_read(self, effect: Deliver | Serve, found: list[Found]) -> None:
        """Sends an answer with what could be had for it; what is damaged still, stays so."""
        self._put_out(effect, build(effect, found))

    def _put_out(self, effect: Deliver | Serve, answer: Answer) -> None:
        if answer.missing:
            self.fabric.not_delivered(effect.connection, effect.request, answer.missing)
        if answer.parts:
            self.outputs.append(Output(answer.connection, answer.parts))
        self.answer_bytes += sum(map(len, answer.parts))
        self.read_damage.extend(answer.damaged)

    def end_job(self, job: ReadJob | CopyJob) -> None:
        """A read was run: its answer can go."""
        if isinstance(job, CopyJob):
            job.then()
            return
        self.reading -= Counter(files_of(job.effect))  # those at zero leave
        self._send(job.effect, job.found)
        self.outputs += self.owed.end(job.effect.connection, job.number)

    def take_outputs(self) -> list[Output]:
        """What is to be sent, in order."""
        outputs, self.outputs, self.answer_bytes = self.outputs, [], 0
        return outputs

    def _figures(self) -> dict[str, Any]:
        return {
            "disk_bytes": self.files.used_bytes,
            "live_bytes": self.files.live_bytes,
            "files": len(self.files),
            "unwritten_bytes": self.journal.pending_bytes,
            "syncs": self.journal.syncs,
            "appended_records": self.journal.appended_records,
            "appended_bytes": self.journal.appended_bytes,
            "read_damage": list(self.read_damage),
            "repaired": 0 if self.mender is None else self.mender.repaired,
            "recovered": self.recovered,
            **self.maintenance.figures(),
        }
