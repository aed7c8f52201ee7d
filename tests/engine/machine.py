"""An engine on a disk in memory, driven by frames, with or without haste."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.core.harness import hello, push_body

from penstock.engine.engine import Engine
from penstock.engine.foresight import Foreseen
from penstock.engine.haste import Hasty
from penstock.engine.recovery import open_engine
from penstock.store.disk import DiskError
from penstock.store.flush import Flush
from penstock.store.memory import MemoryDisk
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    FRAME_BYTES,
    GRANT,
    POP,
    Settle,
    SettleItem,
    Verb,
    frame,
    pack_settle,
)

START_US = 1_000_000_000
SEGMENT_BYTES = 128 << 10
PRODUCER, CONSUMER, OTHER = 1, 2, 3
Sent = tuple[int, bytes]


class Machine:
    """Works off one frame at a time, as the loop of a node does: foresees, receives, flushes."""

    def __init__(self, hasty: bool, disk: MemoryDisk | None = None) -> None:
        self.hasty = hasty
        self.disk = MemoryDisk() if disk is None else disk
        self.now_us = START_US
        self.engine: Engine = open_engine(
            self.disk, self.now_us, 1, shards=2, segment_bytes=SEGMENT_BYTES
        )
        self.sent: list[Sent] = []
        self.foreseen: list[Foreseen] = []
        self.takes = True  # whether connections can be sent to at once
        self._requests = 0
        for number in (PRODUCER, CONSUMER, OTHER):
            self.receive(number, hello())

    # --- the shell -------------------------------------------------------------------------

    def receive(self, connection: int, data: bytearray) -> None:
        """One frame, and all that follows from it."""
        hasty = self._hasten(connection, data) if self.hasty else None
        self.engine.receive(connection, data, self.now_us)
        while (flush := self.engine.next_flush(self.now_us, apart=True)) is not None:
            error = _run(flush) if hasty is None else hasty.end(flush)
            hasty = None
            self.engine.end_flush(flush, error, self.now_us, self._take)
        assert hasty is None, "it was written, and never logged"
        if (sync := self.engine.next_sync(self.now_us)) is not None:
            sync.run()
            self.engine.end_sync(sync, None, self.now_us, self._take)
        self._take()

    def _hasten(self, connection: int, data: bytearray) -> Hasty | None:
        foreseen = self.engine.foresee(connection, data, self.now_us)
        if foreseen is None:
            return None
        self.foreseen.append(foreseen)
        hasty = Hasty(foreseen, self.disk)
        hasty.write()
        hasty.send(self._send)
        return hasty

    def _send(self, connection: int, data: bytes) -> bool:
        if self.takes:
            self.sent.append((connection, bytes(data)))
        return self.takes

    def _take(self) -> None:
        while self.engine.jobs:
            job = self.engine.jobs.popleft()
            job.run()
            self.engine.end_job(job)
        for output in self.engine.take_outputs():
            self.sent.append((output.connection, b"".join(map(bytes, output.parts))))

    def tick(self, after_us: int) -> None:
        """Time passes."""
        self.now_us += after_us
        self.engine.tick(self.now_us)
        while (flush := self.engine.next_flush(self.now_us)) is not None:
            self.engine.end_flush(flush, _run(flush), self.now_us, self._take)
        self._take()

    # --- clients ---------------------------------------------------------------------------

    def ask(self, verb: int, body: bytes, connection: int = PRODUCER, flags: int = 0) -> int:
        """One request; its number."""
        self._requests += 1
        self.receive(connection, bytearray(frame(verb, self._requests, flags, body)))
        return self._requests

    def open(self, name: str, **options: Any) -> int:
        """A queue; its id."""
        self.ask(Verb.CALL, msgspec.msgpack.encode(m.Open("queue", name, options=options or None)))
        found = msgspec.msgpack.decode(self.sent[-1][1][FRAME_BYTES:])
        assert isinstance(found["id"], int)
        return found["id"]

    def push(
        self, queue: int, values: list[bytes], shard: int = 0, durability: int = 0,
        connection: int = PRODUCER, **terms: Any,
    ) -> int:  # fmt: skip
        """Pushes a batch."""
        batch = encode_batch(values, timestamp_us=1, **terms)
        body = push_body(queue, shard, batch, durability=durability)
        return self.ask(Verb.PUSH, body, connection)

    def pop(
        self, queue: int, messages: int, verb: int = Verb.POP, connection: int = CONSUMER,
        max_bytes: int = 1 << 20,
    ) -> int:  # fmt: skip
        """Waits for messages, for a tenth of a second; or subscribes."""
        return self.ask(verb, POP.pack(queue, messages, max_bytes, 100, 0, 0), connection)

    def ack(self, queue: int, delivery: bytes, op: int = Settle.ACK) -> int:
        """Settles all of a delivery that has one grant."""
        grant, position, count, shard, *_ = GRANT.unpack_from(delivery, FRAME_BYTES + COUNT.size)
        item = SettleItem(op, shard, count, grant, position, 0)
        return self.ask(Verb.SETTLE, pack_settle(queue, [item]), CONSUMER)

    def told(self, connection: int) -> list[bytes]:
        """All frames that a connection was sent, in order."""
        return [data for number, data in self.sent if number == connection]

    def journal(self) -> dict[str, bytes]:
        """All that is on the disk."""
        return {name: bytes(data) for name, data in self.disk.files.items()}


def _run(flush: Flush) -> DiskError | None:
    try:
        flush.run()
    except DiskError as error:
        return error
    return None
