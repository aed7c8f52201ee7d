"""Clients that do several things at a time, and remember what they were told."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import msgspec
import xxhash
from tests.cluster.members.histories import Ack, Delivery, Queue, Read, Table, Topic, Write
from tests.cluster.members.world import SHARDS, World

from penstock.core.changes import Op
from penstock.errors import MovedError, PenstockError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    FETCH,
    FETCH_HEAD,
    FRAME_BYTES,
    GRANT,
    POP,
    PUSH,
    RECEIPT,
    SETTLE_HEAD,
    SETTLE_ITEM,
    Flag,
    Verb,
    read_error,
)

WAIT_US = 2_500_000
TRIES = 60  # of the last things that a client wants done, once all is well again


class Ask(NamedTuple):
    """A request to a node; `copies`: it is sent so many times more."""

    node: int
    verb: int
    body: bytes
    copies: int = 0


Answer = memoryview | PenstockError | None  # None: none came in time
Script = Generator["list[Ask] | int", list[Answer], None]  # an int: that long nothing, in us


def _read(frame: bytes | None) -> Answer:
    if frame is None:
        return None
    body = memoryview(frame)[FRAME_BYTES:]
    return read_error(body) if frame[5] & Flag.ERROR else body


class Actors:
    """Scripts that run side by side, on one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stopping = False
        self.running = 0

    def start(self, script: Script) -> None:
        self.running += 1
        self.world.after(1, lambda: self._step(script, []))

    def _step(self, script: Script, answers: list[Answer]) -> None:
        try:
            wanted = script.send(answers) if answers else next(script)
        except StopIteration:
            self.running -= 1
            return
        if isinstance(wanted, int):
            self.world.after(wanted, lambda: self._step(script, []))
            return
        found: list[Answer] = [None] * len(wanted)
        left = len(wanted)

        def answered(at: int) -> Callable[[bytes | None], None]:
            def then(frame: bytes | None) -> None:
                nonlocal left
                found[at], left = _read(frame), left - 1
                if not left:
                    self._step(script, found)

            return then

        for at, ask in enumerate(wanted):
            self.world.send(ask.node, ask.verb, ask.body, answered(at), WAIT_US)
            for _ in range(ask.copies):
                self.world.send(ask.node, ask.verb, ask.body, lambda _: None, WAIT_US)

    # --- who to ask ------------------------------------------------------------------------

    def owner(self, shard: int) -> int:
        """As a random node sees it: maps are stale, and clients are on both sides."""
        hosts = self.world.hosts
        members = [host.member for host in hosts.values() if host.member is not None]
        maps = [each.plane.state.map() for each in members if each.plane.state.shards]
        return self.world.random.choice(maps).owner_of(shard) if maps else 1

    def _copies(self) -> int:
        return self.world.random.random() < 0.15

    def _idle_us(self) -> int:
        return self.world.random.randint(20_000, 700_000)

    # --- queues and topics -----------------------------------------------------------------

    def producer(self, history: Queue | Topic, stream: int, place: int, producer: int) -> Script:
        """Pushes to a shard or a partition, several at a time; resends what got no receipt."""
        rng = self.world.random
        first, tries, told = 0, 0, set[int]()
        while not (self.stopping and first in (0, len(history.sent[producer]))):
            burst = range(first, first + rng.randint(1, 4))
            if self.stopping:
                tries += 1
                burst = range(first, len(history.sent[producer]))
                if tries > TRIES:
                    history.wrong.append(f"place {place} takes nothing any more")
                    return
            node = self.owner(place)
            asks = []
            for sequence in burst:
                value = history.value(producer, sequence)
                batch = encode_batch(
                    [value], timestamp_us=5, producer=producer, sequence=sequence
                )
                partition = place if isinstance(history, Topic) else 0
                head = PUSH.pack(stream, partition, place, 0, 0)
                asks.append(Ask(node, Verb.PUSH, head + bytes(batch), self._copies()))
            for sequence, answer in zip(burst, (yield asks), strict=True):
                if isinstance(answer, memoryview):
                    told.add(sequence)
                    base = RECEIPT.unpack(answer)[0]
                    history.acknowledged(producer, sequence, base)
            while first in told:
                first += 1
            yield self._idle_us()

    def consumer(self, history: Queue, stream: int) -> Script:
        """Pops, then acks, nacks, or lets the lease end."""
        rng, world = self.world.random, self.world
        while not self.stopping:
            yield from self.consume_once(history, stream, rng.choice(list(world.hosts)), 0.7)
            yield self._idle_us()

    def consume_once(self, history: Queue, stream: int, node: int, acks: float) -> Script:
        world = self.world
        asked_us = world.now_us
        (body,) = yield [Ask(node, Verb.POP, POP.pack(stream, 8, 1 << 20, 0, 0, 0))]
        if not isinstance(body, memoryview):
            return
        found = _deliveries(body, asked_us, world.now_us)
        history.deliveries += found
        for one in found:
            chance = world.random.random()
            if chance < acks:
                yield from self._ack(history, stream, node, one)
            elif chance < acks + 0.1:
                one.nacked = True
                yield [Ask(node, Verb.SETTLE, _settle(stream, Op.NACK, one))]

    def _ack(self, history: Queue, stream: int, node: int, one: Delivery) -> Script:
        for _ in range(3):
            body = _settle(stream, Op.ACK, one)
            (answer,) = yield [Ask(node, Verb.SETTLE, body, self._copies())]
            if isinstance(answer, memoryview):
                if COUNT.unpack_from(answer)[0] == 1:
                    history.acks.append(Ack(one, self.world.now_us))
                return
            one.doubtful = True
            if isinstance(answer, MovedError):
                yield 50_000
                node = self.owner(one.shard)

    def reader(self, history: Topic, stream: int, partition: int) -> Script:
        """Reads a partition over and over."""
        offset, tries = 0, 0
        while not self.stopping or offset < history.ends[partition]:
            node = self.owner(partition)
            body = FETCH.pack(stream, partition, offset, 1 << 16, 0)
            (answer,) = yield [Ask(node, Verb.FETCH, body)]
            if isinstance(answer, memoryview):
                offset = history.fetched(partition, offset, _batches(answer))
                if not self.stopping and self.world.random.random() < 0.1:
                    offset = 0
            tries += self.stopping
            if tries > TRIES:
                history.wrong.append(f"partition {partition} cannot be read at {offset}")
                return
            yield self._idle_us()

    # --- tables ----------------------------------------------------------------------------

    def editor(self, history: Table, stream: int, key: bytes, name: int) -> Script:
        """Reads and writes one key, sometimes only if it is as it was."""
        world, rng, number, seen = self.world, self.world.random, 0, 0
        shard = xxhash.xxh3_64_intdigest(key) % SHARDS
        while not self.stopping:
            node, asked_us, chance = self.owner(shard), world.now_us, rng.random()
            if chance < 0.5:
                (answer,) = yield [Ask(node, Verb.CALL, m.pack(m.Get(stream, key)))]
                if isinstance(answer, memoryview):
                    entry = msgspec.msgpack.decode(answer, type=m.Entry | None)
                    seen = 0 if entry is None else entry.version
                    value = b"" if entry is None else entry.value
                    history.reads.append(Read(key, asked_us, world.now_us, seen, value))
            else:
                number += 1
                value = b"%d-%d" % (name, number)
                expected = seen if chance < 0.75 else None
                put = m.Put(stream, key, value, expected)
                (answer,) = yield [Ask(node, Verb.CALL, m.pack(put))]
                if isinstance(answer, memoryview):
                    seen = msgspec.msgpack.decode(answer, type=int)
                    write = Write(key, asked_us, world.now_us, seen, value, expected)
                    history.writes.append(write)
            yield self._idle_us()


def _deliveries(body: memoryview, asked_us: int, now_us: int) -> list[Delivery]:
    grants, _ = COUNT.unpack_from(body)
    heads = [GRANT.unpack_from(body, COUNT.size + GRANT.size * n) for n in range(grants)]
    at = COUNT.size + GRANT.size * grants
    found: list[Delivery] = []
    for grant, position, count, shard, deliveries, length, _ in heads:
        for row, value in enumerate(Batch.parse(body[at : at + length]).values[:count]):
            found.append(
                Delivery(bytes(value), shard, grant, position + row, deliveries, asked_us, now_us)
            )
        at += length
    return found


def _settle(stream: int, op: Op, one: Delivery) -> bytes:
    item = SETTLE_ITEM.pack(op, one.shard, 1, one.grant, one.position, 0)
    return SETTLE_HEAD.pack(stream, 1) + item


def _batches(body: memoryview) -> list[tuple[int, bytes]]:
    _, _, count = FETCH_HEAD.unpack_from(body)
    at = FETCH_HEAD.size
    found: list[tuple[int, bytes]] = []
    for _ in range(count):
        length = int.from_bytes(body[at + 4 : at + 8], "little")
        batch = Batch.parse(body[at : at + length])
        at += length
        for offset, value in zip(batch.offsets, batch.values, strict=True):
            found.append((int(offset), bytes(value)))
    return found
