"""Drives an engine on an asyncio loop: flushes, reads, cleaning, timers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from penstock.engine.engine import Engine, Output, UnsettledError
from penstock.engine.foresight import Foreseen
from penstock.engine.haste import Hasty, UnforeseenError
from penstock.machine import may_spin
from penstock.node.clock import Clock
from penstock.node.early import Early, Known, SendAlone, is_answer, may_leave
from penstock.node.files import FileDisk
from penstock.node.linger import AWAKE_US, Linger
from penstock.node.syncing import Syncing, may_begin
from penstock.node.tidy import Tidy
from penstock.node.worker import Worker
from penstock.store.disk import Disk, DiskError
from penstock.store.flush import INLINE_BYTES, Flush, Sync
from penstock.wire.entry import Entry

INLINE_TURNS = 8  # before other events get their turn
AT_ONCE = 4  # entries whose answers leave before what follows from them; more are sent together
EARLY_BYTES = 1 << 20  # of a flush whose answers may leave early: after more the loop is awake

Deliver = Callable[[list[Output]], None]


class Carrier(Protocol):
    """What connects an engine with those of other nodes."""

    def carry(self, now_us: int) -> None:
        """Something has happened: says what follows from it for the other nodes."""


log = logging.getLogger("penstock.node")


class Runtime:
    """The loop's side of an engine. `deliver` gets all outputs.

    Small flushes are written inline: handing them to a thread costs two wake-ups, which is more
    than the write. Everything that may wait for the device, syncs first of all, runs in threads.
    """

    def __init__(self, engine: Engine, clock: Clock, awake_us: int = AWAKE_US) -> None:
        self.engine = engine
        self.clock = clock
        self.deliver: Deliver = list.clear  # the server's
        self.carrier: Carrier | None = None  # in a cluster
        self.relieve: Callable[[], None] = _nothing  # called when there may be room again
        self.send_alone: SendAlone | None = None  # at once, from any thread; see `early`
        self.sent_alone: Callable[[int, int], None] = _ignore  # told of so many answers by that
        self._hasty: Hasty | None = None  # a push that is written, and not handed in yet
        self._syncing: Syncing | None = None  # for such pushes, once there are some
        self._may_start = True
        self._known: Known | None = None  # of such a push, while the core does not know of its sync
        self._early: Early | None = None  # of the flush or sync that runs, or was the last
        self.on_failure: list[Callable[[], None]] = []  # called once, when `failed` is set
        self._loop = asyncio.get_running_loop()
        self._journal = Worker(self._loop, "penstock-journal")
        self.catch_up = self._journal.catch_up
        """Takes note of what the journal's thread has done. Call before a request is looked at:
        whoever sent it may have an answer that left early."""
        self._keeper = Worker(self._loop, "penstock-keeper")
        self._readers = [Worker(self._loop, f"penstock-read-{n}") for n in range(2)]
        self._next_reader = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self.linger = None
        if may_spin():
            self.linger = Linger(self._loop, self._is_idle, awake_us=awake_us)
        self._idle = asyncio.Event()
        self._stopping = False
        self._stopped = False
        self.failed: BaseException | None = None  # a defect: nothing is done any more
        engine.on_failure = self.fail  # others may take it for the failure of one request

    def tidy(self, tidy: Tidy) -> None:
        """From now on, garbage is collected when there is nothing else to do."""
        if self.linger is not None:
            self.linger.tidy = tidy

    def end_early(self) -> None:
        """Nothing leaves early of what is under way: somebody may wait for it no more. What has
        left just now is taken note of: it counts as sent."""
        self._left_early(self._early)
        self.catch_up()

    def hasten(self, connection: int, frame: bytearray, now_us: int) -> None:
        """Writes what is pushed, and sends it or begins its sync, if it can be foreseen. The frame
        is handed to the engine right after this, at the same time; then comes a `pump`."""
        send = self.send_alone
        if send is None or self.carrier is not None or self.failed is not None or self._stopped:
            return
        foreseen, disk = self.engine.foresee(connection, frame, now_us), self.engine.disk
        if foreseen is None or (foreseen.synced and not self._may_begin(disk)):
            return
        self._hasty = hasty = Hasty(foreseen, disk)
        try:
            hasty.write()
            hasty.send(send)
            if foreseen.synced and hasty.error is None:
                self._begin_sync(foreseen, send)
        except Exception as defect:  # it may have been sent: the node must not think otherwise
            self.fail(defect)
            return
        for number, reply in hasty.sent:
            self._told_alone(number, is_answer(reply))

    def _may_begin(self, disk: Disk) -> bool:
        """Whether a sync can begin beside the loop. One that the journal has given up, as a write
        failed meanwhile, may still be under way."""
        if self._syncing is None and self._may_start and may_begin(disk):
            try:
                self._syncing = Syncing(self._journal)
            except RuntimeError as error:  # the system has no thread for it: the journal's will do
                self._may_start = False
                log.warning("syncs begin a little later: %s", error)
        return self._syncing is not None and not self._syncing.busy

    def _begin_sync(self, foreseen: Foreseen, send: SendAlone) -> None:
        """At once, while the core works: of what was written for a push."""
        assert self._syncing is not None
        replies = foreseen.replies[::-1]  # whoever waits for the message is told first
        known = self._known = Known(replies, send, foreseen.name, foreseen.end)
        disk, report = cast(FileDisk, self.engine.disk), partial(self._hasty_synced, known)
        self._syncing.begin(disk, known.file, report, known.send)

    def pump(self) -> None:
        """Does what there is to do. Call after every event handed to the engine.

        Answers go out first: whoever waits for one should not wait for the housekeeping too.
        """
        if self._stopped or self.failed is not None:
            return
        engine = self.engine
        self._flush()
        if self._hasty is not None or self._known is not None:
            self.fail(UnforeseenError("a push was written, and never logged, or not synced"))
            return
        while engine.jobs:
            self._read()
        if not self._stopping:
            self._maintain()
            if engine.outputs or engine.journal.pending_bytes:
                self._flush()
                while engine.jobs:  # what was written may have something read
                    self._read()
        self.relieve()
        self._set_timer()

    def _flush(self) -> None:
        engine = self.engine
        if engine.journal.writing and self.carrier is None:  # its end is an event, too
            self._send()
            return
        for _ in range(INLINE_TURNS):
            if self.carrier is not None:
                self._carry(self.carrier)
            if self.failed is not None:
                return
            self._send()
            now_us = self.clock.now_us()
            flush = engine.next_flush(now_us, apart=True)
            if flush is None:
                self._sync(now_us)
                return
            if self._hasty is not None:
                self._end_hasty(self._hasty, flush)
                continue
            if flush.sync or flush.bytes > INLINE_BYTES:
                self._write(flush)
                return
            self._end_flush(flush, _run(flush), at_once=True)
        self._sync(self.clock.now_us())
        self._loop.call_soon(self.pump)

    def _end_hasty(self, hasty: Hasty, flush: Flush) -> None:
        self._hasty = None
        try:
            error = hasty.end(flush)
        except Exception as defect:
            self.fail(defect)
            return
        if self._known is not None:
            self._known.entries = flush.entries
        self._end_flush(flush, error, at_once=True)

    def _carry(self, carrier: Carrier) -> None:
        try:
            carrier.carry(self.clock.now_us())
        except Exception as defect:  # what the other nodes think of this one may be wrong now
            self.fail(defect)

    def _write(self, flush: Flush) -> None:
        small = flush.sync and flush.bytes <= EARLY_BYTES
        early = self._early = self._early_of(flush.entries) if small else None
        report = partial(self._flushed, flush, early)
        self._journal.submit(flush.run, report, None if early is None else early.send)

    def _flushed(
        self, flush: Flush, early: Early | None, error: BaseException | None
    ) -> None:
        self._left_early(early)
        if error is None or isinstance(error, DiskError):
            self._end_flush(flush, error)
            self._idle.set()
            self.pump()
        else:
            self.fail(error)

    def _end_flush(self, flush: Flush, error: DiskError | None, at_once: bool = False) -> None:
        if error is not None:  # what a sync was to confirm is refused, unless that is over by now
            self.end_early()
        try:
            if at_once and error is None:
                self._answer_at_once(self.engine.journal.safe_when_written(flush))
            self.engine.end_flush(flush, error, self.clock.now_us(), self._send)
        except Exception as defect:  # others in this flush would never get their answers
            self.fail(defect)

    def _sync(self, now_us: int) -> None:
        sync = self.engine.next_sync(now_us)
        known = self._known
        if sync is not None and known is not None and sync.end == known.until:
            self._known, self._early, known.sync = None, known, sync  # it runs already
        elif sync is not None and known is None:
            early = self._early = self._early_of()
            report = partial(self._synced, sync, early)
            self._journal.submit(sync.run, report, None if early is None else early.send)

    def _early_of(self, entries: Sequence[Entry] = ()) -> Early | None:
        """What may leave early when these are safe, and all that wait for a sync. In a cluster it
        is not the disk alone that makes them so."""
        if self.carrier is not None or self.send_alone is None:
            return None
        early = Early([*self.engine.journal.waiting, *entries], self.send_alone)
        return early if early else None

    def _answer_at_once(self, entries: Sequence[Entry]) -> None:
        """A few entries are safe: their answers do not wait for all that the loop does next."""
        if len(entries) > AT_ONCE or self.carrier is not None or self.send_alone is None:
            return
        waiting = [entry for entry in entries if may_leave(entry)]
        if len(waiting) == 1:
            (entry,) = waiting
            assert entry.reply is not None
            connection, answer = entry.reply
            if self.send_alone(connection, answer):
                entry.answered = True
                self._told_alone(connection, is_answer(answer))
        elif waiting:
            early = Early(waiting, self.send_alone)
            early.send()
            self._left_early(early)

    def _left_early(self, early: Early | None) -> None:
        """Nothing more leaves by itself; what did is told."""
        if early is not None:
            early.end()
            for connection, answers in early.sent:
                self._told_alone(connection, answers)
            early.sent.clear()

    def _told_alone(self, connection: int, answers: int) -> None:
        self.sent_alone(connection, answers)
        if self.linger is not None:
            self.linger.answered()

    def _hasty_synced(self, known: Known, error: BaseException | None) -> None:
        if known.sync is not None:  # else the node has failed
            self._synced(known.sync, known, error)

    def _synced(self, sync: Sync, early: Early | None, error: BaseException | None) -> None:
        self._left_early(early)
        if error is not None and not isinstance(error, DiskError):
            self.fail(error)
            return
        try:
            self.engine.end_sync(sync, error, self.clock.now_us(), self._send)
        except Exception as defect:  # as above
            self.fail(defect)
        self._idle.set()
        self.pump()

    def _send(self) -> None:
        if self.engine.outputs:
            self.deliver(self.engine.take_outputs())
            if self.linger is not None:
                self.linger.answered()

    def _is_idle(self) -> bool:
        return not (self.engine.journal.busy or self.engine.reading)

    def fail(self, error: BaseException) -> None:
        """Only the disk's errors can be handled. Whatever waits for this work would wait for ever:
        the node ends; what it acknowledged is safe."""
        if self.failed is None:
            log.critical("the node failed and stops; nothing acknowledged is lost", exc_info=error)
            self.failed = error
            self._idle.set()
            for tell in self.on_failure:
                tell()

    def _read(self) -> None:
        job = self.engine.jobs.popleft()
        self._next_reader = (self._next_reader + 1) % len(self._readers)

        def done(error: BaseException | None) -> None:
            if error is not None:  # it reports damage as its result, and raises nothing
                self.fail(error)
                return
            self.engine.end_job(job)
            self.pump()

        self._readers[self._next_reader].submit(job.run, done)

    def _maintain(self) -> None:
        try:
            step = self.engine.maintenance.next_step(self.clock.now_us())
        except UnsettledError:  # the engine has told, and nothing is done any more
            return
        if step is not None:
            self._keeper.submit(step.run, self._maintained)

    def _maintained(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, DiskError):
            self.engine.maintenance.end_step(error, self.clock.now_us())
            self._idle.set()
            self.pump()
        else:
            self.fail(error)

    # --- time ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        due_us = self.engine.next_due()
        if due_us is None or (self._timer is not None and self._timer_us <= due_us):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = due_us
        delay = max(0, due_us - self.clock.now_us()) / 1e6
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.failed is not None:
            return
        self.engine.tick(self.clock.now_us())
        self.pump()

    # --- end -------------------------------------------------------------------------------

    async def stop(self, checkpoint: bool = True) -> None:
        """Writes and syncs everything, takes a checkpoint, and ends the threads.

        What the disk refuses is left out: it was not acknowledged, and a checkpoint only shortens
        the next start.
        """
        engine = self.engine
        if checkpoint:
            await self._last_checkpoint()
        self._stopping = True
        while not engine.maintenance.waiting or engine.journal.pending_bytes or engine.journal.busy:
            if self._is_stuck():
                break
            await self._wait()
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._syncing is not None:
            self._syncing.stop()
        for worker in (self._journal, self._keeper, *self._readers):
            worker.stop()

    async def _last_checkpoint(self) -> None:
        maintenance = self.engine.maintenance
        before = maintenance.progress
        maintenance.want_checkpoint()
        while not (maintenance.is_over(before) or self._is_stuck()):
            await self._wait()

    def _is_stuck(self) -> bool:
        return self.engine.journal.stopped is not None or self.failed is not None

    async def _wait(self) -> None:
        self._idle.clear()
        self.pump()
        try:
            await asyncio.wait_for(self._idle.wait(), 0.1)
        except TimeoutError:
            return


def _nothing() -> None:
    """Until a server is there."""


def _ignore(_: int, __: int) -> None:
    """The same."""


def _run(flush: Flush) -> DiskError | None:
    try:
        flush.run()
    except DiskError as error:
        return error
    return None
