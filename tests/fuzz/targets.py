"""What is fuzzed: each target takes any bytes, and lets nothing out but what Penstock says itself.

Used by `make fuzz`, which is guided by coverage, and by the tests here, which are not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from penstock.client.blocking_messages import Message
from penstock.client.delivery import read_grants
from penstock.client.settle import Settler
from penstock.embedded import Inline, embed
from penstock.engine.engine import Engine
from penstock.engine.recovery import open_engine
from penstock.errors import PenstockError
from penstock.store.disk import DiskError
from penstock.testing import FakeClock, MemoryDisk
from penstock.wire import messages as m
from penstock.wire.batch import HEADER_BYTES, Batch, seal_in_place, stamp
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    GRANT,
    POP,
    PROTOCOL_VERSION,
    PUSH,
    Flag,
    PopMode,
    Settle,
    SettleItem,
    Splitter,
    Verb,
    frame,
    pack_settle,
)

NOW_US = 1_700_000_000_000_000
SHARDS = 4
SEGMENT_BYTES = 1 << 14
_PART = struct.Struct("<BH")  # a verb, and the length of its body
_EDIT = struct.Struct("<BHB")  # a file, a place in it, and what is changed there
_SEALED = 0x80  # added to a verb: the batch in its body is sealed, so that it is looked at


class Target(NamedTuple):
    """Something that takes bytes from outside, and examples of what it should get."""

    name: str
    run: Callable[[bytes], None]
    examples: Callable[[], list[bytes]]


# --- frames ----------------------------------------------------------------------------------


def split(data: bytes) -> None:
    """A stream in pieces: as many frames, or an error."""
    if not data:
        return
    splitter = Splitter(limit=1 << 16)
    size = data[0] + 1
    rest = data[1:]
    for at in range(0, len(rest), size):
        piece = rest[at : at + size]
        try:
            while piece and (room := splitter.buffer()) is not None:
                some = piece[: len(room)]
                room[: len(some)] = some
                piece = piece[len(some) :]
                splitter.filled(len(some))
            if piece:
                splitter.feed(memoryview(piece))
        except PenstockError:
            return


def _streams() -> list[bytes]:
    whole = frame(Verb.CALL, 1, 0, m.pack(m.Streams())) + frame(Verb.POP, 2, 0, bytes(24))
    return [bytes([size]) + whole for size in (0, 3, 200)]


# --- batches ---------------------------------------------------------------------------------


def read_batch(data: bytes) -> None:
    """A batch whose checksum holds, whatever is in it."""
    buffer = bytearray(data)
    try:
        if len(buffer) >= HEADER_BYTES:
            seal_in_place(buffer)
        batch = Batch.parse(memoryview(buffer))
        batch.check()
        list(batch)
        batch.to_arrow().validate()
    except PenstockError:
        return


@cache
def _batches() -> list[bytes]:
    values, keys = [b"one", b"", b"three"], [b"k", None, b""]
    headers = [{"a": b"1"}, None, {"b": b"", "c": b"2"}]
    made = [
        encode_batch(values, timestamp_us=1),
        encode_batch(values, timestamp_us=1, keys=keys, headers=headers, timestamps_us=[1, 2, 3]),
        *(encode_batch(values, timestamp_us=1, keys=keys, compression=c) for c in ("lz4", "zstd")),
    ]
    whole = Batch.parse(made[1])
    return [*map(bytes, made), bytes(whole.take(np.array([0, 2])))]


# --- answers ---------------------------------------------------------------------------------


def read_delivery(data: bytes) -> None:
    """What a node answers to a pop, read by a client."""
    try:
        granted = read_grants(bytearray(frame(Verb.POP, 1, Flag.RESPONSE, data)), Settler(1))
        for message in Message.all_of(granted):
            _ = message.key, message.headers, message.timestamp
    except PenstockError:
        return


def _deliveries() -> list[bytes]:
    batch = bytearray(_batches()[1])
    stamp(batch, 5, 1, NOW_US)
    head = GRANT.pack(7, 5, 3, 1, 1, len(batch), 0)
    return [COUNT.pack(0, 0), COUNT.pack(1, 3) + head + batch]


# --- a node ----------------------------------------------------------------------------------


def converse(data: bytes) -> None:
    """A client that says anything, after a hello: the node answers, or closes, and works on."""
    disk = MemoryDisk()
    engine = _filled_engine(disk)
    engine.receive(1, bytearray(_hello()), NOW_US)
    for number, (verb, body) in enumerate(_parts(data), 2):
        engine.receive(1, bytearray(frame(verb, number, 0, body)), NOW_US + number)
        _work(engine, NOW_US + number)
    engine.disconnect(1)
    engine.receive(2, bytearray(_hello()), NOW_US + 1_000_000)
    engine.outputs.clear()
    engine.receive(2, bytearray(frame(Verb.CALL, 9, 0, m.pack(m.Streams()))), NOW_US + 1_000_000)
    _work(engine, NOW_US + 1_000_000)
    assert [output.connection for output in engine.outputs] == [2], "the node does not answer"


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _PART.size <= len(data):
        verb, length = _PART.unpack_from(data, at)
        body = bytearray(data[at + _PART.size : at + _PART.size + length])
        at += _PART.size + length
        if verb & _SEALED and len(body) >= PUSH.size + HEADER_BYTES:
            body[PUSH.size :] = seal_in_place(body[PUSH.size :])
        yield verb & ~_SEALED, bytes(body)


def _work(engine: Engine, now_us: int) -> None:
    """What the shell does: writes, reads, sends."""
    for _ in range(100):
        flush = engine.next_flush(now_us)
        if flush is None and not engine.jobs:
            return
        if flush is not None:
            flush.run()
            engine.end_flush(flush, None, now_us)
        while engine.jobs:
            job = engine.jobs.popleft()
            job.run()
            engine.end_job(job)
    raise AssertionError("the node does not come to rest")


def _hello() -> bytes:
    return frame(Verb.HELLO, 1, 0, m.pack(m.Hello(PROTOCOL_VERSION)))


@cache
def _filled_files() -> dict[str, bytes]:
    """A directory with a queue, a topic and a table in it."""
    disk = MemoryDisk()
    clock = FakeClock()
    engine = open_engine(disk, clock.now_us(), 1, shards=SHARDS, segment_bytes=SEGMENT_BYTES)
    fabric = embed(Inline(engine, disk, clock), 5.0, "default")
    queue = fabric.queue("q", max_deliveries=2)
    queue.push_many([b"a", b"b", b"c"], keys=[b"1", b"1", b"2"])
    queue.push(b"held", id="h", hold=True)
    queue.push(b"later", delay=60)
    for message in queue.pop_many(2):
        message.ack()
    queue.flush()
    topic = fabric.topic("t", partitions=2)
    topic.publish_many([b"x", b"y"], keys=[b"1", b"2"])
    topic.commit("g", {0: 1})
    table = fabric.table("kv")
    table.put("key", b"value", ttl=100)
    fabric.close()
    return {name: bytes(data) for name, data in disk.files.items()}


def _filled_engine(disk: MemoryDisk) -> Engine:
    disk.files = {name: bytearray(data) for name, data in _filled_files().items()}
    return open_engine(disk, NOW_US, 1, segment_bytes=SEGMENT_BYTES)


def _conversations() -> list[bytes]:
    batch = bytes(_batches()[0])
    push = PUSH.pack(1, 0, 0, 0, 0) + batch
    settle = pack_settle(1, [SettleItem(Settle.ACK, 0, 3, 1, 0, 0)])
    calls = [
        m.Streams(), m.Stats(), m.StreamStats(1), m.Get(3, b"key"), m.Put(3, b"key", b"v"),
        m.Offsets(2), m.Scan(3), m.Purge(1), m.Redrive(1, 10), m.Committed(2, "g"),
    ]  # fmt: skip
    parts: list[list[tuple[int, bytes]]] = [
        [(Verb.PUSH | _SEALED, push)],
        [(Verb.POP, POP.pack(1, 10, 1 << 20, 0, 0, PopMode.LEASE)), (Verb.SETTLE, settle)],
        [(Verb.SUBSCRIBE, POP.pack(1, 10, 1 << 20, 0, 0, 0)), (Verb.CREDIT, b"\5\0\0\0")],
        [(Verb.FETCH, struct.pack("<IIQII", 2, 0, 0, 1 << 20, 0))],
        *([(int(Verb.CALL), m.pack(call))] for call in calls),
    ]
    return [
        b"".join(_PART.pack(verb, len(body)) + body for verb, body in conversation)
        for conversation in parts
    ]


# --- a data directory ------------------------------------------------------------------------


def open_damaged(data: bytes) -> None:
    """A directory of which any bytes were changed: a node opens it, or says why not; and if the
    damage is accepted, it can be used."""
    for accepted in (False, True):
        disk = MemoryDisk()
        disk.files = {name: bytearray(stored) for name, stored in _filled_files().items()}
        _edit(disk, data)
        try:
            engine = open_engine(
                disk, NOW_US, 1, accept_damage=accepted, segment_bytes=SEGMENT_BYTES
            )
        except (PenstockError, DiskError):
            continue
        engine.receive(1, bytearray(_hello()), NOW_US)
        pop = POP.pack(1, 10, 1 << 20, 0, 0, PopMode.LEASE)
        engine.receive(1, bytearray(frame(Verb.POP, 2, 0, pop)), NOW_US)
        _work(engine, NOW_US)


def _edit(disk: MemoryDisk, data: bytes) -> None:
    files = [file for _, file in sorted(disk.files.items())]
    for at in range(0, len(data) - _EDIT.size + 1, _EDIT.size):
        chosen, offset, change = _EDIT.unpack_from(data, at)
        file = files[chosen % len(files)]
        if file:
            file[offset % len(file)] ^= change


def _edits() -> list[bytes]:
    return [_EDIT.pack(file, offset, 255) for file in range(3) for offset in (0, 9, 100, 1000)]


TARGETS = [
    Target("frames", split, _streams),
    Target("batches", read_batch, _batches),
    Target("deliveries", read_delivery, _deliveries),
    Target("node", converse, _conversations),
    Target("directory", open_damaged, _edits),
]
