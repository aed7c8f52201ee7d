"""A node without a disk: drives a Fabric with real frames, keeps its log, commits when told to.

The log is a list, "safe" is a number, and a crash makes a new Fabric from snapshots and records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.core.effects import Close, Deliver, Free, Read, Send, Serve
from penstock.core.fabric import Fabric
from penstock.core.index import Stored
from penstock.core.records import Kind
from penstock.core.runs import rows_of
from penstock.core.shard import Replayed
from penstock.errors import StorageError
from penstock.wire import frames
from penstock.wire import messages as m
from penstock.wire.batch import Batch, restamped
from penstock.wire.buffers import Buffer
from penstock.wire.durability import Durability
from penstock.wire.encode import encode_batch
from penstock.wire.entry import RECORD_HEADER_BYTES, Entry
from penstock.wire.frames import Flag, PopMode, Settle, Verb

START_US = 1_000_000_000
Snapshot = dict[str, bytes]
_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.decode


class Got(NamedTuple):
    """One delivered message."""

    shard: int
    grant: int
    position: int
    deliveries: int
    value: bytes


class Answer(NamedTuple):
    """One frame from the node, or what the shell would have made one of."""

    connection: int
    verb: int
    request: int
    flags: int
    body: bytes
    messages: list[Got]
    fetched: tuple[int, int, list[tuple[int, bytes]]] | None = None

    def value(self) -> Any:
        """The msgpack value of the answer to a call; raises the error that it carries."""
        if self.flags & Flag.ERROR:
            raise frames.read_error(self.body)
        return _unpack(self.body) if self.body else None


class Settled(NamedTuple):
    """The answer to a SETTLE: messages accepted, and error codes of refused items."""

    accepted: int
    refused: dict[int, int]


def hello(request: int = 0, features: Sequence[str] = ()) -> bytearray:
    greeting = m.Hello(1, "test", list(features))
    return bytearray(frames.frame(Verb.HELLO, request, 0, _pack(greeting)))


def push_body(
    stream: int, shard: int, batch: Buffer, partition: int = 0, durability: int = 0,
    extra: frames.PushExtra | None = None,
) -> bytes:  # fmt: skip
    packed = b""
    if extra is not None:
        data = _pack(extra)
        packed = len(data).to_bytes(4, "little") + data
        packed += bytes(-len(packed) % 8)
    return frames.PUSH.pack(stream, partition, shard, durability, len(packed)) + packed + batch


class Node:
    """See the module. Connection 1 is there from the start."""

    def __init__(self, shards: int = 4, *, lazy: bool = False) -> None:
        self.now_us = START_US
        self.lazy = lazy  # nothing is committed before `commit`
        self.fabric = Fabric(shards, self.now_us, "test")
        self.journal: list[Replayed] = []
        self.pending: deque[Entry] = deque()
        self.batches: dict[int, bytes] = {}
        self.live: dict[int, int] = {}
        self.inbox: list[Answer] = []
        self.closed: list[int] = []
        self.reads: list[Read] = []  # under way
        self.safe_records = 0  # of the journal: these survive a crash
        self._requests = 0
        self.connect(1)

    # --- the shell -------------------------------------------------------------------------

    def connect(self, connection: int, features: Sequence[str] = ()) -> None:
        self.fabric.handle(connection, hello(0, features), self.now_us)
        self._carry_out()
        self.inbox.pop()

    def send(
        self, verb: int, body: Buffer = b"", flags: int = 0, connection: int = 1,
        request: int | None = None,
    ) -> int:  # fmt: skip
        """One frame; returns the request's number."""
        if request is None:
            self._requests += 1
            request = self._requests
        frame = bytearray(frames.frame(verb, request, flags, bytes(body)))
        self.fabric.handle(connection, frame, self.now_us)
        self._carry_out()
        return request

    def tick(self, after_us: int = 0) -> None:
        """Time passes."""
        self.now_us += after_us
        self.fabric.tick(self.now_us)
        self._carry_out()

    def commit(self, count: int | None = None) -> None:
        """The next `count` entries are safe, or all of them."""
        left = len(self.pending) if count is None else min(count, len(self.pending))
        while left > 0:
            self._commit([self.pending.popleft()])
            left -= 1
            if count is None:
                left = len(self.pending)

    def refuse(self) -> None:
        """The disk refuses all that is pending: whoever waits is told, and it stays in line."""
        for entry in self.pending:
            if entry.failed is not None:
                failed, entry.failed, entry.refused = entry.failed, None, True
                failed(StorageError("full"))
        self._carry_out()

    def _commit(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.payload is not None:
                self.live[entry.location] = entry.length
        self.fabric.committed(entries, self.now_us)
        self._carry_out()

    def _carry_out(self) -> None:
        while effects := self.fabric.take_effects():
            at_once: list[Entry] = []
            for effect in effects:
                if isinstance(effect, Entry):
                    self._append(effect, at_once)
                elif isinstance(effect, Send):
                    self._receive(effect)
                elif isinstance(effect, Deliver):
                    self._deliver(effect)
                elif isinstance(effect, Serve):
                    self._serve(effect)
                elif isinstance(effect, Read):
                    self.reads.append(effect)
                elif isinstance(effect, Free):
                    for location, size in effect.places:
                        self.live[location] -= size
                        assert self.live[location] >= 0, "freed more than was stored"
                elif isinstance(effect, Close):
                    self.closed.append(effect.connection)
            if at_once:
                self._commit(at_once)
        if not self.lazy and self.pending:
            self.commit()
        if not self.lazy:
            self.read()

    def read(self) -> None:
        """What the core wants to read has been read."""
        while self.reads:
            wanted = self.reads.pop(0)
            self.fabric.was_read(wanted, self.batches.get(wanted.stored.location))
            self._carry_out()

    def _append(self, entry: Entry, at_once: list[Entry]) -> None:
        payload = None if entry.payload is None else bytes(entry.payload)
        entry.length = RECORD_HEADER_BYTES + len(entry.meta) + len(payload or b"")
        if entry.kind != Kind.BARRIER:
            entry.location = 1 << 32 | len(self.journal) + 1
            view = None if payload is None else memoryview(payload)
            self.journal.append(
                Replayed(entry.shard, entry.kind, entry.number, entry.meta, view, entry.location,
                         entry.length)
            )  # fmt: skip
            if payload is not None:
                self.batches[entry.location] = payload
        if entry.level == Durability.MEMORY:
            at_once.append(entry)
        else:
            self.pending.append(entry)

    # --- answers ---------------------------------------------------------------------------

    def _receive(self, effect: Send) -> None:
        whole = b"".join(effect.parts)
        length, verb, flags, _, request = frames.FRAME.unpack_from(whole)
        assert length == len(whole)
        body = whole[frames.FRAME_BYTES :]
        self.inbox.append(Answer(effect.connection, verb, request, flags, body, []))

    def _deliver(self, effect: Deliver) -> None:
        got: list[Got] = []
        for part in effect.slices:
            batch = Batch.parse(self.batches[part.location])
            assert batch.header.base == part.base
            if part.moved is not None:
                batch = Batch.parse(restamped(batch.buffer, *part.moved))
            positions = rows_of(part.mask).astype(np.int64) + part.position
            rows = batch.rows_at(positions)
            assert len(rows) == len(positions)
            got += [
                Got(part.shard, part.grant, int(position), part.deliveries, batch.values[row])
                for position, row in zip(positions.tolist(), rows.tolist(), strict=True)
            ]
        answer = Answer(effect.connection, effect.verb, effect.request, effect.flags, b"", got)
        self.inbox.append(answer)

    def _serve(self, effect: Serve) -> None:
        rows: list[tuple[int, bytes]] = []
        for location, _, base in effect.batches:
            batch = Batch.parse(self.batches[location])
            assert batch.header.base == base
            if base in effect.moved:
                batch = Batch.parse(restamped(batch.buffer, *effect.moved[base]))
            rows += [(row.offset, row.value) for row in batch]
        fetched = (effect.start, effect.end, rows)
        self.inbox.append(
            Answer(effect.connection, Verb.FETCH, effect.request, Flag.RESPONSE, b"", [], fetched)
        )

    def answer(self, request: int, connection: int = 1) -> Answer:
        """The answer to a request, which must be there; it is taken out of the inbox."""
        for at, answer in enumerate(self.inbox):
            if (answer.connection, answer.request) == (connection, request):
                return self.inbox.pop(at)
        raise AssertionError(f"request {request} has no answer")

    def has_answer(self, request: int, connection: int = 1) -> bool:
        return any((a.connection, a.request) == (connection, request) for a in self.inbox)

    # --- verbs -----------------------------------------------------------------------------

    def call(self, message: Any, connection: int = 1) -> Any:
        """A call and its answer; commits all that is pending if need be."""
        request = self.send(Verb.CALL, _pack(message), connection=connection)
        if not self.has_answer(request, connection):
            self.commit()
        return self.answer(request, connection).value()

    def open(self, kind: str, name: str, **options: Any) -> int:
        number: int = self.call(m.Open(kind, name, options=options or None))["id"]
        return number

    def push(
        self, stream: int, values: Sequence[bytes], shard: int = 0, *, partition: int = 0,
        extra: frames.PushExtra | None = None, durability: int = 0, flags: int = 0, **terms: Any,
    ) -> int:  # fmt: skip
        """Sends a push; its request."""
        batch = encode_batch(values, timestamp_us=self.now_us, **terms)
        body = push_body(stream, shard, batch, partition, durability, extra)
        return self.send(Verb.PUSH, body, flags)

    def receipt(self, request: int) -> frames.Receipt:
        answer = self.answer(request)
        if answer.flags & Flag.ERROR:
            raise frames.read_error(answer.body)
        return frames.Receipt(*frames.RECEIPT.unpack(answer.body))

    def pop(
        self, stream: int, messages: int = 1, *, wait_ms: int = 0, lease_ms: int = 0,
        mode: int = PopMode.LEASE, connection: int = 1, verb: int = Verb.POP, max_bytes: int = 0,
    ) -> int:  # fmt: skip
        body = frames.POP.pack(stream, messages, max_bytes, wait_ms, lease_ms, mode)
        return self.send(verb, body, connection=connection)

    def popped(self, stream: int, messages: int = 1, **more: Any) -> list[Got]:
        """Pops and commits what is pending."""
        request = self.pop(stream, messages, **more)
        self.commit()
        return self.answer(request, more.get("connection", 1)).messages

    def settle(self, stream: int, items: Sequence[frames.SettleItem]) -> Settled:
        request = self.send(Verb.SETTLE, frames.pack_settle(stream, items))
        self.commit()
        return read_settled(self.answer(request).body)

    def ack(self, stream: int, got: Got, op: int = Settle.ACK, arg: int = 0) -> Settled:
        item = frames.SettleItem(op, got.shard, 1, got.grant, got.position, arg)
        return self.settle(stream, [item])

    def fetch(
        self, stream: int, partition: int, offset: int, *, max_bytes: int = 1 << 20,
        wait_ms: int = 0,
    ) -> int:  # fmt: skip
        body = frames.FETCH.pack(stream, partition, offset, max_bytes, wait_ms)
        return self.send(Verb.FETCH, body)

    # --- crashes ---------------------------------------------------------------------------

    def snapshot(self, shards: Sequence[int] | None = None) -> Snapshot:
        """Shards (all by default), then definitions, as a checkpoint does it."""
        chosen = range(len(self.fabric.kernel.shards)) if shards is None else shards
        taken = {str(n): _pack(self.fabric.kernel.shards[n].snapshot()) for n in chosen}
        taken["control"] = _pack(self.fabric.control_log.snapshot())
        return taken

    def crash(
        self, taken: Snapshot | None = None, keep: int | None = None, owns: bool = True
    ) -> Node:
        """The node that comes up after a crash which kept so many records (default: all). Without
        `owns`, as one of a cluster: it does not go on by itself."""
        node = Node(len(self.fabric.kernel.shards), lazy=self.lazy)
        node.now_us = self.now_us
        node.fabric = fabric = Fabric(len(self.fabric.kernel.shards), self.now_us, "test")
        node.batches = dict(self.batches)
        node._requests = self._requests
        taken = taken or {}
        if "control" in taken:
            fabric.control_log.load(_unpack(taken["control"]))
        for shard in fabric.kernel.shards:
            if data := taken.get(str(shard.id)):
                shard.load(_unpack(data))
        for record in self.journal[: len(self.journal) if keep is None else keep]:
            node.journal.append(record)
            fabric.replay(record, node.now_us)
        node.live = {stored.location: stored.live_bytes for stored in all_stored(fabric)}
        fabric.restart(node.now_us, owns=owns)
        node._carry_out()
        node.connect(1)
        return node

    def check(self) -> None:
        """Bytes that are freed and bytes that are live add up."""
        expected = {s.location: s.live_bytes for s in all_stored(self.fabric)}
        assert {place: size for place, size in self.live.items() if size} == expected


def all_stored(fabric: Fabric) -> list[Stored]:
    """All batches with live messages."""
    found: list[Stored] = []
    for shard in fabric.kernel.shards:
        for queue in shard.queues.values():
            for lane in queue.lanes.values():
                found += lane.index.rows()
        for partition in shard.partitions.values():
            found += partition.index.rows()
        found += shard.staging.index.rows()
    return found


def read_settled(body: bytes) -> Settled:
    accepted, count = frames.COUNT.unpack_from(body)
    refused = dict(frames.REFUSED.iter_unpack(body[frames.COUNT.size :]))
    assert len(refused) == count
    return Settled(accepted, refused)
