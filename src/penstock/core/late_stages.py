"""Staged batches that were placed before their topic grew, and are published after it.

As with parts of transactions (`core.passing`), rows go on to the partitions that have their keys
now. But the batch is on the disk and must be read first. So publishing takes two records: the first
(`StagesShown`) says that it is published, and leaves it in its stage, where nothing but the second
ends it: that takes it out and puts its rows into the outbox of the shard, in one step. What a crash
leaves between them is taken up again by whoever owns the shard then.
"""

from __future__ import annotations

from functools import partial

from penstock.core.effects import Read
from penstock.core.forwards import Forwards
from penstock.core.kernel import Kernel
from penstock.core.passing import passed_on
from penstock.core.pushes import Pushes
from penstock.core.records import (
    Drop,
    Kind,
    LateShown,
    Outgoing,
    PushMeta,
    pack_note,
    pack_outgoing,
    pack_push,
)
from penstock.core.shard import Shard, Stream
from penstock.core.staged import Staged
from penstock.core.topics import Topics
from penstock.errors import LimitError, PenstockError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.buffers import Buffer
from penstock.wire.entry import Entry

MAX_READS = 4  # at a time, one of a shard


def is_late(stream: Stream, staged: Staged) -> bool:
    """Whether the partition of a batch has given away keys since these placed it there."""
    if stream.layout is None or staged.damaged:
        return False
    births = stream.layout.births[staged.partition]
    return any(birth.generation > staged.generation for birth in births)


class LateStages:
    """Passes on what is late in the shards of a node, one batch after the other."""

    def __init__(
        self, kernel: Kernel, topics: Topics, pushes: Pushes, forwards: Forwards
    ) -> None:
        self.kernel = kernel
        self.topics = topics
        self.pushes = pushes
        self.forwards = forwards
        self._reading: set[int] = set()  # shards
        self._in_line: dict[int, None] = {}  # those that would read, were there not others

    def begin(self, shard: Shard) -> None:
        """Has the first late batch of a shard read, if nothing hinders it. Whatever does, this is
        called again and again; if it is others, as soon as they have read."""
        found = shard.staging.first_late() if self._may_read(shard) else None
        if found is None:
            return
        if len(self._reading) >= MAX_READS:
            self._in_line[shard.id] = None
            return
        stage, staged = found
        if stage.leaving or not self._has_room(shard):
            return
        stored = shard.staging.index.find(staged.stamped)
        if stored is None:
            self._show(shard, staged)
            return
        meta = PushMeta(staged.stream, staged.partition, staged.stamped, staged.count, 0, 0, 0)
        self._reading.add(shard.id)
        then = partial(self._read, shard, shard.epoch, staged)
        self.kernel.effects.append(Read(shard.id, pack_push(meta), stored, then))

    def _may_read(self, shard: Shard) -> bool:
        if self.kernel.refusing is not None or not shard.owned:
            return False
        return shard.id not in self._reading

    def _has_room(self, shard: Shard) -> bool:
        try:
            shard.outbox.has_room()
        except LimitError:
            return False
        return True

    def _read(self, shard: Shard, epoch: int, staged: Staged, data: Buffer | None) -> None:
        """Unless somebody else has the shard by now, or its stream is gone."""
        self._reading.discard(shard.id)
        found = shard.staging.first_late()
        same = found is not None and found[1] == staged and shard.epoch == epoch
        if same and shard.owned and self.kernel.refusing is None:
            parts = None if data is None else self._parts(staged, data)
            if parts is None:
                self._show(shard, staged)
            else:
                self._pass_on(shard, staged, parts)
        self._next(shard)

    def _next(self, shard: Shard) -> None:
        """One has read: others, who were in line before, begin, and it is in line again."""
        while self._in_line and len(self._reading) < MAX_READS:
            first = next(iter(self._in_line))
            del self._in_line[first]
            self.begin(self.kernel.shards[first])
        self.begin(shard)

    def _parts(self, staged: Staged, data: Buffer) -> list[m.TxnPush] | None:
        stream = self.kernel.streams[staged.stream]
        assert stream.layout is not None, "a topic that has grown stays so"
        try:
            batch = Batch.parse(data)
        except PenstockError:
            return None
        own = stream.info.placement[staged.partition]
        push = m.TxnPush(staged.stream, staged.partition, own, b"")
        return passed_on(stream.info, stream.layout, push, batch)

    def _pass_on(self, shard: Shard, staged: Staged, parts: list[m.TxnPush]) -> None:
        moved = m.Transact(0, 0, shard.id, pushes=parts)
        drop = Drop(staged.stream, staged.stamped, staged.count)
        outgoing = Outgoing([each.shard for each in parts], moved, [drop])
        packed = pack_outgoing(outgoing)
        entry = self.kernel.log(shard, Kind.OUTGOING, packed, self.forwards.level)
        shard.outgoing(outgoing, entry.number, self.kernel.now_us)
        self.forwards.bring(shard, entry)

    def _show(self, shard: Shard, staged: Staged) -> None:
        """All of it belongs where it is, or nobody can tell: better there than lost."""
        found = shard.staging.first_late()
        assert found is not None
        found[0].leaving = True
        stream, number = self.kernel.streams[staged.stream], staged.partition
        base = self.pushes.place_rows(shard, stream, number, staged.priority, staged.count)
        note = LateShown(staged.stamped, base, self.kernel.now_us)
        level = shard.level_in_turn(self.forwards.level)
        entry = self.kernel.log(shard, Kind.NOTE, pack_note(note), level)
        entry.done = partial(self._shown, shard, note, staged)
        shard.invisible.add(entry.number)

    def _shown(self, shard: Shard, note: LateShown, staged: Staged, entry: Entry) -> None:
        shard.invisible.discard(entry.number)
        found = shard.staging.first_late()
        if found is not None:
            found[0].leaving = False
        shard.noted(note, entry.number, self.kernel.now_us)
        if shard.owned and staged.stream in self.kernel.streams:
            self.topics.arrived(staged.stream, staged.partition)
        self.begin(shard)
