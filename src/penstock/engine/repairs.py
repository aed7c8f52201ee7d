"""Repair: a stored batch that fails its checksum is fetched from another replica.

Whoever waits for it gets what came, and it is written into the own journal, so that the damage is
gone from then on; a checkpoint makes that last. Without a replica that has the batch whole, it is
answered as on a node that stands alone: damaged, and never served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from penstock.core.effects import Deliver, Serve
from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.liveness import Liveness
from penstock.core.records import Kind, PushMeta, pack_push, read_push
from penstock.core.runs import full, rows_of
from penstock.core.staged import STAGED, lane_with
from penstock.engine.delivery import places
from penstock.engine.engine import CopyJob, Engine
from penstock.engine.reader import Found
from penstock.engine.repair_messages import Held, RepairMessage, Wanted
from penstock.engine.scrubbing import live_batches
from penstock.errors import PenstockError
from penstock.store.locations import split
from penstock.store.scan import Damage
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

MAX_REPAIRS = 256  # at a time; what is found beyond is answered as damaged, and found again
MAX_READS = 16  # for other nodes, at a time
PATIENCE_US = 2_000_000  # for the answer of one replica

Then = Callable[[Buffer | None], None]
_Known = tuple[Wanted, int]  # a batch, and where it is damaged


@dataclass(slots=True, eq=False)
class _Repair:
    """One batch. `untried` are replicas that were not asked yet."""

    wanted: Wanted
    location: int  # where it is damaged
    untried: list[int]
    asked: int = 0
    due_us: int = 0
    then: list[Then] = field(default_factory=list)
    came: Buffer | None = None  # from now on it is being written


class Repairs:
    """See the module. `send` gets what is to be said; `holders` names other nodes that have a copy
    of a shard, the best first, none while the cluster does not know of repair."""

    def __init__(
        self, engine: Engine, send: Callable[[int, RepairMessage], None],
        holders: Callable[[int], list[int]],
    ) -> None:  # fmt: skip
        self.repaired = 0  # batches
        self._engine = engine
        self._kernel: Kernel = engine.fabric.kernel
        self._send = send
        self._holders = holders
        self._open: dict[Wanted, _Repair] = {}
        self._reads = 0

    # --- what is damaged here --------------------------------------------------------------

    def begin(self, effect: Deliver | Serve, found: list[Found]) -> bool:
        """Takes over an answer that lacks damaged batches, if something can be done about it: the
        engine is told when it is complete, or as complete as it gets."""
        lacking: dict[int, _Known] = {}
        for at, each in enumerate(found):
            if isinstance(each, PenstockError):
                shard = effect.slices[at].shard if isinstance(effect, Deliver) else None
                location, _, base = places(effect)[at]
                known = _at(self._kernel, location, base, shard)
                if known is not None:
                    lacking[at] = known
        return self._mend(lacking, found, lambda: self._engine.send_read(effect, found))

    def complete(
        self, shard: int, batches: Sequence[tuple[bytes, Stored]], found: list[Found],
        then: Callable[[], None],
    ) -> bool:  # fmt: skip
        """Whether something can be done about batches of a shard that were read for another node
        and are damaged; `then` is called when `found` is as complete as it gets."""
        lacking = {
            at: (_wanted(shard, read_push(batches[at][0]), batches[at][1]), batches[at][1].location)
            for at, each in enumerate(found)
            if isinstance(each, PenstockError)
        }
        return self._mend(lacking, found, then)

    def _mend(
        self, lacking: dict[int, _Known], found: list[Found], then: Callable[[], None]
    ) -> bool:
        waiting = 0

        def came(at: int, payload: Buffer | None) -> None:
            nonlocal waiting
            waiting -= 1
            found[at] = found[at] if payload is None else payload
            if not waiting:
                then()

        tried = [(at, self._repair(*known)) for at, known in lacking.items()]
        begun = [(at, repair) for at, repair in tried if repair is not None]
        waiting = len(begun)
        for at, repair in begun:
            if repair.came is not None:
                came(at, repair.came)
            else:
                repair.then.append(partial(came, at))
        return bool(begun)

    def look(self, file: int, damages: Sequence[Damage]) -> None:
        """A file was read through, and parts of it are damaged: what lived there is fetched. Looks
        at all batches of the node; damage is rare."""
        for shard, meta, stored in live_batches(self._kernel, file, damages):
            self._repair(_wanted(shard, meta, stored), stored.location)

    def _repair(self, wanted: Wanted, location: int) -> _Repair | None:
        """The repair of a batch, which may be under way; None if it cannot be tried."""
        repair = self._open.get(wanted)
        if repair is not None:
            return repair
        holders = self._holders(wanted.shard)
        if not holders or len(self._open) >= MAX_REPAIRS:
            return None
        repair = self._open[wanted] = _Repair(wanted, location, holders)
        self._ask_next(repair)
        return repair

    def _ask_next(self, repair: _Repair) -> None:
        if not repair.untried:
            del self._open[repair.wanted]
            self._tell(repair, None)
            return
        repair.asked = repair.untried.pop(0)
        repair.due_us = self._kernel.now_us + PATIENCE_US
        self._send(repair.asked, repair.wanted)

    def _tell(self, repair: _Repair, payload: Buffer | None) -> None:
        waiting, repair.then = repair.then, []
        for then in waiting:
            then(payload)

    # --- messages --------------------------------------------------------------------------

    def receive(self, source: int, message: RepairMessage) -> None:
        """A question of another node, or an answer of one that was asked."""
        if isinstance(message, Wanted):
            self._look_up(source, message)
            return
        repair = self._open.get(message.wanted)
        if repair is None or repair.asked != source or repair.came is not None:
            return
        rows = _rows(self._kernel, message.wanted, message.payload)
        if rows:
            self._store(repair, message.payload, rows)
        else:
            self._ask_next(repair)

    def _look_up(self, source: int, wanted: Wanted) -> None:
        stored = _find(self._kernel, wanted)
        same = stored is not None and stored.span == wanted.span
        if stored is not None and wanted.base < STAGED:  # others may be shown later here than there
            same = same and stored.arrived_us == wanted.arrived_us
        if stored is None or not same or self._reads >= MAX_READS:
            self._send(source, Held(wanted, b""))
            return
        engine = self._engine
        job = CopyJob(engine.reader, [(stored.location, stored.length, stored.stamped)])
        files = Counter([split(stored.location)[0]])
        engine.reading.update(files)
        self._reads += 1

        def read() -> None:
            self._reads -= 1
            engine.reading.subtract(files)
            engine.reading += Counter()  # those at zero leave
            (found,) = job.found
            payload = b"" if isinstance(found, PenstockError) else bytes(found)
            self._send(source, Held(wanted, payload))

        job.then = read
        engine.jobs.append(job)

    # --- what came -------------------------------------------------------------------------

    def _store(self, repair: _Repair, payload: bytes, rows: int) -> None:
        """Readers get it at once. It is written before anything points to it."""
        repair.came = payload
        wanted = repair.wanted

        def stored(entry: Entry) -> None:
            del self._open[wanted]
            self._put_in_place(repair, entry, rows)

        entry = Entry(
            wanted.shard, Kind.COPY, 0, 0, _meta(wanted), payload, Durability.SYNCED, stored,
            local=True,
        )  # fmt: skip
        self._kernel.effects.append(entry)
        self._tell(repair, payload)

    def _put_in_place(self, repair: _Repair, entry: Entry, rows: int) -> None:
        engine, wanted, old = self._engine, repair.wanted, repair.location
        before = Liveness(self._kernel).moved(
            wanted.shard, Kind.PUSH, entry.meta, old, entry.location, entry.length, rows
        )
        if before is None:  # all of it was finished meanwhile, or the shard is another's copy now
            engine.files.freed(entry.location, entry.length)
            return
        engine.files.freed(old, before.live_bytes)
        dead = entry.length - entry.length * before.live // rows
        engine.files.freed(entry.location, dead)
        self.repaired += 1
        engine.maintenance.repaired(split(old)[0])

    # --- time ------------------------------------------------------------------------------

    def unlinked(self, node: int) -> None:
        """What a node was asked, it will not answer."""
        for repair in list(self._open.values()):
            if repair.asked == node and repair.came is None:
                self._ask_next(repair)

    def tick(self, now_us: int) -> None:
        """Asks others where there is no answer."""
        for repair in list(self._open.values()):
            if repair.came is None and repair.due_us <= now_us:
                self._ask_next(repair)

    def next_due(self) -> int | None:
        """When `tick` should be called although nothing happens."""
        dues = (repair.due_us for repair in self._open.values() if repair.came is None)
        return min(dues, default=None)


def _wanted(shard: int, meta: PushMeta, stored: Stored) -> Wanted:
    return Wanted(
        shard, meta.stream, meta.partition, stored.stamped, stored.span, stored.arrived_us
    )


def _meta(wanted: Wanted) -> bytes:
    push = PushMeta(wanted.stream, wanted.partition, wanted.base, wanted.span, 0, 0, 0)
    return pack_push(push)


def _find(kernel: Kernel, wanted: Wanted) -> Stored | None:
    """A batch as it is stored here, if any of it is live."""
    if wanted.shard >= len(kernel.shards) or wanted.stream not in kernel.streams:
        return None
    return Liveness(kernel).at(wanted.shard, Kind.PUSH, _meta(wanted))


def _at(
    kernel: Kernel, location: int, base: int, shard: int | None
) -> _Known | None:
    """Which batch lies at a location: in the queues of a shard, or in a partition of any."""
    shards = kernel.shards if shard is None else [kernel.shards[shard]]
    for each in shards:
        for stream, partition, stored in _candidates(each.id, kernel, base, shard is not None):
            if stored.location == location:
                meta = PushMeta(stream, partition, base, stored.span, 0, 0, 0)
                return _wanted(each.id, meta, stored), location
    return None


def _candidates(
    number: int, kernel: Kernel, base: int, queues: bool
) -> Iterator[tuple[int, int, Stored]]:
    shard = kernel.shards[number]
    if queues or base >= STAGED:
        for stream, queue in shard.queues.items():
            lane = lane_with(queue, base)
            if lane is not None and (stored := lane.index.find(base)) is not None:
                yield stream, 0, stored
    if queues:
        return
    for (stream, partition), each in shard.partitions.items():
        if (stored := each.index.find(base)) is not None:
            yield stream, partition, stored


def _rows(kernel: Kernel, wanted: Wanted, payload: bytes) -> int:
    """How many messages the batch that came has; 0 if it is not the one that is wanted, or lacks
    one that is."""
    stored = _find(kernel, wanted)
    if stored is None or not payload:
        return 0
    try:
        batch = Batch.parse(payload)
        header = batch.header
        # What was staged arrived twice; its base is the number of its record, and so its own.
        if header.base != wanted.base:
            return 0
        if header.arrived_us != wanted.arrived_us and header.base < STAGED:
            return 0
        live = full(stored.span)
        if stored.live < stored.span:
            live &= Liveness(kernel).live_mask(wanted.shard, Kind.PUSH, _meta(wanted), stored)
        positions = rows_of(live).astype(np.int64) + wanted.base
        return len(batch) if len(batch.rows_at(positions)) == len(positions) else 0
    except PenstockError:
        return 0
