"""Whole nodes of a cluster, engine and all, on a virtual network; and clients that talk to them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cluster.commands import Command, Define, Found, Join, Outcome, Rejoin
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.map import ClusterMap, NodeInfo
from penstock.cluster.view import Limits
from penstock.core.changes import Op
from penstock.engine.member import Member, definition_of
from penstock.engine.recovery import open_engine
from penstock.errors import PenstockError
from penstock.store.memory import MemoryDisk
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    FRAME,
    FRAME_BYTES,
    GRANT,
    POP,
    PROTOCOL_VERSION,
    PUSH,
    RECEIPT,
    SETTLE_HEAD,
    SETTLE_ITEM,
    Flag,
    Verb,
    frame,
    read_error,
)

SHARDS = 8
LIMITS = Limits(grace_us=20_000_000)
FLUSH_US = 1_500
CLIENT = 77


@dataclass
class Host:
    number: int
    disk: MemoryDisk
    incarnation: int = 0
    member: Member | None = None
    answers: dict[int, bytes] = field(default_factory=dict)


class World:
    """Everything from one seed; no clock, no threads."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now_us = 1_000_000
        self.hosts: dict[int, Host] = {}
        self.links: dict[frozenset[int], int] = {}  # which life of a link this is
        self.parted: set[frozenset[int]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._requests = 0
        self._last_at: dict[tuple[int, int, int], int] = {}
        self.start(1)
        self.run(2_500_000)
        self.do(1, Found(9, SHARDS, 3, node_info(1)))
        for number in range(2, nodes + 1):
            self.do(1, Join(node_info(number)))
            self.start(number)
        self.run(15_000_000)

    # --- life ------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        host = self.hosts.setdefault(number, Host(number, MemoryDisk()))
        host.incarnation += 1
        engine = open_engine(host.disk, self.now_us, number, shards=SHARDS, segment_bytes=1 << 20)
        first = Membership(voters=(1,)) if number == 1 else Membership()
        host.member = Member(
            engine, number, host.incarnation, first, self.seed, self.now_us, LIMITS
        )
        engine.receive(CLIENT, hello(), self.now_us)
        if host.incarnation > 1:
            host.member.ask(
                Rejoin(number, f"host-{number}", 7000 + number, host.incarnation), self.now_us
            )
        self._settle(host)
        for other in self.hosts:
            self.link(number, other)

    def kill(self, number: int) -> None:
        """SIGKILL: what was written stays."""
        host = self.hosts[number]
        host.member = None
        for other in list(self.hosts):
            self.cut(number, other)

    def link(self, one: int, two: int) -> None:
        pair = frozenset((one, two))
        up = all(self.hosts[number].member is not None for number in pair)
        if len(pair) == 2 and up and pair not in self.parted and pair not in self.links:
            self._order += 1
            self.links[pair] = self._order
            for here, there in ((one, two), (two, one)):
                host = self.hosts[here]
                assert host.member is not None
                host.member.linked(there, self.now_us)
                self._settle(host)

    def cut(self, one: int, two: int) -> None:
        if self.links.pop(frozenset((one, two)), None) is not None:
            for here, there in ((one, two), (two, one)):
                host = self.hosts[here]
                if host.member is not None:
                    host.member.unlinked(there, self.now_us)
                    self._settle(host)

    def part(self, *pairs: tuple[int, int]) -> None:
        """Cuts links and keeps them cut; with none, all are made again."""
        self.parted = {frozenset(pair) for pair in pairs}
        for one in self.hosts:
            for two in self.hosts:
                if frozenset((one, two)) in self.parted:
                    self.cut(one, two)
                else:
                    self.link(one, two)

    # --- time ------------------------------------------------------------------------------

    def run(self, span_us: int) -> None:
        end_us = self.now_us + span_us
        while True:
            tick_us, number = min(
                (
                    (host.member.next_due(), number)
                    for number, host in self.hosts.items()
                    if host.member is not None
                ),
                default=(end_us, 0),
            )
            event_us = self._events[0][0] if self._events else end_us
            if min(tick_us, event_us) >= end_us:
                break
            if event_us <= tick_us:
                self.now_us = max(self.now_us, event_us)
                heapq.heappop(self._events)[2]()
            else:
                self.now_us = max(self.now_us, tick_us)
                host = self.hosts[number]
                assert host.member is not None
                host.member.tick(self.now_us)
                self._settle(host)
        self.now_us = end_us

    def _at(self, delay_us: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._order, action))

    def _work(self, member: Member) -> None:
        """What other threads do: reads, cleaning, checkpoints."""
        member.pump(self.now_us)
        while member.engine.jobs:
            job = member.engine.jobs.popleft()
            job.run()
            member.engine.end_job(job)
            member.pump(self.now_us)
        maintenance = member.engine.maintenance
        while (step := maintenance.next_step(self.now_us)) is not None:
            step.run()
            maintenance.end_step(None, self.now_us)
        member.pump(self.now_us)

    def _settle(self, host: Host) -> None:
        """Sends what a node wants sent, and begins what it wants written."""
        member = host.member
        assert member is not None
        self._work(member)
        peers, member.peers = member.peers, []
        for node, parts in peers:
            life = self.links.get(frozenset((host.number, node)))
            if life is not None:
                self._deliver(host.number, node, life, b"".join(parts))
        for output in member.engine.take_outputs():
            for part in [b"".join(output.parts)]:
                if len(part) >= FRAME_BYTES:
                    host.answers[FRAME.unpack_from(part)[4]] = part
        flush = member.engine.next_flush(self.now_us)
        if flush is not None:
            incarnation = host.incarnation

            def end() -> None:
                if host.member is member and host.incarnation == incarnation:
                    flush.run()
                    member.engine.end_flush(flush, None, self.now_us)
                    self._settle(host)

            self._at(self.random.randint(100, FLUSH_US), end)

    def _deliver(self, source: int, target: int, life: int, data: bytes) -> None:
        """Links keep order, and what is on a link when it breaks is gone."""
        key = (source, target, life)
        due_us = max(
            self.now_us + self.random.randint(50, 2_000), self._last_at.get(key, 0) + 1
        )
        self._last_at[key] = due_us

        def arrive() -> None:
            host = self.hosts[target]
            if self.links.get(frozenset((source, target))) == life and host.member is not None:
                host.member.receive(source, memoryview(data), self.now_us)
                self._settle(host)

        self._at(due_us - self.now_us, arrive)

    # --- the control plane -----------------------------------------------------------------

    def do(self, number: int, command: Command, limit_us: int = 20_000_000) -> Outcome:
        host = self.hosts[number]
        assert host.member is not None
        found: list[Outcome] = []
        host.member.ask(command, self.now_us, found.append)
        self._settle(host)
        end_us = self.now_us + limit_us
        while not found:
            assert self.now_us < end_us, f"{command} got no outcome"
            self.run(10_000)
        return found[0]

    def queue(self, name: str) -> int:
        """Defines a queue; its id."""
        options = m.QueueOptions(durability="replicated", lease_ms=5_000)
        settings = {field: getattr(options, field) for field in options.__struct_fields__}
        info = m.StreamInfo(0, "queue", name, "default", settings)
        outcome = self.do(self.alive(), Define(*definition_of(info), 0))
        assert outcome.accepted
        self.run(1_000_000)
        return outcome.value

    def alive(self) -> int:
        return next(n for n, host in self.hosts.items() if host.member is not None)

    def map(self, number: int | None = None) -> ClusterMap:
        member = self.hosts[number or self.alive()].member
        assert member is not None
        return member.plane.state.map()

    # --- clients ---------------------------------------------------------------------------

    def request(self, number: int, verb: int, body: bytes, wait_us: int = 3_000_000) -> memoryview:
        """Asks a node; TimeoutError if there is no answer, PenstockError if it is one."""
        host = self.hosts[number]
        if host.member is None:
            raise TimeoutError
        self._requests += 1
        request = self._requests
        incarnation = host.incarnation
        host.member.engine.receive(
            CLIENT, bytearray(frame(verb, request, 0, body)), self.now_us
        )
        self._settle(host)
        end_us = self.now_us + wait_us
        while request not in host.answers:
            if self.now_us >= end_us or host.member is None or host.incarnation != incarnation:
                raise TimeoutError
            self.run(2_000)
        answer = host.answers.pop(request)
        body_ = memoryview(answer)[FRAME_BYTES:]
        if answer[5] & Flag.ERROR:
            raise read_error(body_)
        return body_

    def push(
        self, number: int, stream: int, shard: int, value: bytes, producer: int, sequence: int
    ) -> bool:
        """Whether it was new; the receipt has come."""
        batch = encode_batch([value], timestamp_us=5, producer=producer, sequence=sequence)
        head = PUSH.pack(stream, 0, shard, 0, 0)
        return not RECEIPT.unpack(self.request(number, Verb.PUSH, head + bytes(batch)))[4]

    def pop(self, number: int, stream: int) -> list[tuple[bytes, bytes]]:
        """Values, each with what acknowledges it."""
        body = self.request(number, Verb.POP, POP.pack(stream, 100, 1 << 20, 0, 0, 0))
        grants, _ = COUNT.unpack_from(body)
        heads = [GRANT.unpack_from(body, COUNT.size + GRANT.size * n) for n in range(grants)]
        at = COUNT.size + GRANT.size * grants
        found: list[tuple[bytes, bytes]] = []
        for grant, position, count, shard, _, length, _ in heads:
            for row, value in enumerate(Batch.parse(body[at : at + length]).values[:count]):
                item = SETTLE_ITEM.pack(Op.ACK, shard, 1, grant, position + row, 0)
                found.append((value, SETTLE_HEAD.pack(stream, 1) + item))
            at += length
        return found

    def ack(self, number: int, token: bytes) -> bool:
        """Whether it was accepted."""
        accepted, _ = COUNT.unpack_from(self.request(number, Verb.SETTLE, token))
        return bool(accepted == 1)


def hello() -> bytearray:
    return bytearray(frame(Verb.HELLO, 0, 0, m.pack(m.Hello(PROTOCOL_VERSION))))


def node_info(number: int) -> NodeInfo:
    return NodeInfo(number, f"n{number}", f"host-{number}", 7000 + number, "up", 1)


__all__ = ["SHARDS", "PenstockError", "World"]
