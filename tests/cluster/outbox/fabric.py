"""Whole nodes whose cluster has an outbox, and a client that knows who owns what."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import xxhash
from tests.cluster.members.world import PACE, SHARDS, Answered, World

from penstock.core.shard import Shard
from penstock.engine.maintenance import Pace
from penstock.engine.member import Member
from penstock.errors import MovedError, PenstockError, UnavailableError
from penstock.wire import messages as m
from penstock.wire.batch import HEADER, Batch, Header
from penstock.wire.encode import encode_batch
from penstock.wire.frames import FETCH, FETCH_HEAD, Verb

NODES = 3
PATIENCE_US = 60_000_000


class Fabric(World):
    """A world at the level that has outboxes; requests find the owner, and are sent again."""

    def __init__(self, seed: int = 1, pace: Pace = PACE) -> None:
        super().__init__(seed, NODES, pace)
        self._sequences: dict[int, int] = {}

    def start(self, number: int) -> None:
        super().start(number)
        self.member(number).engine.fabric.kernel.forwarding = True

    def member(self, number: int) -> Member:
        member = self.hosts[number].member
        assert member is not None
        return member

    def members(self) -> list[Member]:
        return [host.member for host in self.hosts.values() if host.member is not None]

    def owner(self, shard: int) -> int:
        """By the newest map that any node has."""
        maps = [member.plane.state.map() for member in self.members()]
        return max(maps, key=lambda known: known.version).owner_of(shard)

    def shard(self, number: int) -> Shard:
        """As its owner has it."""
        return self.member(self.owner(number)).engine.fabric.kernel.shards[number]

    def shard_of(self, node: int, but: int = -1) -> int:
        """A shard that a node owns."""
        owned = [s for s in range(SHARDS) if self.owner(s) == node and s != but]
        return owned[0]

    def key_in(self, shard: int) -> bytes:
        """A key of a table that lies there."""
        keys = (b"key-%d" % n for n in range(10_000))
        return next(key for key in keys if place_of(key) == shard)

    # --- requests --------------------------------------------------------------------------

    def ask(self, shard: int, call: m.Request) -> memoryview:
        """Asks the owner of a shard, whoever that is, until there is an answer."""
        end_us = self.now_us + PATIENCE_US
        while True:
            try:
                return self.request(self.owner(shard), Verb.CALL, m.pack(call), 2_000_000)
            except (MovedError, UnavailableError, TimeoutError):
                assert self.now_us < end_us, f"no answer to {call}"
                self.run(200_000)

    def send_call(self, node: int, call: m.Request, then: Answered) -> None:
        """Asks a node, and goes on."""
        self.send(node, Verb.CALL, m.pack(call), then, 2_000_000)

    def transact(self, txn: m.Transact) -> m.TxnReceipt:
        """Commits a transaction, with resends."""
        return msgspec.msgpack.decode(self.ask(txn.home, txn), type=m.TxnReceipt)

    def transaction(self, home: int, **parts: Any) -> m.Transact:
        """The next one of a producer of that home."""
        sequence = self._sequences.get(home, 0)
        self._sequences[home] = sequence + 1
        return m.Transact(1000 + home, sequence, home, **parts)

    def take_back(self, txn: m.Transact) -> None:
        """One was refused: its number is free."""
        self._sequences[txn.home] = txn.sequence

    def get(self, table: int, key: bytes) -> bytes | None:
        found = self.ask(place_of(key), m.Get(table, key))
        entry = msgspec.msgpack.decode(found, type=m.Entry | None)
        return None if entry is None else entry.value

    def values(self, topic: int, partition: int, shard: int) -> list[bytes]:
        """All that was published to a partition."""
        body = FETCH.pack(topic, partition, 0, 1 << 20, 0)
        end_us = self.now_us + PATIENCE_US
        while True:
            try:
                answer = self.request(self.owner(shard), Verb.FETCH, body)
                break
            except (MovedError, UnavailableError, TimeoutError):
                assert self.now_us < end_us
                self.run(200_000)
        _, _, batches = FETCH_HEAD.unpack_from(answer)
        at, found = FETCH_HEAD.size, []
        for _ in range(batches):
            length = Header._make(HEADER.unpack_from(answer, at)).length
            found += Batch.parse(answer[at : at + length]).values
            at += length
        return found

    def popped(self, stream: int) -> list[bytes]:
        """All that waits in a queue, on all nodes; what was found is acknowledged."""
        found: list[bytes] = []
        for number in [n for n, host in self.hosts.items() if host.member is not None]:
            while some := self.pop(number, stream):
                for value, token in some:
                    assert self.ack(number, token)
                    found.append(value)
        return found

    # --- the end ---------------------------------------------------------------------------

    def calm(self) -> None:
        """All nodes are there and linked, and all outboxes become empty."""
        self.part()
        for number, host in self.hosts.items():
            if host.member is None:
                self.start(number)
        end_us = self.now_us + PATIENCE_US
        self.run(5_000_000)
        while self.outstanding():
            assert self.now_us < end_us, f"outstanding: {self.outstanding()}"
            self.run(500_000)

    def outstanding(self) -> int:
        shards = [s for member in self.members() for s in member.engine.fabric.kernel.shards]
        return sum(shard.outbox.parts for shard in shards if shard.owned)


def place_of(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key) % SHARDS


def push_to(stream: int, shard: int, value: bytes, partition: int = 0) -> m.TxnPush:
    batch = bytes(encode_batch([value], timestamp_us=5))
    return m.TxnPush(stream, partition, shard, batch)


def chaos(fabric: Fabric, until_us: int) -> None:
    """Kills, power losses, partitions and pauses at any time; one node at a time."""
    at_us = 500_000
    while at_us < until_us:
        node, kind = fabric.random.randint(1, 3), fabric.random.choice(["kill", "power", "part"])
        back_us = at_us + fabric.random.randint(200_000, 6_000_000)
        if kind == "part":
            pairs = [(node, other) for other in (1, 2, 3) if other != node]
            fabric.after(at_us, partial(fabric.part, *pairs))
            fabric.after(back_us, fabric.part)
        else:
            down = fabric.kill if kind == "kill" else fabric.lose_power
            fabric.after(at_us, partial(down, node))
            fabric.after(back_us, partial(fabric.start, node))
        at_us = back_us + fabric.random.randint(1_000_000, 8_000_000)


__all__ = ["SHARDS", "Fabric", "PenstockError", "chaos", "place_of", "push_to"]
