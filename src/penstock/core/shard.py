"""A shard: a log, and the state that is its fold. The unit of ownership, replication, movement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.core import queue_snapshot, records
from penstock.core.books import RESERVATION_NOTES, Books
from penstock.core.changes import Change, Op
from penstock.core.dedupe import Producers
from penstock.core.edge_notes import EDGE_NOTES, began_to_wait, written
from penstock.core.epochs import Epochs
from penstock.core.holds import Watchers, came
from penstock.core.index import Stored
from penstock.core.lost import changes_lost, missed
from penstock.core.outbox import OUTBOX_NOTES, Outbox, parts_of
from penstock.core.partition import Partition
from penstock.core.partition_notes import PARTITION_NOTES
from penstock.core.publications import PUBLICATION_NOTES, Publications
from penstock.core.queue import QueueShard, Totals
from penstock.core.records import Forward, Kind, PushMeta
from penstock.core.replaying import replay_queue
from penstock.core.session_notes import SESSION_NOTES, Session
from penstock.core.staged import STAGED, STAGING_NOTES, Staging, passed_on
from penstock.core.table import Cell, TableShard
from penstock.wire.batch import Batch
from penstock.wire.durability import Durability
from penstock.wire.growth import Layout
from penstock.wire.messages import QueueOptions, StreamInfo, TopicOptions

CONTROL = 0xFFFF  # the shard of definitions and sessions
PLANE = 0xFFFE  # where the control plane of a cluster keeps its log
ORIGIN_BITS = 20  # one record never gives out more positions or grants than these can count


class Stream(NamedTuple):
    """A queue, topic or table with its settings read."""

    info: StreamInfo
    options: Any
    totals: Totals
    level: Durability
    layout: Layout | None = None  # of a topic that has grown
    plain: bool = False  # a queue that takes any values, in any order, on any shard


class Replayed(NamedTuple):
    """A record of the log as recovery reads it. A push without payload is a damaged one."""

    shard: int
    kind: int
    number: int
    meta: bytes
    payload: memoryview | None
    location: int
    length: int
    epoch: int = 0  # 0: not known


class Shard:
    """State of one shard. Every method named like a past event folds one record."""

    def __init__(self, number: int, streams: dict[int, Stream]) -> None:
        self.id = number
        self.epoch = 1
        self.owned = True  # whether this node serves it; always, unless it is one of a cluster
        self.epochs = Epochs()
        self.unproven = False  # a copy of another node's state that no checkpoint has yet
        self.last = 0  # log number of the last record
        self.torn = False  # some before that are lost, and it was accepted
        self.safe = 0  # and of the last one that is as safe as it was asked to be
        self.streams = streams
        self.producers = Producers()
        self.queues: dict[int, QueueShard] = {}
        self.partitions: dict[tuple[int, int], Partition] = {}
        self.tables: dict[int, TableShard] = {}
        # Home shard: the last of its parts that was carried out here. They come in order.
        self.forwarded: dict[int, tuple[int, int]] = {}
        self.outbox = Outbox()
        self.watchers = Watchers()  # of entries that are not there yet
        self.sessions: dict[int, Session] = {}  # whose home this is
        self.staging = Staging()
        self.publications = Publications()  # whose home this is
        self.books = Books()  # of reservations whose home this is
        self.bound: set[int] = set()  # sessions whose home knows of this shard; the owner's memory
        self.first_grant = 1  # above all grants of parts of queues that are forgotten or lost
        self.invisible: set[int] = set()  # numbers of records that count once committed
        self.coming: Counter[int] = Counter()  # messages in them, by stream
        self._invisible_level = Durability.MEMORY  # the highest that one of them was asked for
        self.damaged: list[tuple[int, int, int, int]] = []  # stream, partition, base, count

    # --- parts -----------------------------------------------------------------------------

    def queue(self, stream: int) -> QueueShard:
        """This shard's part of a queue; made when first used."""
        queue = self.queues.get(stream)
        if queue is None:
            definition = self.streams[stream]
            origin = self.last << ORIGIN_BITS
            queue = QueueShard(
                self.id, stream, definition.options, definition.totals, origin, self.first_grant
            )
            self.queues[stream] = queue
        return queue

    def partition(self, stream: int, number: int) -> Partition:
        """A partition that lives here."""
        partition = self.partitions.get((stream, number))
        if partition is None:
            definition = self.streams[stream]
            partition = Partition(stream, number, definition.options, definition.totals)
            self.partitions[stream, number] = partition
        return partition

    def table(self, stream: int) -> TableShard:
        """This shard's part of a table."""
        table = self.tables.get(stream)
        if table is None:
            table = self.tables[stream] = TableShard(stream)
        return table

    def drop_stream(self, stream: int) -> list[tuple[int, int]]:
        """Forgets all of a stream; the locations and live bytes of its batches."""
        freed: list[tuple[int, int]] = []
        queue = self.queues.pop(stream, None)
        if queue is not None:
            for lane in queue.lanes.values():
                freed += [(s.location, s.live_bytes) for s in lane.index.rows()]
        for key in [key for key in self.partitions if key[0] == stream]:
            freed += [(s.location, s.live_bytes) for s in self.partitions.pop(key).index.rows()]
        self.tables.pop(stream, None)
        self.coming.pop(stream, None)
        self.watchers.drop_stream(stream)
        self.books.drop_stream(stream)
        return freed + self.staging.drop_stream(stream)

    def newest_us(self) -> int:
        """When the last batch that is stored here arrived."""
        indexes = [self.staging.index]
        indexes += [partition.index for partition in self.partitions.values()]
        for queue in self.queues.values():
            indexes += [lane.index for lane in queue.lanes.values()]
        return max((index.newest_us for index in indexes), default=0)

    # --- fold ------------------------------------------------------------------------------

    def accepted(self, meta: PushMeta, now_us: int) -> None:
        """A batch is in the log: its sequence and id are used up. It is not visible yet."""
        if meta.producer:
            self.producers.accept(
                meta.producer, meta.instance, meta.sequence, meta.count, meta.base, now_us
            )
        if meta.id and meta.stream in self.streams and meta.base < STAGED:
            queue = self.queue(meta.stream)
            queue.ids.expire(now_us - queue.options.id_window_ms * 1000)
            queue.ids.add(meta.id, meta.base, now_us)
            if meta.held:
                queue.coming.add(meta.id)

    def level_in_turn(self, level: Durability) -> Durability:
        """The level for the next push: pushes become visible in the order of the log, so that a
        less safe one waits for those before it."""
        if not self.invisible or level > self._invisible_level:
            self._invisible_level = level
        return self._invisible_level

    def stored(self, meta: PushMeta, batch: Batch, location: int, length: int) -> None:
        """A batch is committed in the record at `location`: visible from now on."""
        header = batch.header
        definition = self.streams.get(meta.stream)
        if definition is None:
            return
        if meta.base >= STAGED:
            self.staging.stored(meta, header, location, length)
            return
        if definition.info.kind == "topic":
            partition = self.partition(meta.stream, meta.partition)
            if self.torn:
                self._gap(meta, partition.missed(header.base))
            partition.stored(header, location, length)
            return
        queue = self.queue(meta.stream)
        if self.torn:
            self._gap(meta, missed(queue, header.base))
        keys = batch.keys if queue.keys is not None else None
        queue.stored(header, location, length, keys, meta.id if meta.held else None)

    def _gap(self, meta: PushMeta, count: int) -> None:
        """So many messages before a batch are lost with their records."""
        if count:
            self.damaged.append((meta.stream, meta.partition, meta.base - count, count))

    def lost(self, meta: PushMeta) -> None:
        """A batch is damaged: its positions stay used, nobody is given what is there."""
        definition = self.streams.get(meta.stream)
        if definition is None:
            return
        if meta.base >= STAGED:
            self.staging.lost(meta)
            return
        if definition.info.kind == "topic":
            partition = self.partition(meta.stream, meta.partition)
            self._gap(meta, partition.missed(meta.base) if self.torn else 0)
            partition.lost(meta.base, meta.count)
        else:
            queue = self.queue(meta.stream)
            self._gap(meta, missed(queue, meta.base) if self.torn else 0)
            queue.lost(meta.base, meta.count)
            queue.coming.discard(meta.id)
            came(queue, meta.id)
        self.damaged.append((meta.stream, meta.partition, meta.base, meta.count))

    def noted(self, note: records.Note, number: int, now_us: int) -> None:
        """A small fact. Those about streams that are gone do nothing but use up their number."""
        if isinstance(note, records.Written | records.Removed) and note.producer:
            self._used_up(note, number, now_us)
        handler = _NOTED.get(type(note))
        stream = getattr(note, "stream", None)
        if handler is not None and (stream is None or stream in self.streams):
            handler(self, note, number, now_us)

    def _used_up(self, note: records.Written | records.Removed, number: int, now_us: int) -> None:
        """Remembers what a resend is answered: the log number, or 0 if nothing was removed."""
        base = 0 if isinstance(note, records.Removed) and not note.keys else number
        self.producers.accept(note.producer, 0, note.sequence, 1, base, now_us)

    def replay(self, record: Replayed, now_us: int) -> None:
        """Folds one record of the log. Records that are in the snapshot already do nothing."""
        kind, meta, seen = record.kind, record.meta, record.number <= self.last
        if seen and record.number not in self.invisible:
            return
        if record.epoch and not seen:
            self.epochs.began(record.epoch, record.number)
        self.torn |= record.number > self.last + 1
        self.last = max(self.last, record.number)
        if kind & Kind.FORWARDED:
            forward, meta = records.read_forward(meta)
            kind ^= Kind.FORWARDED
            self.carried_out(forward)
        if kind == Kind.PUSH:
            self._replay_push(record, meta, seen, now_us)
        elif kind == Kind.NOTE:
            self.invisible.discard(record.number)
            self.noted(records.read_note(meta), record.number, now_us)
        elif kind == Kind.TRANSACTION:
            txn = records.read_transaction(meta)
            self.producers.accept(txn.producer, 0, txn.sequence, 1, record.number, now_us)
        elif kind == Kind.OUTGOING:
            self.outgoing(records.read_outgoing(meta), record.number, now_us)
        else:
            replay_queue(self, kind, meta, record.number, now_us)

    def _replay_push(self, record: Replayed, meta: bytes, seen: bool, now_us: int) -> None:
        push = records.read_push(meta)
        if not seen:  # also if the stream is gone: its producer goes on with the next sequence
            self.accepted(push, now_us)
            began_to_wait(self, push, record.number)
        self.invisible.discard(record.number)
        if push.stream not in self.streams:
            return
        batch = None if record.payload is None else Batch.parse(record.payload, verify=False)
        # The node's own fields are outside the batch's checksum; the record's covers its copy.
        if batch is None or batch.header.base != push.base:
            self.lost(push)
        else:
            self.stored(push, batch, record.location, record.length)

    def restart(self, now_us: int, first_grant: int) -> None:
        """After recovery: leases and claims last their whole length again."""
        self.first_grant = first_grant
        for queue in self.queues.values():
            queue.leases.restart(now_us, first_grant)
            queue.touched_us = now_us  # whoever lost the answer to an ack asks again now
        for partition in self.partitions.values():
            partition.restart(now_us)
        self.staging.restart(now_us)

    # --- transactions ----------------------------------------------------------------------

    def outgoing(self, record: records.Outgoing, number: int, now_us: int) -> None:
        """A transaction of this home: what it has to bring to shards, this one too, is known."""
        txn = record.transact
        if txn.producer:
            self.producers.accept(txn.producer, 0, txn.sequence, 1, number, now_us)
        for stream, position, span in record.drops:
            if stream in self.streams and position >= STAGED:
                passed_on(self, stream, position)
            elif stream in self.streams:
                queue, drop = self.queue(stream), Change(Op.DROP, span, 0, position)
                if not changes_lost(queue, drop):
                    queue.changed(drop, now_us)
        for index, (target, part) in enumerate(zip(record.targets, parts_of(txn), strict=True)):
            self.outbox.add(target, number, index, part)

    def carried_out(self, forward: Forward) -> None:
        """A record here carries out a part of a transaction."""
        done = (forward.number, forward.index)
        # One that was invisible in the snapshot comes after later ones that were not.
        self.forwarded[forward.home] = max(done, self.forwarded.get(forward.home, done))
        if forward.home == self.id:
            self.outbox.delivered(self.id, *done)

    def was_forwarded(self, forward: Forward) -> bool:
        """Whether this part of a transaction has been carried out here."""
        return self.forwarded.get(forward.home, (0, -1)) >= (forward.number, forward.index)

    # --- copies ----------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[PushMeta, Stored]]:
        """All batches with live messages, each with what its record says of it."""
        for (stream, number), partition in self.partitions.items():
            for stored in partition.index.rows():
                yield _meta(stream, number, stored), stored
        for stream, queue in self.queues.items():
            for lane in queue.lanes.values():
                for stored in lane.index.rows():
                    yield _meta(stream, 0, stored), stored
        for stage in self.staging.stages.values():
            for staged in stage.batches.values():
                if (found := self.staging.index.find(staged.stamped)) is not None:
                    yield _meta(staged.stream, staged.partition, found), found

    def reset(self) -> list[tuple[int, int]]:
        """Forgets everything; the locations and live bytes of its batches."""
        freed: list[tuple[int, int]] = []
        for meta, stored in self.batches():
            definition = self.streams.get(meta.stream)
            if definition is not None and stored.base < STAGED:
                definition.totals.messages -= stored.live
                definition.totals.bytes -= stored.live_bytes
            freed.append((stored.location, stored.live_bytes))
        owned, epoch = self.owned, self.epoch
        self.__init__(self.id, self.streams)  # type: ignore[misc]
        self.owned, self.epoch = owned, epoch
        return freed

    def relocate(self, places: Mapping[int, tuple[int, int]]) -> None:
        """The batches of a state that was loaded lie elsewhere than where it was made."""
        self.staging.bytes += self.staging.index.relocate(places)
        for partition in self.partitions.values():
            partition.grown(partition.index.relocate(places))
        for queue in self.queues.values():
            for lane in queue.lanes.values():
                queue.grown(lane.index.relocate(places))

    # --- snapshot --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain data for `load`. Pushes that are not visible yet are named, and replayed later."""
        return {
            "last": self.last,
            "epoch": self.epoch,
            "epochs": self.epochs.snapshot(),
            "producers": self.producers.snapshot(),
            "forwarded": [(home, *at) for home, at in self.forwarded.items()],
            "outbox": self.outbox.snapshot(),
            "watchers": self.watchers.snapshot(),
            "sessions": [(n, s.ttl_us, sorted(s.shards)) for n, s in self.sessions.items()],
            "staging": self.staging.snapshot(),
            "publications": self.publications.snapshot(),
            "books": self.books.snapshot(),
            "invisible": list(self.invisible),
            "damaged": self.damaged,
            "queues": [(s, queue_snapshot.snapshot(q)) for s, q in self.queues.items()],
            "partitions": [(s, n, p.snapshot()) for (s, n), p in self.partitions.items()],
            "tables": [(s, t.snapshot()) for s, t in self.tables.items()],
        }

    def load(self, data: dict[str, Any]) -> None:
        """Becomes the shard that made this snapshot. Streams must be defined before."""
        self.last, self.epoch = data["last"], data["epoch"]
        self.epochs = Epochs([tuple(item) for item in data.get("epochs", ())])
        self.producers = Producers.restore(data["producers"])
        self.forwarded = {home: (number, index) for home, number, index in data["forwarded"]}
        self.outbox = Outbox.restore(data.get("outbox", []))
        self.watchers = Watchers.restore(data.get("watchers", []))
        self.sessions = {n: Session(ttl, set(at)) for n, ttl, at in data.get("sessions", ())}
        self.staging = Staging.restore(data.get("staging", []))
        self.publications = Publications.restore(data.get("publications", []))
        self.books = Books.restore(data.get("books", []))
        self.invisible = set(data["invisible"])
        self.damaged = [tuple(item) for item in data["damaged"]]
        for stream, part in data["queues"]:
            if definition := self.streams.get(stream):
                options: QueueOptions = definition.options
                queue = queue_snapshot.restore(self.id, stream, options, definition.totals, part)
                self.queues[stream] = queue
        for stream, number, part in data["partitions"]:
            if definition := self.streams.get(stream):
                topic: TopicOptions = definition.options
                partition = Partition.restore(stream, number, topic, definition.totals, part)
                self.partitions[stream, number] = partition
        for stream, rows in data["tables"]:
            if stream in self.streams:
                self.tables[stream] = TableShard.restore(stream, rows)


def _meta(stream: int, partition: int, stored: Stored) -> PushMeta:
    return PushMeta(stream, partition, stored.stamped, stored.span, 0, 0, 0, False, b"")


def _written(shard: Shard, note: records.Written, number: int, now_us: int) -> None:
    cell = Cell(note.value, number, note.expires_us, note.session, note.mark)
    shard.table(note.stream).put(note.key, cell)
    written(shard, note, number)


def _removed(shard: Shard, note: records.Removed, number: int, now_us: int) -> None:
    for key in note.keys:
        shard.table(note.stream).remove(key)


def _registered(shard: Shard, note: records.Registered, number: int, now_us: int) -> None:
    shard.producers.register(note.producer, note.instance, now_us)


def _forgotten(shard: Shard, note: records.Forgotten, number: int, now_us: int) -> None:
    shard.first_grant = max(shard.first_grant, note.first_grant)
    shard.queues.pop(note.stream, None)


_NOTED: dict[type, Callable[[Shard, Any, int, int], None]] = {
    records.Written: _written,
    records.Removed: _removed,
    **PARTITION_NOTES,
    records.Registered: _registered,
    records.Forgotten: _forgotten,
    **OUTBOX_NOTES,
    **SESSION_NOTES,
    **STAGING_NOTES,
    **PUBLICATION_NOTES,
    **RESERVATION_NOTES,
    **EDGE_NOTES,
}
