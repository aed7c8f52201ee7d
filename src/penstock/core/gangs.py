"""Gangs: messages of a queue that several parked workers are given at once.

Nobody holds a worker while it waits for others: a gang is granted when enough workers are parked,
all of them in one record, or not at all. So gangs cannot wait for each other in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from penstock.core.changes import Given, pack_grants
from penstock.core.effects import Read
from penstock.core.gang_line import GangLine
from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.leases import Grant
from penstock.core.parking import MAX_PARKED_WORKERS, ParkedWorker, Parking
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import Kind, PushMeta, pack_push
from penstock.core.shard import Shard
from penstock.core.undelivered import Handed
from penstock.core.views import MAX_WAIT_MS, QueueView, Taken
from penstock.errors import (
    ConflictError,
    DamagedError,
    InvalidError,
    LimitError,
    MovedError,
    PenstockError,
)
from penstock.wire import messages as m
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.frames import Verb
from penstock.wire.limits import MAX_ADDRESS_BYTES, MAX_NAME_BYTES


@dataclass(slots=True, eq=False)
class _Granted:
    """A gang on its way to its members."""

    shard: Shard
    epoch: int
    stream: int
    grant: Grant
    stored: Stored
    members: list[ParkedWorker]  # by rank


class Gangs:
    """The gangs of a node's shards, and the workers that wait for them here."""

    def __init__(self, kernel: Kernel, queues: Queues) -> None:
        self.kernel = kernel
        self.queues = queues
        self._parked_for: dict[int, int] = {}  # queues, each with its shard
        queues.grant_gangs = self.grant

    def park(self, connection: int, request: int, call: m.Park) -> ParkedWorker:
        """A worker waits for a gang; `grant` may answer it at once. It is told None when its time
        is up. A worker that parks again is not waited for where it parked before."""
        stream = self.kernel.stream(call.stream, "queue")
        if not stream.options.gangs:
            raise InvalidError(
                f"queue {stream.info.name!r} has no gangs", advice="Create it with gangs=True."
            )
        _check_worker(call)
        shard = self.kernel.shard_of(stream.info.name.encode())
        self._parked_for[call.stream] = shard.id
        view = self.queues.view(call.stream)
        parking = view.parking = view.parking or Parking()
        if (before := parking.waiting.get(call.worker)) is not None:
            self._fail(before, ConflictError(f"worker {call.worker!r} has parked again"))
        if len(parking.waiting) >= MAX_PARKED_WORKERS:
            raise LimitError(f"{MAX_PARKED_WORKERS:,} workers wait for gangs of this queue already")
        now_us = self.kernel.now_us
        parked = parking.enter(connection, request, call.worker, call.address, now_us)
        due_us = now_us + min(call.wait_ms, MAX_WAIT_MS) * 1000
        parked.timer = self.kernel.timers.at(due_us, partial(self._give_up, parked))
        return parked

    def _give_up(self, parked: ParkedWorker) -> None:
        if not parked.over:
            parked.over = True
            self.kernel.answer(parked.connection, Verb.CALL, parked.request, None)

    def end(self, shard: Shard) -> None:
        """Another node serves a shard from now on: who waits for its gangs must park there."""
        error = MovedError(f"this node does not own shard {shard.id} any more")
        for view in self._views_at(shard.id):
            assert view.parking is not None
            for parked in list(view.parking.waiting.values()):
                self._fail(parked, error)

    def _views_at(self, shard: int) -> list[QueueView]:
        """The queues of a shard that somebody has parked for; deleted ones are forgotten."""
        views = self.queues.views
        self._parked_for = {
            stream: place for stream, place in self._parked_for.items() if stream in views
        }
        return [views[stream] for stream, place in self._parked_for.items() if place == shard]

    # --- grants ----------------------------------------------------------------------------

    def grant(self, view: QueueView) -> None:
        """Grants gangs as long as there are workers enough for one that may go now."""
        parking, queue = view.parking, view.shards.get(self._parked_for.get(view.stream, -1))
        if parking is None or queue is None or queue.gangs is None:
            return
        known = partial(self._known, queue, queue.gangs, parking)
        while parking.waiting:
            position = queue.gangs.choose(len(parking.waiting), known)
            if position is None:
                return
            self._give(view, queue, position, parking.take(queue.gangs.sizes[position]))

    def _known(self, queue: QueueShard, line: GangLine, parking: Parking) -> int:
        """How many workers there are, as far as can be told."""
        grants = queue.leases.grants.values()
        at_work = sum(line.sizes.get(grant.position, 0) for grant in grants)
        return max(len(parking.waiting) + at_work, parking.seen(self.kernel.now_us))

    def _give(
        self, view: QueueView, queue: QueueShard, position: int, members: list[ParkedWorker]
    ) -> None:
        """Logs the grant; all members are answered when it is safe."""
        kernel, stream = self.kernel, self.kernel.streams[view.stream]
        shard, stored = kernel.shards[queue.shard], queue.find(position)
        assert stored is not None
        for parked in members:
            if parked.timer is not None:
                kernel.timers.cancel(parked.timer)
        lease_us = stream.options.lease_ms * 1000
        given = Given(queue.leases.next_number, position, 1, lease_us)
        grant = queue.granted(given, kernel.now_us)
        self.queues.set_timer(view, queue)
        meta = pack_grants(view.stream, [given])
        entry = kernel.log(shard, Kind.GRANT, meta, min(stream.level, Durability.WRITTEN))
        gang = _Granted(shard, shard.epoch, view.stream, grant, stored, members)
        taken = Taken(1, {1: (queue, given, grant)}, [1])
        self.queues.undelivered.answer_when_safe(
            Handed(view.stream, taken, {shard.id: shard.epoch}), entry,
            partial(self._safe, gang), partial(self._fail_all, gang),
        )  # fmt: skip

    def _safe(self, gang: _Granted) -> None:
        """What is granted is read, and told by whoever owns the shard still."""
        shard = gang.shard
        if not self.kernel.still_served({shard.id: gang.epoch}):
            self._fail_all(gang, MovedError(f"shard {shard.id} has another owner since"))
            return
        meta = pack_push(PushMeta(gang.stream, 0, gang.stored.stamped, 1, 0, 0, 0))
        then = partial(self._read, gang)
        self.kernel.effects.append(Read(shard.id, meta, gang.stored, then))

    def _read(self, gang: _Granted, batch: Buffer | None) -> None:
        if batch is None:
            self._fail_all(gang, DamagedError("the message of a gang is damaged"))
            return
        grant, addresses = gang.grant, [parked.address for parked in gang.members]
        seat = m.Seat(
            gang.shard.id, grant.number, grant.position, grant.deliveries, 0, addresses,
            bytes(batch),
        )  # fmt: skip
        for seat.rank, parked in enumerate(gang.members):
            self.kernel.answer(parked.connection, Verb.CALL, parked.request, seat)

    def _fail_all(self, gang: _Granted, error: PenstockError) -> None:
        for parked in gang.members:
            self._fail(parked, error)

    def _fail(self, parked: ParkedWorker, error: PenstockError) -> None:
        parked.over = True
        self.kernel.fail(parked.connection, Verb.CALL, parked.request, error)


def _check_worker(call: m.Park) -> None:
    if not 0 < len(call.worker.encode()) <= MAX_NAME_BYTES:
        raise InvalidError(f"a worker's name has 1 to {MAX_NAME_BYTES} bytes")
    if len(call.address.encode()) > MAX_ADDRESS_BYTES:
        raise InvalidError(f"a worker's address has at most {MAX_ADDRESS_BYTES} bytes")
