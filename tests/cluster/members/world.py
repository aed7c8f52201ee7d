"""Whole nodes of a cluster, engine and all, on a virtual network; and clients that talk to them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cluster.commands import Command, Define, Drain, Found, Join, Outcome, Rejoin
from penstock.cluster.consensus.membership import Membership
from penstock.cluster.map import ClusterMap, NodeInfo
from penstock.cluster.view import Limits
from penstock.core.changes import Op
from penstock.engine.maintenance import Pace
from penstock.engine.member import Member, definition_of
from penstock.engine.recovery import open_engine
from penstock.errors import PenstockError
from penstock.sim.disk import SimDisk
from penstock.sim.world import World as Chance
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
PACE = Pace()
Answered = Callable[[bytes | None], None]  # a frame; None: there was none in time


@dataclass
class Host:
    number: int
    disk: SimDisk
    incarnation: int = 0
    member: Member | None = None
    answers: dict[int, bytes] = field(default_factory=dict)
    paused_until_us: int = 0


class World:
    """Everything from one seed; no clock, no threads."""

    def __init__(self, seed: int, nodes: int = 3, pace: Pace = PACE) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.pace = pace
        self.now_us = 1_000_000
        self.hosts: dict[int, Host] = {}
        self.links: dict[frozenset[int], int] = {}  # which life of a link this is
        self.parted: set[frozenset[int]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._requests = 0
        self._waiting: dict[int, Answered] = {}
        self._chance = Chance(seed)  # of the disks
        self.slow = 0.0  # how many messages take long
        self.power_losses: list[int] = []  # when
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
        disk = SimDisk(self._chance, slow_reads=0.0)
        host = self.hosts.setdefault(number, Host(number, disk))
        host.incarnation += 1
        host.paused_until_us = 0
        engine = open_engine(
            host.disk, self.now_us, number, shards=SHARDS, segment_bytes=1 << 16, pace=self.pace
        )
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

    def lose_power(self, number: int) -> None:
        """What was not synced is at the mercy of chance."""
        self.kill(number)
        self.hosts[number].disk.lose_power()
        self.power_losses.append(self.now_us)

    def pause(self, number: int, span_us: int) -> None:
        """A node does nothing for a while, and then everything."""
        self.hosts[number].paused_until_us = self.now_us + span_us

    def join(self, number: int) -> None:
        """Another node; the cluster must be able to decide."""
        self.do(self.alive(), Join(node_info(number)))
        self.start(number)

    def drain(self, number: int) -> None:
        """Everything moves off a node."""
        self.do(self.alive(), Drain(number))

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
                    (max(host.member.next_due(), host.paused_until_us), number)
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
            part = b"".join(output.parts)
            if len(part) >= FRAME_BYTES:
                request = FRAME.unpack_from(part)[4]
                if request in self._waiting:
                    self._answer(request, part)
                else:
                    host.answers[request] = part
        flush = member.engine.next_flush(self.now_us)
        if flush is not None:

            def end() -> None:
                if host.member is member and not self._later(host, end):
                    flush.run()
                    member.engine.end_flush(flush, None, self.now_us)
                    self._settle(host)

            self._at(self.random.randint(100, FLUSH_US), end)

    def _deliver(self, source: int, target: int, life: int, data: bytes) -> None:
        """Links keep order, and what is on a link when it breaks is gone."""
        key = (source, target, life)
        due_us = max(self.now_us + self._delay_us(), self._last_at.get(key, 0) + 1)
        self._last_at[key] = due_us

        def arrive() -> None:
            host = self.hosts[target]
            if self._later(host, arrive):
                return
            if self.links.get(frozenset((source, target))) == life and host.member is not None:
                host.member.receive(source, [memoryview(data)], self.now_us)
                self._settle(host)

        self._at(due_us - self.now_us, arrive)

    def _delay_us(self) -> int:
        if self.random.random() < self.slow:
            return self.random.randint(2_000, 400_000)
        return self.random.randint(50, 2_000)

    def _later(self, host: Host, action: Callable[[], None]) -> bool:
        """Whether a node is paused: then it happens after that, in the same order."""
        if host.member is None or host.paused_until_us <= self.now_us:
            return False
        self._at(host.paused_until_us - self.now_us, action)
        return True

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
        return self._define(name, m.QueueOptions(durability="replicated", lease_ms=5_000))

    def topic(self, name: str, partitions: int) -> int:
        """Defines a topic; its id."""
        options = m.TopicOptions(partitions=partitions, durability="replicated")
        return self._define(name, options, [n % SHARDS for n in range(partitions)])

    def table(self, name: str) -> int:
        """Defines a table; its id."""
        return self._define(name, m.TableOptions(durability="replicated"))

    def _define(self, name: str, options: m.Options, placement: list[int] | None = None) -> int:
        kind = next(kind for kind, known in m.OPTION_TYPES.items() if known is type(options))
        settings = {field: getattr(options, field) for field in options.__struct_fields__}
        info = m.StreamInfo(0, kind, name, "default", settings, placement or [])
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

    def send(self, number: int, verb: int, body: bytes, then: Answered, wait_us: int) -> None:
        """A request that takes its time; `then` gets the answer, or None if there is none."""
        self._requests += 1
        request = self._requests
        self._waiting[request] = then
        host, incarnation = self.hosts[number], self.hosts[number].incarnation

        def arrive() -> None:
            if self._later(host, arrive):
                return
            if host.member is not None and host.incarnation == incarnation:
                data = bytearray(frame(verb, request, 0, body))
                host.member.engine.receive(CLIENT, data, self.now_us)
                self._settle(host)

        self._at(self._delay_us(), arrive)
        self._at(wait_us, lambda: self._give_up(request))

    def _answer(self, request: int, answer: bytes) -> None:
        def arrive() -> None:
            if (then := self._waiting.pop(request, None)) is not None:
                then(answer)

        self._at(self._delay_us(), arrive)

    def _give_up(self, request: int) -> None:
        if (then := self._waiting.pop(request, None)) is not None:
            then(None)

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Something that a client does in a while."""
        self._at(delay_us, action)

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
