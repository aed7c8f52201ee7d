"""A machine with one node on it: the production engine, driven by events of the world.

Everything that would wait for the device takes virtual time: a flush is run some time after it was
begun, and reported some time after it was run, so that a crash may find it anywhere.
"""

from __future__ import annotations

import traceback
from itertools import islice
from typing import NamedTuple

from penstock.engine.delivery import ReadJob
from penstock.engine.engine import CopyJob, Engine
from penstock.engine.haste import Hasty, UnforeseenError
from penstock.engine.maintenance import Pace, Step
from penstock.engine.recovery import open_engine
from penstock.errors import DamagedError
from penstock.sim.check_books import check_books
from penstock.sim.disk import Died, SimDisk
from penstock.sim.history import Trouble
from penstock.sim.network import Link
from penstock.sim.world import Action, Event, World
from penstock.store.disk import DiskError
from penstock.store.files import Limits
from penstock.store.flush import Flush, Sync

WRITE_US = 60
SYNC_US = 1500
APART = 0.8  # how often what is small is written apart from its sync
HASTE = 0.8  # how often what can be foreseen is
READ_US = 150
TENTATIVE_US = 90_000_000  # what is leased for a reservation that is never sealed comes back
RECOVERY_US = 20_000
RETRY_US = 500_000
MOST_MISCOUNTS = 5  # that are told
MAX_SPINS = 1000  # timers that are due again at once: more means that the engine never sleeps


class Size(NamedTuple):
    """Small, so that rolling, checkpoints and cleaning happen often."""

    shards: int = 8
    segment_bytes: int = 64 << 10
    pace: Pace = Pace(96 << 10, 400, Limits(keep_journal=2, dead_bytes=0), 10_000_000, 100_000, 2)


class Host:
    """Starts, drives, pauses and kills a node. `broken` is set by what no fault explains."""

    def __init__(
        self, world: World, name: str, disk: SimDisk, size: Size, trouble: Trouble | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.disk = disk
        self.size = size
        self.engine: Engine | None = None
        self.broken: str | None = None
        self.miscounts: list[str] = []  # figures that are not what there is
        self.trouble = Trouble() if trouble is None else trouble
        self.recoveries = 0
        self.checkpoints = 0
        self.cleaned_files = 0
        self.hasty = 0  # pushes that were written before the core worked on them
        self.sync_us = SYNC_US  # what a sync typically takes
        self.dies_with_power = True
        self.damage_expected = False
        self.damage_told: str | None = None  # why it did not start
        self._links: dict[int, Link] = {}
        self._clock_offset_us = 0
        self._life = 0
        self._paused = False
        self._held: list[Action] = []
        self._timer: Event | None = None
        self._timer_us = 0
        self._ticked_us = 0
        self._spins = 0

    @property
    def now_us(self) -> int:
        """The node's clock."""
        return self.world.now_us + self._clock_offset_us

    @property
    def up(self) -> bool:
        """Whether the node serves."""
        return self.engine is not None

    # --- life and death --------------------------------------------------------------------

    def start(self) -> None:
        """Recovers the data directory and serves; a failing disk is tried again."""
        if self.engine is not None or self.broken is not None:
            return
        try:
            engine = self._open()
        except DiskError as error:
            self.world.note(f"{self.name} cannot start: {error}")
            self._restart_after(RETRY_US)
        except Died as died:
            self._die(f"while recovering, {died}")
        except DamagedError as error:
            self._damaged(error)
        except Exception:  # whatever it is, it is the finding
            self.fail(f"recovery failed:\n{traceback.format_exc()}")
        else:
            self.recoveries += 1
            self.world.note(f"{self.name} is up: {engine.recovered}")
            self._set_clock(max(0, engine.fabric.newest_us() - self.now_us))
            self._later(self.world.latency(RECOVERY_US), lambda: self._serve(engine))

    def _open(self, directory: int = 1) -> Engine:
        engine = open_engine(
            self.disk, self.now_us, directory, shards=self.size.shards, node=self.name,
            accept_damage=self.damage_told is not None,
            segment_bytes=self.size.segment_bytes, pace=self.size.pace,
        )  # fmt: skip
        engine.fabric.reservations.tentative_us = TENTATIVE_US
        return engine

    def _damaged(self, error: DamagedError) -> None:
        """The node does not start. If bits were flipped, the operator accepts what is lost."""
        if self.damage_expected and self.damage_told is None:
            self.damage_told = str(error)
            self.world.note(f"{self.name} does not start: {error}")
            self._restart_after(RETRY_US)
        else:
            self.fail(f"recovery failed: {error}")

    def _serve(self, engine: Engine) -> None:
        self.engine = engine
        self.trouble.starts.append(self.world.now_us)

    def check_books(self) -> None:
        """What the node has counted is what there is."""
        if self.engine is not None and not self.miscounts:
            wrong = islice(check_books(self.engine), MOST_MISCOUNTS)
            self.miscounts = [f"{self.name}: {each}" for each in wrong]

    def crash(self, power_loss: bool, down_us: int | None, why: str = "") -> None:
        """The process ends here and now; with `power_loss` so does the machine. It is started again
        after so long; None: it is not."""
        self._life += 1
        self.trouble.crashes.append(self.world.now_us)
        kind = "power loss" if power_loss else "process dies"
        self.world.note(f"{self.name}: {kind} {why}")
        if self.engine is not None:
            self.check_books()
            self.checkpoints += self.engine.maintenance.checkpoints
            self.cleaned_files += self.engine.maintenance.cleaned_files
        self.engine = None
        self._paused = False
        self._held.clear()
        self._timer = None
        self.disk.live_on()
        for link in self._links.values():
            link.break_now()
        self._links.clear()
        if power_loss:
            self.trouble.power_losses.append(self.world.now_us)
            self.disk.lose_power()
        if down_us is not None:
            self._restart_after(down_us)

    def _die(self, why: str) -> None:
        self.crash(self.dies_with_power, self.world.between(10_000, 2_000_000), why)

    def _restart_after(self, delay_us: int) -> None:
        life = self._life
        self.world.after(delay_us, lambda: self.start() if life == self._life else None)

    def jump_clock(self, by_us: int) -> None:
        """From the next start on the clock is wrong; it never jumps while the node runs."""
        if self.engine is None:
            self._set_clock(by_us)

    def _set_clock(self, by_us: int) -> None:
        if by_us:
            self._clock_offset_us += by_us
            self.trouble.jumps.append((self.world.now_us, by_us))

    def pause(self, for_us: int) -> None:
        """The process is stopped for a while; what happens meanwhile it finds afterwards."""
        if self._paused or self.engine is None:
            return
        self._paused = True
        life = self._life
        self.world.after(for_us, lambda: self._resume() if life == self._life else None)

    def _resume(self) -> None:
        self._paused = False
        life, held = self._life, self._held
        self._held = []
        for action in held:
            if life == self._life:
                self._do(action)

    def fail(self, text: str) -> None:
        """Something that must never happen, whatever the faults."""
        if self.broken is None:
            self.broken = text
            self.world.note(f"{self.name} is broken: {text.splitlines()[0]}")

    # --- connections -----------------------------------------------------------------------

    def accept(self, link: Link) -> bool:
        """A client connects."""
        if self.engine is None:
            return False
        self._links[link.number] = link
        return True

    def arrived(self, link: Link, frame: bytearray) -> None:
        """A frame of a client."""
        if link.number in self._links:
            self._guarded(lambda: self._receive(link.number, frame))

    def _receive(self, connection: int, frame: bytearray) -> None:
        assert self.engine is not None
        if connection in self._links:
            hasty = self._hasten(self.engine, connection, frame)
            self.engine.receive(connection, frame, self.now_us)
            if hasty is not None:
                self._end_hasty(self.engine, hasty)

    def _hasten(self, engine: Engine, connection: int, frame: bytearray) -> Hasty | None:
        """As a node does it, but not always."""
        foreseen = engine.foresee(connection, frame, self.now_us)
        if foreseen is None or not self.world.chance(HASTE):
            return None
        self.hasty += 1
        hasty = Hasty(foreseen, self.disk)
        hasty.write()
        hasty.send(self._send_alone)
        return hasty

    def _send_alone(self, connection: int, data: bytes) -> bool:
        link = self._links.get(connection)
        if link is not None:
            link.answer(bytearray(data))
        return link is not None

    def _end_hasty(self, engine: Engine, hasty: Hasty) -> None:
        flush = engine.next_flush(self.now_us, apart=True)
        if flush is None or not flush.apart:
            raise UnforeseenError("a push was written, and not logged at once")
        self._end_flush(flush, hasty.end(flush))
        if hasty.foreseen.synced and hasty.error is None:
            sync = engine.next_sync(self.now_us)
            if sync is None or sync.end != hasty.foreseen.end:
                raise UnforeseenError("something else is synced, or nothing")
            self._begin_sync(sync)

    def lost(self, link: Link) -> None:
        """A connection is over."""
        if link.number in self._links:
            self._guarded(lambda: self._disconnect(link.number))

    def _disconnect(self, connection: int) -> None:
        assert self.engine is not None
        if self._links.pop(connection, None) is not None:
            self.engine.disconnect(connection)

    def stall(self, for_us: int) -> None:
        """One of the clients does not take what the node sends: the node pushes it nothing."""
        if self.engine is None or not self._links:
            return
        number = self.world.random.choice(list(self._links))
        self._guarded(lambda: self._pause_link(number, True))
        self._later(for_us, lambda: self._pause_link(number, False))

    def _pause_link(self, number: int, paused: bool) -> None:
        assert self.engine is not None
        if number in self._links:
            self.engine.pause(number, paused, self.now_us)

    def _send_outputs(self, engine: Engine) -> None:
        for output in engine.take_outputs():
            link = self._links.get(output.connection)
            if link is None:
                continue
            if output.parts:
                link.answer(bytearray().join(output.parts))
            elif link.open:
                self.fail("the node closed a connection: it did not understand its own client")
            else:  # its client has come back over another one
                del self._links[output.connection]

    # --- driving the engine ----------------------------------------------------------------

    def _guarded(self, action: Action) -> None:
        if self._paused:
            self._held.append(action)
        elif self.engine is not None:
            self._do(action)

    def _later(self, delay_us: int, action: Action) -> None:
        """Does something in this life of the node, and then what it leads to."""
        life = self._life

        def act() -> None:
            if life != self._life:
                return
            if self._paused:
                self._held.append(action)
            else:
                self._do(action)

        self.world.after(delay_us, act)

    def _do(self, action: Action) -> None:
        life = self._life
        try:
            action()
            self.pump()
        except Died as died:
            if life == self._life:
                self._die(str(died))
        except Exception:  # whatever it is, it is the finding
            self.fail(f"the engine raised:\n{traceback.format_exc()}")

    def pump(self) -> None:
        """Starts what there is to do, sends what there is to send."""
        engine = self.engine
        if engine is None or self.broken is not None:
            return
        step = engine.maintenance.next_step(self.now_us)
        if step is not None:
            self._later(self.world.latency(WRITE_US), lambda: self._run_step(step))
        self._flush(engine)
        while engine.jobs:
            self._begin_read(engine.jobs.popleft())
        self._send_outputs(engine)
        self._set_timer(engine)

    def _flush(self, engine: Engine) -> None:
        """Small ones are written at once, as a node does it, but not always."""
        apart = self.world.chance(APART)
        while (flush := engine.next_flush(self.now_us, apart)) is not None:
            if not flush.apart:
                self._begin_flush(flush)
                return
            self._end_flush(flush, _run(flush))
        sync = engine.next_sync(self.now_us)
        if sync is not None:
            self._begin_sync(sync)

    def _begin_sync(self, sync: Sync) -> None:
        self._later(self.world.latency(WRITE_US), lambda: self._run_sync(sync))

    def _run_sync(self, sync: Sync) -> None:
        error = _run(sync)
        self._later(self.world.latency(self.sync_us), lambda: self._end_sync(sync, error))

    def _end_sync(self, sync: Sync, error: DiskError | None) -> None:
        assert self.engine is not None
        if error is not None:
            self.world.note(f"{self.name}: sync failed: {error}")
        self.engine.end_sync(sync, error, self.now_us)

    def _begin_flush(self, flush: Flush) -> None:
        self._later(self.world.latency(WRITE_US), lambda: self._run_flush(flush))

    def _run_flush(self, flush: Flush) -> None:
        error = _run(flush)
        wait_us = self.world.latency(self.sync_us if flush.sync else WRITE_US)
        self._later(wait_us, lambda: self._end_flush(flush, error))

    def _end_flush(self, flush: Flush, error: DiskError | None) -> None:
        assert self.engine is not None
        if error is not None:
            self.world.note(f"{self.name}: flush failed: {error}")
        self.engine.end_flush(flush, error, self.now_us)

    def _run_step(self, step: Step) -> None:
        error = _run(step)
        self._later(self.world.latency(self.sync_us), lambda: self._end_step(error))

    def _end_step(self, error: DiskError | None) -> None:
        assert self.engine is not None
        if error is not None:
            self.world.note(f"{self.name}: maintenance failed: {error}")
        self.engine.maintenance.end_step(error, self.now_us)

    def _begin_read(self, job: ReadJob | CopyJob) -> None:
        # Reading is at the end of the wait: files may have come and gone since it was asked for.
        stuck = self.world.chance(0.03)
        wait_us = self.world.between(10_000, 800_000) if stuck else self.world.latency(READ_US)
        self._later(wait_us, lambda: self._end_read(job))

    def _end_read(self, job: ReadJob | CopyJob) -> None:
        assert self.engine is not None
        job.run()
        self.engine.end_job(job)
        self._look_for_damage(self.engine)

    def _look_for_damage(self, engine: Engine) -> None:
        if engine.read_damage and not self.damage_expected:
            self.fail(f"good data was taken for damaged: {list(engine.read_damage)}")

    def _set_timer(self, engine: Engine) -> None:
        due_us = self._next_due(engine)
        if due_us is None:
            return
        if self._timer is not None and self._timer_us <= due_us:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = due_us
        life = self._life
        self._timer = self.world.after(
            due_us - self.now_us, lambda: self._tick() if life == self._life else None
        )

    def _next_due(self, engine: Engine) -> int | None:
        return engine.next_due()

    def _tick(self) -> None:
        self._timer = None
        self._spins = self._spins + 1 if self.world.now_us == self._ticked_us else 0
        self._ticked_us = self.world.now_us
        if self._spins > MAX_SPINS:
            self.fail("the engine never sleeps: its timer is due again and again")
        self._guarded(self._tick_engine)

    def _tick_engine(self) -> None:
        assert self.engine is not None
        self.engine.tick(self.now_us)


def _run(work: Flush | Sync | Step) -> DiskError | None:
    try:
        work.run()
    except DiskError as error:
        return error
    return None
