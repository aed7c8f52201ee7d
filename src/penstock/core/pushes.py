"""Pushing a batch to a queue, or publishing it to a partition: one path for both."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.core.edge_notes import began_to_wait
from penstock.core.kernel import Kernel
from penstock.core.promises import Promise, Promises
from penstock.core.queue_rules import check_push
from penstock.core.queues import Queues
from penstock.core.records import Forward, Kind, PushMeta, pack_forward, pack_push
from penstock.core.shard import Shard, Stream
from penstock.core.topics import Topics
from penstock.errors import InvalidError, LimitError, MovedError, NotFoundError, StaleError
from penstock.wire.batch import Batch, Columns, Header
from penstock.wire.durability import Durability
from penstock.wire.entry import Entry
from penstock.wire.frames import RECEIPT, PushBody, PushExtra, Verb
from penstock.wire.growth import ANY_GENERATION
from penstock.wire.limits import MAX_ID_BYTES
from penstock.wire.tuples import new_tuple

NO_EXTRA = PushExtra()
# Plain numbers: looking up a member of an enum costs more than comparing it.
_KIND, _BARRIER, _VERB = int(Kind.PUSH), int(Kind.BARRIER), int(Verb.PUSH)


class Stages(Protocol):
    """Where batches go that are not to be seen; see `core.staging`."""

    def known(self, shard: Shard, extra: PushExtra) -> int | None:
        """The base of a batch with this id, if the stage has one."""

    def check(self, shard: Shard, stream: Stream, batch: Batch, extra: PushExtra) -> None:
        """Raises what is wrong with it."""

    def accept(
        self, shard: Shard, stream: Stream, partition: int, batch: Batch, extra: PushExtra,
        level: Durability,
    ) -> Entry:  # fmt: skip
        """Logs it."""


class Pushes:
    """Accepts batches, once each."""

    def __init__(self, kernel: Kernel, queues: Queues, topics: Topics) -> None:
        self.kernel = kernel
        self.queues = queues
        self.topics = topics
        self.promises = Promises(kernel, queues)
        self.stages: Stages  # whoever makes them says so

    def push(
        self, connection: int, request: int, body: PushBody, extra: PushExtra, batch: Batch,
    ) -> None:  # fmt: skip
        """Answers with a receipt when the batch is as safe as asked; a resend is stored once."""
        stream = self.stream(body.stream)
        shard = self.shard(stream, body.partition, body.shard)
        level = stream.level
        if body.durability > level:
            level = Durability(min(body.durability, Durability.SYNCED))
        base = self._duplicate(shard, stream, batch, extra)
        if base is None:
            header = batch.header
            if stream.plain and extra is NO_EXTRA and not (header.columns or header.codec):
                batch.check()  # nothing else could be wrong
            else:
                self.check(stream, shard.id, batch, extra)
                self.check_placed(stream, body.partition, batch.header)
            self.check_depth(stream, batch)
            self._check_room(shard, stream, batch.header.producer, extra)
            if extra.stage:
                self.stages.check(shard, stream, batch, extra)
                entry = self.stages.accept(shard, stream, body.partition, batch, extra, level)
            else:
                entry = self.accept(shard, stream, body.partition, batch, extra, level)
            base = batch.header.base
        else:
            entry = self.kernel.barrier(level)
        duplicate = entry.kind == _BARRIER
        base = 0 if extra.stage or base < 0 else base  # what is staged has no place yet
        receipt = RECEIPT.pack(base, batch.header.count, shard.id, level, duplicate)
        in_turn = entry.in_turn
        self.kernel.reply_when_safe(entry, connection, _VERB, request, receipt, in_turn)

    def push_plain(self, connection: int, request: int, body: PushBody, batch: Batch) -> None:
        """The same for a batch that has values alone, and with which nothing is wrong in itself; in
        fewer steps if its queue is plain, too, and it is the next of its producer."""
        kernel, header = self.kernel, batch.header
        stream, shards, number = kernel.streams.get(body.stream), kernel.shards, body.shard
        if stream is None or not stream.plain or number >= len(shards) or body.durability:
            self.push(connection, request, body, NO_EXTRA, batch)
            return
        shard = shards[number]
        window = shard.producers.windows.get(header.producer)
        if window is None or not shard.owned or not window.expects(header):
            self.push(connection, request, body, NO_EXTRA, batch)
            return
        self.check_depth(stream, batch)
        level = stream.level
        entry = self.accept(shard, stream, body.partition, batch, NO_EXTRA, level)
        receipt = RECEIPT.pack(batch.header.base, header.count, number, level, False)
        kernel.reply_when_safe(entry, connection, _VERB, request, receipt, entry.in_turn)

    def stream(self, number: int) -> Stream:
        """The queue or topic with that id."""
        stream = self.kernel.streams.get(number)
        if stream is None or stream.info.kind == "table":
            raise NotFoundError(f"there is no queue or topic with id {number}")
        return stream

    def shard(self, stream: Stream, partition: int, shard: int) -> Shard:
        """Where a push goes: a partition's own shard, or the one that the producer chose;
        MovedError if another node serves it."""
        return self.kernel.served(self.place(stream, partition, shard))

    def place(self, stream: Stream, partition: int, shard: int) -> int:
        """The number of the shard that a push goes to, whoever serves it."""
        if stream.info.kind == "topic":
            return self.topics.place(stream, partition)
        if not 0 <= shard < len(self.kernel.shards):
            raise InvalidError(f"shard {shard}: there are {len(self.kernel.shards)}")
        return shard

    def _duplicate(
        self, shard: Shard, stream: Stream, batch: Batch, extra: PushExtra
    ) -> int | None:
        """The base of the batch if it was stored before (-1: not known any more), else None."""
        header = batch.header
        if header.producer:
            known = shard.producers.check(header.producer, header.instance, header.sequence)
            if known is not None:
                return known
        if extra.stage:
            return self.stages.known(shard, extra)
        return None if extra.id is None else self.known_id(shard, stream, extra.id)

    def known_id(self, shard: Shard, stream: Stream, message_id: bytes) -> int | None:
        """The position of a message with this id, if the queue knows one (-1: it is about to be
        held)."""
        queue = shard.queues.get(stream.info.id)
        if queue is None:
            return None
        queue.ids.expire(self.kernel.now_us - stream.options.id_window_ms * 1000)
        if message_id in queue.coming:  # it is known from then on, at least as long as it is held
            return -1
        held = queue.held.get(message_id)
        return queue.ids.find(message_id) if held is None else held.position

    def _check_room(self, shard: Shard, stream: Stream, producer: int, extra: PushExtra) -> None:
        """LimitError if what makes a resend harmless cannot be remembered."""
        if producer and producer not in shard.producers.windows:
            shard.producers.has_room(self.kernel.now_us)
        if extra.id is not None and not extra.stage:
            shard.queue(stream.info.id).ids.has_room()

    def check_open(self, stream: Stream, partition: int, header: Header) -> None:
        """MovedError if a topic has grown and it is too early for this batch: its partition is not
        open, or this node has not heard of it."""
        generation = header.generation
        if generation not in (0, ANY_GENERATION) and generation > stream.info.generation:
            raise MovedError(f"topic {stream.info.name!r} has grown, which is not known here yet")
        if stream.layout is not None and not self.topics.is_open(stream, partition):
            raise MovedError(f"partition {partition} is not open yet: its parent is being sealed")

    def check_placed(self, stream: Stream, partition: int, header: Header) -> None:
        """As `check_open`, and StaleError if it was placed by its keys before the topic grew. All
        partitions refuse it, not only those that were split: who does not know how the topic has
        grown may put a key anywhere."""
        if stream.layout is None and not header.generation:
            return
        if stream.info.kind != "topic":
            return
        self.check_open(stream, partition, header)
        keyed = header.columns & Columns.KEYS
        if keyed and header.generation < stream.info.generation:
            raise StaleError(
                f"topic {stream.info.name!r} has grown {stream.info.generation} times, and this "
                f"batch was placed when it had {header.generation}"
            )

    def check_depth(self, stream: Stream, batch: Batch) -> None:
        """LimitError if a queue has as much as it may have on this node."""
        if stream.info.kind != "queue":
            return
        options, totals, header = stream.options, stream.totals, batch.header
        waiting = totals.messages + totals.coming
        if waiting + header.count > options.max_messages:
            raise _full(stream, waiting, header.count, options.max_messages, "messages")
        if totals.bytes + header.length > options.max_bytes:
            raise _full(stream, totals.bytes, header.length, options.max_bytes, "bytes")

    def _belongs(self, stream: Stream, place: int, extra: PushExtra) -> bool:
        """Whether a push may go to this shard: an id and a queue on one shard have their own."""
        if extra.id is not None and not stream.options.gangs:
            return place == self.kernel.place_of(extra.id)
        free = not stream.options.on_one_shard
        return free or place == self.kernel.place_of(stream.info.name.encode())

    def check(self, stream: Stream, place: int, batch: Batch, extra: PushExtra) -> None:
        """Raises what is wrong with a batch for this stream and shard, whoever serves that."""
        header = batch.header
        if not header.codec or _reads_keys(stream):
            batch.check()
        if header.columns & Columns.DELTAS:
            raise InvalidError("a producer does not send row offsets")
        if stream.info.kind == "topic":
            if extra.id is not None or extra.hold or header.due_us or header.priority:
                raise InvalidError("a topic takes no id, hold, delay or priority")
            if stream.options.keep == "latest" and not header.columns & Columns.KEYS:
                raise InvalidError("a topic that keeps the latest of every key needs keys")
            return
        if extra.id is not None and (header.count != 1 or not 0 < len(extra.id) <= MAX_ID_BYTES):
            raise InvalidError(f"an id names one message and has 1 to {MAX_ID_BYTES} bytes")
        if not self._belongs(stream, place, extra):
            raise InvalidError("this push belongs to another shard")
        if extra.hold and extra.id is None:
            raise InvalidError("a held message needs an id to be released by")
        keyed = bool(header.columns & Columns.KEYS) and not header.columns & Columns.KEY_NULLS
        check_push(stream.options, header, keyed, extra.hold)

    def accept(
        self, shard: Shard, stream: Stream, partition: int, batch: Batch, extra: PushExtra,
        level: Durability, forward: Forward | None = None, waits: bytes = b"",
    ) -> Entry:  # fmt: skip
        """Gives the batch its place and logs it. It is visible once it is committed. `waits`: what
        a held message waits for, packed."""
        header = batch.header
        base = self.place_rows(shard, stream, partition, header.priority, header.count)
        batch.stamp(base, shard.epoch, self.kernel.now_us)
        fields = (
            stream.info.id, partition, base, header.count, header.producer, header.sequence,
            header.instance, extra.hold, extra.id or b"", waits,
        )  # fmt: skip
        meta = new_tuple(PushMeta, fields)
        shard.accepted(meta, self.kernel.now_us)
        level = shard.level_in_turn(level)
        packed, kind = pack_push(meta), _KIND
        if forward is not None:
            packed, kind = pack_forward(forward, packed), kind | Kind.FORWARDED
        entry = self.kernel.log(shard, kind, packed, level, None, batch.buffer)
        shard.invisible.add(entry.number)
        promise = None
        if waits:
            began_to_wait(shard, meta, entry.number)
        elif not extra.hold:
            promise = self.promises.make(shard, stream, batch, level)
            entry.in_turn = promise is not None  # those who wait longest are told first
        entry.done = partial(self._visible, shard, stream, meta, batch, promise)
        stream.totals.coming += header.count
        shard.coming[stream.info.id] += header.count
        return entry

    def place_rows(
        self, shard: Shard, stream: Stream, partition: int, priority: int, count: int
    ) -> int:
        """Where the next messages of a partition or a priority begin; they are used up."""
        if stream.info.kind == "topic":
            place = shard.partition(stream.info.id, partition)
            base = place.tail
            place.tail += count
        else:
            lane = self.queues.part(shard, stream.info.id).lane(priority)
            base = lane.tail
            lane.tail = base + count
        return base

    def _visible(
        self, shard: Shard, stream: Stream, meta: PushMeta, batch: Batch,
        promise: Promise | None, entry: Entry,
    ) -> None:  # fmt: skip
        shard.invisible.discard(entry.number)
        if stream.info.id not in self.kernel.streams:  # deleted while the batch was on its way
            self.kernel.free([(entry.location, entry.length)])
            if promise is not None:
                self.promises.end(promise, shard)
            return
        if shard.owned:  # if not, it does not count any more
            stream.totals.coming -= meta.count
            shard.coming[stream.info.id] -= meta.count
        shard.stored(meta, batch, entry.location, entry.length)
        if promise is not None:
            self.promises.keep(promise, shard, shard.queues[stream.info.id])
        elif not shard.owned:
            return
        elif stream.info.kind == "topic":
            self.topics.arrived(stream.info.id, meta.partition)
        else:
            self.queues.pushed(shard.queues[stream.info.id], batch.header.priority)


def _full(stream: Stream, present: int, more: int, most: int, what: str) -> LimitError:
    text = f"queue {stream.info.name!r} has {present:,} {what} of at most {most:,}: no room for"
    if more > most:
        return LimitError(f"{text} {more:,}, ever", advice="Push less at once, or raise the bound.")
    return LimitError(f"{text} {more:,} more")


def _reads_keys(stream: Stream) -> bool:
    """Whether the node itself opens the batches of a stream, and so must be able to."""
    if stream.info.kind == "topic":
        return bool(stream.options.keep == "latest")
    return bool(stream.options.ordered == "key")
