"""Parts of transactions on their way: from the outbox of a home shard, and into a target shard.

The home side says which parts may be sent and notes what has arrived; the target side carries out
each part once. Who carries them between nodes is not known here: somebody looks at `woken`, calls
`Outbox.first`, brings that to the owner of the target, has it `take` them, and hands the outcome to
`confirmed`. Any of this may be repeated, late or lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.core.changes import Change, pack_changes
from penstock.core.kernel import Kernel
from penstock.core.outbox import (
    MAX_MERGED_BYTES,
    DropStages,
    EndReserved,
    EndSession,
    KeepReserved,
    MeetEdges,
    OpenPartition,
    Packed,
    Part,
    PublishStages,
    WatchKeys,
    bytes_of,
    can_merge,
    merged,
    read_part,
)
from penstock.core.passing import passed_on
from penstock.core.pushes import Pushes
from penstock.core.queue_rules import makes_ready
from penstock.core.queues import Queues
from penstock.core.records import (
    AllDelivered,
    Committed,
    Delivered,
    Forward,
    Kind,
    Opened,
    Outgoing,
    Removed,
    Written,
    pack_forward,
    pack_note,
    pack_outgoing,
)
from penstock.core.shard import Shard, Stream
from penstock.core.tables import Tables
from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import PushExtra

Taken = Callable[[bool], None]
Carrier = Callable[[Any, Shard, Forward], Entry | None]
Holder = Callable[[m.TxnHold, Shard, Forward, Stream, Durability], Entry]
MAX_STEP = 2000  # parts that are carried out at a time, so that no step takes long
PLAIN = PushExtra()


class Forwards:
    """Carries parts out, and keeps the outboxes of the shards of a node."""

    def __init__(self, kernel: Kernel, queues: Queues, tables: Tables, pushes: Pushes) -> None:
        self.kernel = kernel
        self.queues = queues
        self.tables = tables
        self.pushes = pushes
        self.woken: dict[int, None] = {}  # home shards that may have something new to send
        self.on_opened: Callable[[Stream, int], None] = _nobody  # those who have topics grow
        # Those who carry out parts of the kinds that are not known here.
        self.carriers: dict[type, Carrier] = {}
        self.holder: Holder  # whoever has messages wait says so
        self._owed: dict[int, None] = {}  # shards with something in the outbox to carry out here
        tables.on_told = self.owe
        self.dropped = 0  # parts that could not be carried out any more: see `carry_out`

    # --- the home side ---------------------------------------------------------------------

    def begin(self, shard: Shard) -> None:
        """This node owns a shard from now on: what its log says is committed, and goes on."""
        self.carry_out_own(shard, Durability.REPLICATED)
        self.wake(shard)
        self.carry_out_owed()

    def wake(self, shard: Shard) -> None:
        """Records of a home shard are committed: what is in its outbox may be sent."""
        if shard.outbox.parts:
            self.woken[shard.id] = None

    def carry_out_own(self, shard: Shard, level: Durability | None) -> Entry | None:
        """Carries out the parts of a home shard that concern itself; the last entry. No level: each
        is as safe as its stream wants."""
        last, noted = None, Durability.WRITTEN if level is None else level
        while (own := shard.outbox.next(shard.id)) is not None:
            number, index, part = own
            entry = self.carry_out(part, shard, Forward(shard.id, index, number), level)
            if entry is None:
                entry = self.kernel.note(shard, Delivered(shard.id, number, index), noted)
            last = entry
        return last

    @property
    def level(self) -> Durability:
        """Of a record that other shards hear of: no other may ever have its number."""
        return Durability.REPLICATED if self.kernel.shared else Durability.SYNCED

    def bring(self, shard: Shard, entry: Entry) -> Entry:
        """A home logged an entry that has put parts into its outbox: they are carried out here, as
        far as they are its own, and elsewhere once it is committed. A node that stands alone does
        all of it now. What to wait for."""
        if self.kernel.shared:
            entry.done = lambda _: self.wake(shard)
            return self.carry_out_own(shard, self.level) or entry
        return self.carry_out_all(shard, self.level) or entry

    def owe(self, shard: Shard, entry: Entry) -> None:
        """As `bring`, but what can be carried out here is when the event is over, by
        `carry_out_owed`: the parts of the transaction that the entry belongs to come first, and one
        thing may follow from another without end."""
        if self.kernel.shared:
            before = entry.done

            def done(committed: Entry) -> None:
                if before is not None:
                    before(committed)
                self.wake(shard)

            entry.done = done
        self._owed[shard.id] = None

    @property
    def owes(self) -> bool:
        """Whether `carry_out_owed` has something to do."""
        return bool(self._owed)

    def carry_out_owed(self) -> None:
        """Carries out what is owed; at the end of every event. Much of it takes several steps."""
        if not self._owed:
            return
        room = MAX_STEP
        while self._owed and room > 0:
            shard = self.kernel.shards[next(iter(self._owed))]
            del self._owed[shard.id]
            if not self.kernel.shared:
                room -= shard.outbox.parts
                self.carry_out_all(shard)
            elif shard.owned:
                self.carry_out_own(shard, self.level)
        if self._owed:
            self.kernel.timers.at(self.kernel.now_us + 1, self.carry_out_owed)

    def carry_out_all(self, shard: Shard, level: Durability | None = None) -> Entry | None:
        """On a node that stands alone: all that is in the outbox of a shard; the last entry. The
        level is as in `carry_out_own`."""
        last, noted = None, Durability.WRITTEN if level is None else level
        while shard.outbox.parts:
            last = self.carry_out_own(shard, level) or last
            done: list[tuple[int, int, int]] = []
            for target in shard.outbox.targets():
                there, line = self.kernel.shards[target], shard.outbox.line(target)
                for forward, part in _left(shard.id, there, line):
                    self.carry_out(part, there, forward, level)
                done += [(target, number, index) for number, index, _ in line[-1:]]
            if done:
                last = self.kernel.note(shard, AllDelivered(done), noted)
        return last

    def confirmed(self, shard: Shard, target: int, number: int, index: int) -> None:
        """A target has committed its parts of this home up to this one. Should the note of it be
        lost, they are sent again, and found to be done."""
        if shard.owned:
            self.kernel.note(shard, Delivered(target, number, index), Durability.WRITTEN)
            self.wake(shard)

    # --- the target side -------------------------------------------------------------------

    def take(self, home: int, shard: Shard, parts: list[Packed], then: Taken) -> None:
        """Carries out parts of another home, in order, without those that were carried out before.

        All parts of that home for this shard that come before the first of these must have been
        confirmed. `then` is called with True when all are committed, with False if that is not
        known: the same parts must be brought again, perhaps to another node.
        """
        entry, done = None, True
        for forward, part in _left(home, shard, ((*p[:2], read_part(p)) for p in parts)):
            if self._too_early(part):
                done = False
                break
            entry = self.carry_out(part, shard, forward) or entry
        if entry is None:
            entry = self.kernel.shard_barrier(shard, Durability.REPLICATED)

        def failed(_: PenstockError) -> None:
            then(False)

        entry.answer, entry.failed = lambda: then(done), failed
        self.carry_out_owed()

    def _too_early(self, part: Part) -> bool:
        """Whether a part is for a partition that is not open yet."""
        if not isinstance(part, m.TxnPush):
            return False
        stream = self.kernel.streams.get(part.stream)
        if stream is None or stream.layout is None:
            return False
        return not self.pushes.topics.is_open(stream, part.partition)

    def carry_out(
        self, part: Part, shard: Shard, forward: Forward, level: Durability | None = None
    ) -> Entry | None:
        """Logs and folds one part; None, and it is counted, if there is nothing that it could be
        done to: its stream was deleted, or the lease that it ends is over; None also for an offset
        that does not count. Bounds of depth and size do not count any more: the transaction has
        been answered."""
        if (carrier := self.carriers.get(type(part))) is not None:
            entry = carrier(part, shard, forward)
            self.dropped += entry is None and not _is_to_end(part)
            return self._note_down(shard, forward, entry)
        assert not isinstance(
            part, PublishStages | DropStages | KeepReserved | EndReserved | WatchKeys | MeetEdges
        )
        if isinstance(part, EndSession):
            return self._note_down(shard, forward, self.tables.unbind(shard, part.session, forward))
        stream = self.kernel.streams.get(part.stream)
        if stream is None:
            self.dropped += 1
            return None
        level = stream.level if level is None else level
        if isinstance(part, m.TxnPush):
            return self._note_down(shard, forward, self._push(part, shard, forward, stream, level))
        if isinstance(part, m.TxnHold):
            return self._note_down(shard, forward, self.holder(part, shard, forward, stream, level))
        if isinstance(part, m.TxnSettle):
            return self._note_down(shard, forward, self._settle(part, shard, forward, level))
        if isinstance(part, m.TxnCommit) and self._is_late_seed(part, shard, forward):
            return None
        note = self._note_of(part)
        if isinstance(note, Opened):  # whoever lost it would never open: it is told once
            level = self.level
        meta = pack_forward(forward, pack_note(note))
        level = self.tables.level(shard, note, level)
        entry = self.kernel.log(shard, Kind.NOTE | Kind.FORWARDED, meta, level)
        self.tables.fold(shard, stream, note, entry)
        self._note_down(shard, forward, entry)
        if isinstance(note, Opened):
            self.on_opened(stream, note.partition)
        return entry

    def _push(
        self, push: m.TxnPush, shard: Shard, forward: Forward, stream: Stream, level: Durability
    ) -> Entry:
        batch = Batch.parse(bytearray(push.batch))
        passed = None
        if stream.layout is not None:
            passed = passed_on(stream.info, stream.layout, push, batch)
        if passed is None:
            return self.pushes.accept(shard, stream, push.partition, batch, PLAIN, level, forward)
        # One record: it is carried out, and what it becomes is in the outbox, or neither.
        moved = m.Transact(0, 0, shard.id, pushes=passed)
        outgoing = Outgoing([each.shard for each in passed], moved)
        meta = pack_forward(forward, pack_outgoing(outgoing))
        entry = self.kernel.log(shard, Kind.OUTGOING | Kind.FORWARDED, meta, self.level)
        shard.carried_out(forward)
        shard.outgoing(outgoing, entry.number, self.kernel.now_us)
        self.owe(shard, entry)
        return entry

    def _note_down(self, shard: Shard, forward: Forward, entry: Entry | None) -> Entry | None:
        if entry is not None:
            shard.carried_out(forward)
        return entry

    def _is_late_seed(self, commit: m.TxnCommit, shard: Shard, forward: Forward) -> bool:
        """In a cluster an offset comes from another shard only as the first of a group in a
        partition: one that finds another there does not count."""
        if not self.kernel.shared or forward.home == shard.id:
            return False
        return commit.group in shard.partition(commit.stream, commit.partition).commits

    def _note_of(
        self, part: m.TxnCommit | m.TxnWrite | OpenPartition
    ) -> Committed | Written | Removed | Opened:
        if isinstance(part, OpenPartition):
            return Opened(part.stream, part.partition, part.offset)
        if isinstance(part, m.TxnCommit):
            return Committed(part.stream, part.partition, part.group, part.offset, part.state)
        if part.value is None:
            return Removed(part.stream, [part.key])
        expires_us = self.kernel.now_us + part.ttl_ms * 1000 if part.ttl_ms else 0
        return Written(part.stream, part.key, part.value, expires_us, mark=part.mark)

    def _settle(
        self, ack: m.TxnSettle, shard: Shard, forward: Forward, level: Durability
    ) -> Entry | None:
        queue = shard.queues.get(ack.stream)
        if queue is None or ack.grant not in queue.leases.grants:
            self.dropped += 1
            return None
        item = ack.item()
        change = Change(item.op, item.count, item.grant, item.position, mask=item.mask)
        queue.changed(change, self.kernel.now_us)
        meta = pack_forward(forward, pack_changes(ack.stream, [change]))
        entry = self.kernel.log(shard, Kind.CHANGE | Kind.FORWARDED, meta, level)
        if makes_ready(queue, [change]):
            self.queues.arrived(queue)
        return entry


def _left(
    home: int, shard: Shard, line: Iterable[tuple[int, int, Part]]
) -> Iterator[tuple[Forward, Part]]:
    """Parts of a home (number, index, part) that a shard has not carried out, in order. Neighbours
    that can be carried out by one record are one part, under the name of the last of them."""
    together: list[Part] = []
    last: Forward | None = None
    size = 0
    for number, index, part in line:
        full = size >= MAX_MERGED_BYTES
        if last is not None and (full or not can_merge(part, together[-1])):
            yield last, _as_one(together)
            together, size, last = [], 0, None
        forward = Forward(home, index, number)
        if shard.was_forwarded(forward):  # perhaps by what followed from the one before
            continue
        together.append(part)
        size += bytes_of(part)
        last = forward
    if last is not None:
        yield last, _as_one(together)


def _as_one(parts: list[Part]) -> Part:
    return parts[0] if len(parts) == 1 else merged(parts)


def _nobody(_: Stream, __: int) -> None:
    """Until there is one who wants to know."""


def _is_to_end(part: Part) -> bool:
    """Whether nothing is lost if there is nothing that a part could be done to."""
    return isinstance(part, DropStages) or (isinstance(part, EndReserved) and not part.acked)
