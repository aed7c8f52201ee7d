"""Topics: reading partitions, retention."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.core.effects import Serve
from penstock.core.kernel import Kernel, Timer, still_waiting
from penstock.core.partition import Partition
from penstock.core.records import Kind, Trimmed, pack_note
from penstock.core.shard import Shard, Stream
from penstock.errors import InvalidError, LimitError, MovedError, NotFoundError, PenstockError
from penstock.wire import messages as m
from penstock.wire.entry import Entry
from penstock.wire.frames import FetchBody, Verb

MAX_FETCH_BYTES = 8 << 20
MAX_WAIT_MS = 300_000
MAX_READERS = 10_000  # parked on one partition
RETENTION_EVERY_US = 1_000_000
RETENTION_TURNS = 10  # a tenth of the shards is looked at in every turn


@dataclass(slots=True, eq=False)
class Reader:
    """A parked fetch."""

    connection: int
    body: FetchBody
    request: int
    over: bool = False
    timer: Timer | None = None


class Topics:
    """The topics of a node."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.readers: dict[tuple[int, int], deque[Reader]] = {}
        self._turn = 0
        kernel.timers.at(kernel.now_us + RETENTION_EVERY_US, self._retain)

    def shard(self, stream: Stream, partition: int) -> Shard:
        """Where a partition lives; MovedError if another node serves it."""
        return self.kernel.served(self.place(stream, partition))

    def place(self, stream: Stream, partition: int) -> int:
        """The number of the shard where a partition lives, whoever serves it."""
        placement = stream.info.placement
        if not 0 <= partition < len(placement):
            raise self._unknown(f"partition {partition}: the topic has {len(placement)}")
        return placement[partition]

    def _unknown(self, text: str) -> PenstockError:
        """In a cluster the topic may have grown, and this node not have heard of it yet."""
        return MovedError(text) if self.kernel.shared else InvalidError(text)

    def is_open(self, stream: Stream, number: int) -> bool:
        """Whether a partition of this node has begun: one that a growth added begins when its
        parent is sealed."""
        if stream.layout is None or not stream.layout.born[number]:
            return True
        shard = self.kernel.shards[stream.info.placement[number]]
        return shard.partition(stream.info.id, number).opened

    def partition(self, stream: int, number: int) -> Partition:
        """A partition of a topic."""
        topic = self.kernel.stream(stream, "topic")
        return self.shard(topic, number).partition(stream, number)

    def partitions(self, stream: int, wanted: Sequence[int] | None) -> list[Partition]:
        """Partitions of a topic: those wanted, in that order, or all. MovedError if another node
        serves one of them."""
        chosen = self.wanted(self.kernel.stream(stream, "topic"), wanted)
        return [self.partition(stream, number) for number in chosen]

    def wanted(self, stream: Stream, wanted: Sequence[int] | None) -> Sequence[int]:
        """The numbers of those partitions. InvalidError, or in a cluster MovedError, if there are
        more than the topic has here."""
        count = len(stream.info.placement)
        if wanted is not None and len(wanted) > count:
            raise self._unknown(f"{len(wanted)} partitions: the topic has {count}")
        return range(count) if wanted is None else wanted

    # --- reading ---------------------------------------------------------------------------

    def fetch(self, connection: int, request: int, body: FetchBody) -> Reader | None:
        """Answers with batches from an offset on, now or when some arrive, or with none."""
        body = body._replace(
            max_bytes=max(1, min(body.max_bytes, MAX_FETCH_BYTES)),
            wait_ms=min(body.wait_ms, MAX_WAIT_MS),
        )
        if self._serve(connection, request, body, body.wait_ms > 0):
            return None
        readers = self.readers.setdefault((body.stream, body.partition), deque())
        if len(readers) >= MAX_READERS:
            readers = self.readers[body.stream, body.partition] = still_waiting(readers)
        if len(readers) >= MAX_READERS:
            raise LimitError(f"{MAX_READERS:,} reads wait for this partition already")
        reader = Reader(connection, body, request)
        readers.append(reader)
        wait_us = self.kernel.now_us + body.wait_ms * 1000
        reader.timer = self.kernel.timers.at(wait_us, lambda: self._give_up(reader))
        return reader

    def _serve(self, connection: int, request: int, body: FetchBody, wait: bool) -> bool:
        partition = self.partition(body.stream, body.partition)
        closed = not self.is_open(self.kernel.streams[body.stream], body.partition)
        if closed and wait:
            return False
        if body.offset > partition.end and not closed:
            self._refuse(connection, request, body, partition)
            return True
        found = [] if closed else partition.find(body.offset, body.max_bytes)
        if not found and wait:
            return False
        batches = [(stored.location, stored.length, stored.stamped) for stored in found]
        moved = {each.stamped: each.moved for each in found if each.moved is not None}
        effect = Serve(connection, request, partition.start, partition.end, batches, moved)
        self.kernel.effects.append(effect)
        return True

    def _refuse(
        self, connection: int, request: int, body: FetchBody, partition: Partition
    ) -> None:
        """There is no such offset yet; unless another node owns the partition by now, and has it,
        which the reader must ask then."""
        kernel = self.kernel
        refusal = InvalidError(
            f"offset {body.offset} is after the end of the partition, {partition.end}"
        )
        place = kernel.streams[body.stream].info.placement[body.partition]
        entry = kernel.confirmation([kernel.shards[place]])
        if entry is None:
            raise refusal
        kernel.answer_when_safe(
            entry, connection, Verb.FETCH, request,
            lambda: kernel.fail(connection, Verb.FETCH, request, refusal),
        )  # fmt: skip

    def _give_up(self, reader: Reader) -> None:
        if not reader.over:
            reader.over = True
            self._answer(reader)

    def _answer(self, reader: Reader) -> None:
        try:
            self._serve(reader.connection, reader.request, reader.body, False)
        except PenstockError as error:
            self.kernel.fail(reader.connection, Verb.FETCH, reader.request, error)

    def arrived(self, stream: int, partition: int) -> None:
        """A batch can be read: whoever waits for it gets it."""
        if stream in self.kernel.keep_latest:
            self.kernel.grown[stream, partition] = None
        for reader in self.readers.pop((stream, partition), ()):
            if not reader.over:
                reader.over = True
                if reader.timer is not None:
                    self.kernel.timers.cancel(reader.timer)
                self._answer(reader)

    def closed(self, stream: int) -> None:
        """A topic was deleted: whoever waits for its messages is told."""
        for key in [key for key in self.readers if key[0] == stream]:
            for reader in self.readers.pop(key):
                if not reader.over:
                    reader.over = True
                    error = NotFoundError("this topic was deleted")
                    self.kernel.fail(reader.connection, Verb.FETCH, reader.request, error)

    def moved(self, shard: int) -> None:
        """Another node owns a shard now: whoever waits for messages of its partitions is told."""
        for key in list(self.readers):
            stream = self.kernel.streams.get(key[0])
            if stream is not None and stream.info.placement[key[1]] == shard:
                for reader in self.readers.pop(key):
                    self._give_up(reader)  # which finds out that it has moved

    # --- bounds ----------------------------------------------------------------------------

    def offsets(self, call: m.Offsets) -> list[tuple[int, int]]:
        """First and next offset of partitions."""
        return [(p.start, p.end) for p in self.partitions(call.stream, call.partitions)]

    def offset_at(self, call: m.OffsetAt) -> list[int]:
        """The first offset of partitions that arrived at or after a time."""
        parts = self.partitions(call.stream, call.partitions)
        return [part.offset_at(call.time_us) for part in parts]

    def family(self, call: m.Family) -> list[m.Kinship]:
        """Where partitions began, and where children took over."""
        stream = self.kernel.stream(call.stream, "topic")
        parts = self.partitions(call.stream, call.partitions)
        return [
            m.Kinship(part.origin if self.is_open(stream, part.number) else None, part.splits)
            for part in parts
        ]

    # --- retention -------------------------------------------------------------------------

    def _retain(self) -> None:
        self.kernel.timers.at(self.kernel.now_us + RETENTION_EVERY_US, self._retain)
        self._turn = (self._turn + 1) % RETENTION_TURNS
        for shard in self.kernel.shards[self._turn :: RETENTION_TURNS]:
            for partition in list(shard.partitions.values()) if shard.owned else ():
                self._retain_one(shard, partition)

    def _retain_one(self, shard: Shard, partition: Partition) -> None:
        start = partition.expired_before(self.kernel.now_us)
        if start > max(partition.start, partition.expiring):
            partition.expiring = start
            note = Trimmed(partition.stream, partition.number, start)
            level = self.kernel.streams[partition.stream].level
            entry = self.kernel.log(shard, Kind.NOTE, pack_note(note), level)
            entry.done = partial(self._retained, shard, note)
            shard.invisible.add(entry.number)

    def _retained(self, shard: Shard, note: Trimmed, entry: Entry) -> None:
        """Only now: whoever was told that messages are gone must not find them after a crash."""
        shard.invisible.discard(entry.number)
        shard.noted(note, entry.number, self.kernel.now_us)

    def figures(self, stream: Stream, wanted: Sequence[int] | None = None) -> dict[str, Any]:
        """What `penstock topic show` prints, of all partitions or those wanted."""
        parts = self.partitions(stream.info.id, wanted)
        return {
            "messages": sum(part.live_messages for part in parts),
            "bytes": sum(part.bytes for part in parts),
            "partitions": [{"start": p.start, "end": p.end, "bytes": p.bytes} for p in parts],
            "groups": sorted({group for p in parts for group in (*p.commits, *p.claims)}),
            "damaged": sum(count for p in parts for _, count in p.damage),
        }
