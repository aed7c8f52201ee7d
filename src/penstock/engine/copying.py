"""Copying the whole state of a shard to a follower that is too far behind, or on a wrong way.

The owner takes a snapshot and sends the stored batches, then the state. The follower first forgets
what it had, and notes that in its log; it stores the batches, puts the state in their place, and
says so after its next checkpoint: until then a restart would find an empty shard, never half a one.

Before the follower is told to forget anything, the owner reads all batches once: those that are
damaged are fetched from whoever has them, and that may be the follower alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from penstock.cluster.replication.messages import Record
from penstock.core.index import Stored
from penstock.core.liveness import Liveness
from penstock.core.records import Kind, pack_push, read_forward
from penstock.core.shard import Replayed, Shard
from penstock.engine.copy_messages import (
    Batches,
    Begin,
    CopyMessage,
    End,
    State,
)
from penstock.engine.engine import CopyJob, Engine
from penstock.errors import PenstockError
from penstock.store.locations import split
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry

PART_BYTES = 512 << 10
WINDOW = 4  # messages on the way
MAX_MENDED_BYTES = 64 << 20  # kept from the first reading; what is beyond it is asked for again
PATIENCE_US = 15_000_000  # a copy that makes no progress for so long is given up
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode

Send = Callable[[int, CopyMessage], None]


@dataclass(slots=True, eq=False)
class _Read:
    """Batches that are read before what follows is sent, each with what its record says of it.
    `mended`: those that were damaged here, as another node has them."""

    job: CopyJob
    batches: list[tuple[bytes, Stored]]
    mended: dict[int, Buffer] = field(default_factory=dict)


class Sending:
    """One copy, on the owner's side. Files that it reads from are kept until it ends."""

    def __init__(
        self, engine: Engine, shard: int, node: int, epoch: int, number: int, version: int,
        records: list[Record], now_us: int,
    ) -> None:  # fmt: skip
        self.shard, self.node, self.epoch, self.number = shard, node, epoch, number
        self.progress_us = now_us
        self.ended = False
        self._engine = engine
        self._room = WINDOW
        self._reading = False
        state = engine.fabric.kernel.shards[shard]
        self._state = _encode(state.snapshot())
        self._places = [(pack_push(meta), stored) for meta, stored in state.batches()]
        # Batches that were damaged, by what their records say: several may lie nowhere at all.
        self._mended: dict[bytes, bytes] = {}
        self._mended_bytes = 0
        self._files = Counter({split(stored.location)[0] for _, stored in self._places})
        engine.reading.update(self._files)
        self._rest = self._messages(version, records)

    def _messages(self, version: int, records: list[Record]) -> Iterator[CopyMessage | _Read]:
        key = self.shard, self.epoch, self.number
        for read in self._reads():
            yield read
            self._keep_mended(read)
        yield Begin(*key, version)
        for read in self._reads():
            yield read
            yield Batches(*key, list(self._found(read)))
        for record in records:
            if record.payload is not None:  # what publishes stages is invisible, too, and has none
                yield Batches(*key, [(-record.number, _plain(record), bytes(record.payload))])
        for start in range(0, len(self._state), PART_BYTES):
            yield State(*key, self._state[start : start + PART_BYTES])
        yield End(*key, [(r.kind, r.epoch, r.number, r.meta) for r in records])

    def _reads(self) -> Iterator[_Read]:
        """All batches, some at a time."""
        at = 0
        while at < len(self._places):
            some: list[tuple[bytes, Stored]] = []
            size = 0
            while at < len(self._places) and (not some or size < PART_BYTES):
                some.append(self._places[at])
                size += self._places[at][1].length
                at += 1
            places = [(stored.location, stored.length, stored.stamped) for _, stored in some]
            yield _Read(CopyJob(self._engine.reader, places), some)

    def _keep_mended(self, read: _Read) -> None:
        for at, payload in read.mended.items():
            meta, stored = read.batches[at]
            self._mended_bytes += stored.length
            if self._mended_bytes <= MAX_MENDED_BYTES:
                self._mended[meta] = bytes(payload)

    def _found(self, read: _Read) -> Iterator[tuple[int, bytes, bytes]]:
        """Those that could be read; one that nobody has whole stays unreadable in the copy."""
        for (meta, stored), found in zip(read.batches, read.job.found, strict=True):
            payload = self._mended.get(meta, found)
            if not isinstance(payload, PenstockError):
                yield stored.location, meta, bytes(payload)

    def pump(self, send: Send) -> None:
        """Sends as much as may be on the way; reads what comes next."""
        while self._room and not self._reading and not self.ended:
            step = next(self._rest, None)
            if step is None:
                return
            if isinstance(step, _Read):
                self._reading = True
                step.job.then = partial(self._complete, step, send)
                self._engine.jobs.append(step.job)
            else:
                self._room -= 1
                send(self.node, step)

    def _complete(self, read: _Read, send: Send) -> None:
        """What is damaged is fetched, unless it has been before."""
        mender, found = self._engine.mender, read.job.found
        damaged = [
            at
            for at, each in enumerate(found)
            if isinstance(each, PenstockError) and read.batches[at][0] not in self._mended
        ]

        def then() -> None:
            whole = ((at, found[at]) for at in damaged)
            read.mended.update(
                (at, each) for at, each in whole if not isinstance(each, PenstockError)
            )
            self._reading = False
            self.progress_us = self._engine.fabric.kernel.now_us
            self.pump(send)

        if not (damaged and mender and mender.complete(self.shard, read.batches, found, then)):
            then()

    def taken(self, send: Send, now_us: int) -> None:
        """The follower has taken one more message."""
        self._room += 1
        self.progress_us = now_us
        self.pump(send)

    def end(self) -> None:
        """It is over, whether it succeeded or not."""
        if not self.ended:
            self.ended = True
            self._engine.reading -= self._files


def _plain(record: Record) -> bytes:
    """What a push says of its batch, without what it was forwarded for."""
    return read_forward(record.meta)[1] if record.kind & Kind.FORWARDED else record.meta


def forget_shard(engine: Engine, shard: Shard, stored: Callable[[Entry], None] | None) -> None:
    """Notes in the journal that all that was known of a shard does not count, and forgets it."""
    entry = Entry(shard.id, Kind.RESET, 0, 0, b"", None, Durability.SYNCED, stored, local=True)
    engine.fabric.kernel.effects.append(entry)
    freed = shard.reset()
    if freed:
        engine.fabric.kernel.free(freed)


class Receiving:
    """One copy, on the follower's side."""

    def __init__(self, engine: Engine, source: int, begin: Begin) -> None:
        self.source, self.key = source, (begin.shard, begin.epoch, begin.copy)
        self.installed = False
        self._engine = engine
        self._shard = engine.fabric.kernel.shards[begin.shard]
        self._entries: dict[int, Entry] = {}
        self._mended: list[Entry] = []  # what the owner cannot read itself, and lies nowhere there
        self._unstored = 0
        self._state: list[bytes] = []
        self._end: End | None = None
        self._checkpoint = 0
        self._forget()

    def _forget(self) -> None:
        # Nothing is put in place before this is written: the checkpoint must not replay it.
        self._unstored += 1
        forget_shard(self._engine, self._shard, self._stored)
        self._shard.unproven = True

    def take(self, message: Batches | State | End, now_us: int) -> None:
        """The next part, which was checked."""
        if isinstance(message, Batches):
            for location, meta, payload in message.batches:
                self._store(location, meta, payload)
        elif isinstance(message, State):
            self._state.append(message.data)
        else:
            self._end = message
        self.advance(now_us)

    def _store(self, location: int, meta: bytes, payload: bytes) -> None:
        self._unstored += 1
        entry = Entry(
            self._shard.id, Kind.COPY, 0, 0, meta, payload, Durability.SYNCED, self._stored,
            local=True,
        )  # fmt: skip
        if location:
            self._entries[location] = entry
        else:
            self._mended.append(entry)
        self._engine.fabric.kernel.effects.append(entry)

    def _stored(self, _: Entry) -> None:
        self._unstored -= 1

    def advance(self, now_us: int) -> bool:
        """Puts the state in place once all is stored; whether it is in place, and durable."""
        maintenance = self._engine.maintenance
        if self._end is not None and not self._unstored and not self.installed:
            self._install(self._end, now_us)
            self.installed = True
            self._checkpoint = maintenance.begun + 1  # one under way may have passed the shard
            maintenance.want_checkpoint()
        return self.installed and maintenance.finished >= self._checkpoint

    def _install(self, end: End, now_us: int) -> None:
        shard, fabric = self._shard, self._engine.fabric
        epoch, owned = shard.epoch, shard.owned
        shard.load(_decode(b"".join(self._state)))
        shard.epoch, shard.owned, shard.safe = epoch, owned, shard.last
        shard.relocate({old: (e.location, e.length) for old, e in self._entries.items()})
        self._place_mended()
        spare = [
            (stored.location, stored.length - stored.live_bytes)
            for _, stored in shard.batches()
            if stored.length != stored.live_bytes and stored.location
        ]
        if spare:
            fabric.kernel.free(spare)
        for kind, record_epoch, number, meta in end.records:
            entry = self._entries.get(-number)
            payload = None if entry is None or entry.payload is None else memoryview(entry.payload)
            location, length = (0, 0) if entry is None else (entry.location, entry.length)
            record = Replayed(shard.id, kind, number, meta, payload, location, length, record_epoch)
            fabric.replay(record, now_us)

    def _place_mended(self) -> None:
        live = Liveness(self._engine.fabric.kernel)
        for entry in self._mended:
            assert entry.payload is not None
            rows = len(Batch.parse(entry.payload, verify=False))
            place = entry.location, entry.length
            if live.moved(self._shard.id, Kind.PUSH, entry.meta, 0, *place, rows) is None:
                self._engine.files.freed(*place)

    def give_up(self) -> None:
        """The copy will not be finished: what was stored for it is of no use."""
        if self.installed:
            self._forget()
        else:
            stored = [*self._entries.values(), *self._mended]
            self._engine.fabric.kernel.free([(each.location, each.length) for each in stored])
