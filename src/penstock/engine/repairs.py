"""Repair: a stored batch that fails its checksum is fetched from another replica.

Whoever waits for it gets what came, and it is written into the own journal, so that the damage is
gone from then on; a checkpoint makes that last. Without a replica that has the batch whole, it is
answered as on a node that stands alone: damaged, and never served.

Much may be damaged at once. A node is asked for a part of it at a time, so that it can read that
without delay, and a link does not have more to send than it may; the rest is in line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from penstock.core.effects import Deliver, Serve
from penstock.core.index import Stored
from penstock.core.kernel import Kernel
from penstock.core.liveness import Liveness
from penstock.core.records import Kind, PushMeta, read_push
from penstock.core.runs import full, rows_of
from penstock.core.staged import STAGED, lane_with
from penstock.engine.delivery import places
from penstock.engine.engine import Engine
from penstock.engine.lending import PATIENCE_US, Lending, find, meta_of
from penstock.engine.reader import Found
from penstock.engine.repair_messages import RepairMessage, Wanted
from penstock.engine.scrubbing import live_batches
from penstock.errors import PenstockError
from penstock.store.locations import split
from penstock.store.scan import Damage
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

MAX_REPAIRS = 256  # at a time; what is found beyond is answered as damaged, and found again
MAX_ASKED = 16  # of one node, at a time; no more than one of an older release reads
MAX_ASKED_BYTES = 8 << 20  # the same; or one batch

Then = Callable[[Buffer | None], None]


class _Known(NamedTuple):
    """A batch, where it is damaged, and how long it is there."""

    wanted: Wanted
    location: int
    length: int


@dataclass(slots=True, eq=False)
class _Repair:
    """One batch. `untried` are replicas that were not asked yet."""

    known: _Known
    untried: list[int]
    asked: int = 0
    due_us: int | None = None  # for the answer; None: it is in line to be asked
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
        self._lending = Lending(engine, send)

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
            at: _known(shard, read_push(batches[at][0]), batches[at][1])
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

        tried = [(at, self._repair(known)) for at, known in lacking.items()]
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
            self._repair(_known(shard, meta, stored))

    def _repair(self, known: _Known) -> _Repair | None:
        """The repair of a batch, which may be under way; None if it cannot be tried."""
        wanted = known.wanted
        repair = self._open.get(wanted)
        if repair is not None:
            return repair
        holders = self._holders(wanted.shard)
        if not holders or len(self._open) >= MAX_REPAIRS:
            return None
        repair = self._open[wanted] = _Repair(known, holders)
        self._ask_next(repair)
        return repair

    def _ask_next(self, repair: _Repair) -> None:
        """The best replica that was not asked yet is asked, in turn."""
        if not repair.untried:
            del self._open[repair.known.wanted]
            self._tell(repair, None)
            return
        repair.asked, repair.due_us = repair.untried.pop(0), None
        self._ask(repair.asked)

    def _ask(self, node: int) -> None:
        """Asks a node for what is in line, as much as may be on the way."""
        own = [each for each in self._waiting() if each.asked == node]
        asked = [each.known.length for each in own if each.due_us is not None]
        for repair in own:
            if repair.due_us is not None:
                continue
            asked.append(repair.known.length)
            if len(asked) > 1 and (len(asked) > MAX_ASKED or sum(asked) > MAX_ASKED_BYTES):
                return
            repair.due_us = self._kernel.now_us + PATIENCE_US
            self._send(node, repair.known.wanted)

    def _waiting(self) -> list[_Repair]:
        """Those that wait for an answer, or to be asked for one."""
        return [each for each in self._open.values() if each.came is None]

    def _tell(self, repair: _Repair, payload: Buffer | None) -> None:
        waiting, repair.then = repair.then, []
        for then in waiting:
            then(payload)

    # --- messages --------------------------------------------------------------------------

    def receive(self, source: int, message: RepairMessage) -> None:
        """A question of another node, or an answer of one that was asked."""
        if isinstance(message, Wanted):
            self._lending.asked(source, message)
            return
        repair = self._open.get(message.wanted)
        if repair is None or repair.asked != source or repair.came is not None:
            return
        rows = _rows(self._kernel, message.wanted, message.payload)
        if rows:
            self._store(repair, message.payload, rows)
        else:
            self._ask_next(repair)
        self._ask(source)

    # --- what came -------------------------------------------------------------------------

    def _store(self, repair: _Repair, payload: bytes, rows: int) -> None:
        """Readers get it at once. It is written before anything points to it."""
        repair.came = payload
        wanted = repair.known.wanted

        def stored(entry: Entry) -> None:
            del self._open[wanted]
            self._put_in_place(repair, entry, rows)

        entry = Entry(
            wanted.shard, Kind.COPY, 0, 0, meta_of(wanted), payload, Durability.SYNCED, stored,
            local=True,
        )  # fmt: skip
        self._kernel.effects.append(entry)
        self._tell(repair, payload)

    def _put_in_place(self, repair: _Repair, entry: Entry, rows: int) -> None:
        engine, (wanted, old, _) = self._engine, repair.known
        before = Liveness(self._kernel).moved(
            wanted.shard, Kind.PUSH, entry.meta, old, entry.location, entry.length, rows
        )
        if before is None:  # all of it was finished meanwhile, or the shard is another's copy now
            engine.files.freed(entry.location, entry.length)
            return
        engine.files.freed(old, before.live_bytes)
        after = before._replace(rows=rows, length=entry.length)
        engine.files.freed(entry.location, entry.length - after.live_bytes)
        self.repaired += 1
        engine.maintenance.repaired(split(old)[0])

    # --- time ------------------------------------------------------------------------------

    def unlinked(self, node: int) -> None:
        """What a node was asked, it will not answer; nor will it hear an answer."""
        self._lending.unlinked(node)
        for repair in self._waiting():
            if repair.asked == node:
                self._ask_next(repair)

    def tick(self, now_us: int) -> None:
        """Asks others where there is no answer: also for what is in line for a node that has given
        none at all."""
        waiting = self._waiting()
        late = [each for each in waiting if each.due_us is not None and each.due_us <= now_us]
        silent = {each.asked for each in late}
        silent -= {each.asked for each in waiting if (each.due_us or 0) > now_us}
        late += [each for each in waiting if each.due_us is None and each.asked in silent]
        nodes = {each.asked for each in late}
        for repair in late:
            self._ask_next(repair)
        for node in nodes:  # there is room for what is in line for it
            self._ask(node)

    def next_due(self) -> int | None:
        """When `tick` should be called although nothing happens."""
        dues = (each.due_us for each in self._waiting() if each.due_us is not None)
        return min(dues, default=None)


def _known(shard: int, meta: PushMeta, stored: Stored) -> _Known:
    wanted = Wanted(
        shard, meta.stream, meta.partition, stored.stamped, stored.span, stored.arrived_us
    )
    return _Known(wanted, stored.location, stored.length)


def _at(
    kernel: Kernel, location: int, base: int, shard: int | None
) -> _Known | None:
    """Which batch lies at a location: in the queues of a shard, or in a partition of any."""
    shards = kernel.shards if shard is None else [kernel.shards[shard]]
    for each in shards:
        for stream, partition, stored in _candidates(each.id, kernel, base, shard is not None):
            if stored.location == location:
                meta = PushMeta(stream, partition, base, stored.span, 0, 0, 0)
                return _known(each.id, meta, stored)
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
    stored = find(kernel, wanted)
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
            live &= Liveness(kernel).live_mask(wanted.shard, Kind.PUSH, meta_of(wanted), stored)
        positions = rows_of(live).astype(np.int64) + wanted.base
        return len(batch) if len(batch.rows_at(positions)) == len(positions) else 0
    except PenstockError:
        return 0
