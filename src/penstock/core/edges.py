"""Edges: messages that are held until entries of tables exist.

A held message is stored with the set of its edges. Its record puts a part for every entry into the
outbox of its shard; where that arrives, the entry is there already, or a watcher is kept until it
is written. The record that writes it puts the answer into that shard's outbox. At the message the
edge goes, and with the last one it is ready. Should an entry be marked as failed, or the message's
time be over, it is finished instead, and the parts that it falls back to are carried out: they may
write the entry that others wait for, so failure travels along the same edges.
"""

from __future__ import annotations

from itertools import islice

from penstock.core.changes import Change, Op
from penstock.core.forwards import PLAIN, Forwards
from penstock.core.holds import (
    Fallback,
    Waits,
    Watcher,
    pack_fallback,
    pack_waits,
    packed_edge,
)
from penstock.core.kernel import Kernel
from penstock.core.outbox import MeetEdges, WatchKeys
from penstock.core.pushes import Pushes
from penstock.core.queue import QueueShard
from penstock.core.queues import Queues
from penstock.core.records import (
    EdgesMet,
    Forward,
    HeldBefore,
    HoldsEnded,
    Kind,
    Note,
    Watched,
    pack_forward,
    pack_note,
)
from penstock.core.shard import Shard, Stream
from penstock.core.tables import Tables
from penstock.errors import ConflictError, InvalidError, LimitError, TooLargeError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import PushExtra
from penstock.wire.holds import Mark, Policy

MAX_EDGES = 10_000  # of one message
MAX_EDGES_AT_ONCE = 50_000  # of one transaction
MAX_WATCHERS = 100_000  # of one entry: told to whoever waits on its node, and to others not
MAX_FALLBACK = 16  # parts
MAX_FALLBACK_BYTES = 256 << 10
MAX_SHOWN = 1000  # edges in one answer
_MARKS, _POLICIES = frozenset(Mark), frozenset(Policy)


class Edges:
    """Both ends of the edges of a node."""

    def __init__(
        self, kernel: Kernel, queues: Queues, tables: Tables, pushes: Pushes, forwards: Forwards
    ) -> None:
        self.kernel = kernel
        self.queues = queues
        self.tables = tables
        self.pushes = pushes
        self.forwards = forwards
        forwards.holder = self._hold
        forwards.carriers[WatchKeys] = self._watch
        forwards.carriers[MeetEdges] = self._meet
        queues.on_overdue = self._overdue

    # --- checks ----------------------------------------------------------------------------

    def check_mark(self, mark: int) -> None:
        """InvalidError if there is no such mark, ConflictError if not all nodes know of marks."""
        if mark not in _MARKS:
            raise InvalidError(f"a mark is 0 (ok), 1 (failed) or 2 (skipped), not {mark}")
        if mark:
            self._check_level()

    def _check_level(self) -> None:
        if self.kernel.shared and not self.kernel.edges:
            raise ConflictError(
                "not all nodes of the cluster know of messages that wait for entries yet",
                advice="Upgrade the other nodes first.",
            )

    def check_number(self, holds: list[m.TxnHold]) -> None:
        """LimitError if the held messages of one transaction wait for too much together."""
        if sum(len(hold.after) for hold in holds) > MAX_EDGES_AT_ONCE:
            raise LimitError(
                f"the messages of one transaction wait for {MAX_EDGES_AT_ONCE:,} entries at most"
            )

    def check(self, hold: m.TxnHold, target: int, away: bool) -> None:
        """Raises what is wrong with a message that is to be held; `away`: it belongs to a shard
        that may be another node's, so what that holds already is not known."""
        self._check_level()
        stream, batch = self.kernel.stream(hold.stream, "queue"), Batch.parse(hold.batch)
        if batch.header.producer or batch.count != 1:
            raise InvalidError("a held message is a batch of its own, and has no producer")
        if hold.after and (batch.header.due_us or stream.options.ordered != "no"):
            raise InvalidError("what waits for entries has no delay, and its queue keeps no order")
        self.pushes.check(stream, target, batch, PushExtra(hold.id, bool(hold.after)))
        self._check_after(hold)
        self._check_fallback(hold)
        if not away and self.pushes.known_id(self.kernel.shards[target], stream, hold.id) is None:
            self.pushes.check_depth(stream, batch)
            self._check_room(self.kernel.shards[target], hold)

    def _check_room(self, shard: Shard, hold: m.TxnHold) -> None:
        """LimitError if a shard knows of too much already: ids, holds, parts for other shards."""
        queue = shard.queue(hold.stream)
        queue.ids.has_room()
        queue.holds.has_room()
        if self.kernel.forwarding:
            shard.outbox.has_room()

    def _check_after(self, hold: m.TxnHold) -> None:
        if len(hold.after) > MAX_EDGES:
            raise LimitError(f"a message waits for {MAX_EDGES:,} entries at most")
        if hold.policy not in _POLICIES:
            raise InvalidError(f"a policy is 0 (fail), 1 (skip) or 2 (run), not {hold.policy}")
        for table, key in hold.after:
            self.kernel.stream(table, "table")
            self.tables.check_entry(key, None)
            shard = self.kernel.shards[self.kernel.place_of(key)]
            if not shard.owned or shard.watchers.count(table, key) < MAX_WATCHERS:
                continue
            shard.watchers.sweep_entry(table, key, self._still_waits)
            if shard.watchers.count(table, key) >= MAX_WATCHERS:
                raise LimitError(f"{MAX_WATCHERS:,} messages wait for one entry already")

    def _check_fallback(self, hold: m.TxnHold) -> None:
        if len(hold.writes) + len(hold.pushes) > MAX_FALLBACK:
            raise LimitError(f"a message falls back to {MAX_FALLBACK} parts at most")
        size = sum(len(write.value or b"") for write in hold.writes)
        if size + sum(len(push.batch) for push in hold.pushes) > MAX_FALLBACK_BYTES:
            raise TooLargeError(f"a message falls back to {MAX_FALLBACK_BYTES:,} bytes at most")
        for write in hold.writes:
            self.kernel.stream(write.stream, "table")
            self.tables.check_entry(write.key, write.value, write.ttl_ms)
            self.check_mark(write.mark)
            if write.if_version is not None:
                raise InvalidError("what a message falls back to is not checked: use no version")
        for push in hold.pushes:
            stream, batch = self.pushes.stream(push.stream), Batch.parse(push.batch)
            place = self.pushes.place(stream, push.partition, push.shard)
            self.pushes.check(stream, place, batch, PLAIN)
            if batch.header.producer:
                raise InvalidError("what a message falls back to has no producer")

    # --- the message's side ----------------------------------------------------------------

    def _hold(
        self, hold: m.TxnHold, shard: Shard, forward: Forward, stream: Stream, level: Durability
    ) -> Entry:
        """Stores a message with its edges, unless its id is known."""
        if self.pushes.known_id(shard, stream, hold.id) is not None:
            return self._log(shard, forward, HeldBefore(hold.stream, hold.id), level)
        batch = Batch.parse(bytearray(hold.batch))
        extra = PushExtra(hold.id, bool(hold.after))
        if not hold.after:
            return self.pushes.accept(shard, stream, 0, batch, extra, level, forward)
        level, waits = self.kernel.told_level(level), pack_waits(self._waits(hold))
        entry = self.pushes.accept(shard, stream, 0, batch, extra, level, forward, waits)
        self.forwards.owe(shard, entry)
        return entry

    def _waits(self, hold: m.TxnHold) -> Waits:
        place_of = self.kernel.place_of
        after = [(place_of(key), table, key) for table, key in hold.after]
        # A stream that was deleted meanwhile has no place, and nothing is brought there.
        pushes = [push for push in hold.pushes if push.stream in self.kernel.streams]
        shards = [place_of(write.key) for write in hold.writes]
        for push in pushes:
            stream = self.pushes.stream(push.stream)
            shards.append(self.pushes.place(stream, push.partition, push.shard))
        fallback = pack_fallback(Fallback(shards, hold.writes, pushes)) if shards else b""
        return Waits(after, hold.policy, fallback)

    def _meet(self, part: MeetEdges, shard: Shard, forward: Forward) -> Entry:
        """Entries exist: messages of this shard need not wait for them any more."""
        streams = dict.fromkeys(e.stream for e in part.edges if e.stream in shard.queues)
        levels = [self.kernel.streams[each].level for each in streams]
        note = EdgesMet(part.edges)
        level = self.kernel.told_level(max(levels, default=Durability.WRITTEN))
        entry = self._log(shard, forward, note, level)
        before = [shard.queues[stream].returned.messages for stream in streams]
        self._fold(shard, note, entry)
        for stream, ready in zip(streams, before, strict=True):
            queue = shard.queues[stream]
            if queue.returned.messages > ready:
                self.queues.arrived(queue)
        return entry

    def _overdue(self, queue: QueueShard, changes: list[Change]) -> list[Change]:
        """Takes those out of what is overdue that wait for entries: they fall back."""
        ids = {
            change.position: name
            for change in changes
            if change.op == Op.DROP and (name := queue.waits_at(change.position)) is not None
        }
        if ids:
            shard, level = self.kernel.shards[queue.shard], self.kernel.streams[queue.stream].level
            note = HoldsEnded(queue.stream, list(ids.values()))
            level = self.kernel.told_level(level)
            self._fold(shard, note, self.kernel.log(shard, Kind.NOTE, pack_note(note), level))
        return [change for change in changes if change.position not in ids]

    def held(self, call: m.Held) -> m.HeldInfo | None:
        """What a message still waits for; None if there is no such message."""
        self.kernel.stream(call.stream, "queue")
        queue = self.kernel.shard_of(call.id).queues.get(call.stream)
        if queue is None or call.id not in queue.held:
            return None
        hold = queue.holds.get(call.id)
        if hold is None:
            return m.HeldInfo(0, [], Policy.FAIL)
        streams = self.kernel.streams
        edges = [
            (streams[table].info.name if table in streams else "", key)
            for table, key in islice(hold.pairs(), MAX_SHOWN)
        ]
        return m.HeldInfo(len(hold.edges), edges, hold.policy)

    # --- the entry's side ------------------------------------------------------------------

    def _watch(self, part: WatchKeys, shard: Shard, forward: Forward) -> Entry:
        """Messages wait for entries of this shard: they are told of those that are there."""
        note = Watched(forward.home, [], [])
        level = Durability.WRITTEN
        for edge in part.edges:
            stream = self.kernel.streams.get(edge.table)
            if stream is None or edge.stream not in self.kernel.streams:
                continue  # one of them was deleted since
            level = max(level, stream.level)
            cell = shard.table(edge.table).get(edge.key, self.kernel.now_us)
            if cell is None:
                note.kept.append(edge)
            else:
                note.met.append(edge._replace(mark=cell.mark))
        entry = self._log(shard, forward, note, self.kernel.told_level(level))
        self._fold(shard, note, entry)
        if shard.watchers.is_crowded:
            shard.watchers.sweep(self._still_waits)
        return entry

    def _still_waits(self, table: int, key: bytes, watcher: Watcher) -> bool:
        """Whether a message waits for an entry, as far as this node knows."""
        shard = self.kernel.shards[watcher.shard]
        if not shard.owned:
            return True
        queue = shard.queues.get(watcher.stream)
        hold = None if queue is None else queue.holds.get(watcher.id)
        return hold is not None and hold.waits_for(packed_edge(table, key))

    # --- both ------------------------------------------------------------------------------

    def _log(self, shard: Shard, forward: Forward, note: Note, level: Durability) -> Entry:
        meta = pack_forward(forward, pack_note(note))
        return self.kernel.log(shard, Kind.NOTE | Kind.FORWARDED, meta, level)

    def _fold(self, shard: Shard, note: Note, entry: Entry) -> None:
        before = shard.outbox.parts
        shard.noted(note, entry.number, self.kernel.now_us)
        if shard.outbox.parts > before:
            self.forwards.owe(shard, entry)
