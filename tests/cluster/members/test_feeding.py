"""Deliveries to a subscription whose node loses some of the shards before they can leave: what is
still its own leaves, and the subscription has credit for the rest."""

from __future__ import annotations

import pytest
from tests.cluster.members.client import Client
from tests.cluster.members.test_queue_lists import newest_map
from tests.cluster.members.world import CLIENT, SHARDS, World

from penstock.cluster.commands import Transfer
from penstock.core.queues import MAX_FEEDING
from penstock.core.views import Subscription
from penstock.engine.engine import Output
from penstock.wire.batch import Batch
from penstock.wire.frames import (
    COUNT,
    CREDIT,
    FRAME,
    FRAME_BYTES,
    GRANT,
    POP,
    GrantHead,
    Settle,
    SettleItem,
    Verb,
    frame,
    pack_settle,
)

REQUEST = 99_999
CREDITS = 10


class Subscribed:
    """A subscription on one node; the values of each of its deliveries."""

    def __init__(self, world: World, node: int, stream: int, credit: int = CREDITS) -> None:
        self.deliveries: list[list[bytes]] = []
        self._world, self._node = world, node
        member = world.hosts[node].member
        assert member is not None
        self._engine = member.engine
        self._taken = self._engine.take_outputs
        self._engine.take_outputs = self._noted  # type: ignore[method-assign]
        self.send(Verb.SUBSCRIBE, POP.pack(stream, credit, 1 << 20, 0, 0, 0))

    @property
    def credit(self) -> int:
        """As the node counts it."""
        found = self._engine.fabric.connections[CLIENT][REQUEST]
        assert isinstance(found, Subscription)
        return found.credit

    def send(self, verb: Verb, body: bytes, request: int = REQUEST) -> None:
        host = self._world.hosts[self._node]
        if host.member is not None and host.member.engine is self._engine:
            sent = bytearray(frame(verb, request, 0, body))
            self._engine.receive(CLIENT, sent, self._world.now_us)
            self._world._settle(host)

    def _noted(self) -> list[Output]:
        outputs = self._taken()
        for whole in (b"".join(output.parts) for output in outputs):
            if whole and FRAME.unpack_from(whole)[1] == Verb.DELIVER:
                self.delivered(memoryview(whole)[FRAME_BYTES:])
        return outputs

    def delivered(self, body: memoryview) -> None:
        self.deliveries.append(values_of(body))


def heads_of(body: memoryview) -> list[GrantHead]:
    grants, _ = COUNT.unpack_from(body)
    heads = body[COUNT.size : COUNT.size + GRANT.size * grants]
    return [GrantHead._make(head) for head in GRANT.iter_unpack(heads)]


def values_of(body: memoryview) -> list[bytes]:
    heads = heads_of(body)
    at = COUNT.size + GRANT.size * len(heads)
    found: list[bytes] = []
    for head in heads:
        found += Batch.parse(body[at : at + head.length]).values
        at += head.length
    return found


class Case:
    """Node 1 owns two shards: one that will move to the other node that has it in sync, and one
    that stays. `away` is the node that has the other in sync."""

    node = 1

    def __init__(self) -> None:
        self.world = World(1)
        self.stream = self.world.queue("q")
        in_sync = {
            place.in_sync[1]: shard
            for shard, place in enumerate(self.world.map().shards)
            if place.owner == self.node
        }
        (self.heir, self.moves), (self.away, self.stays) = sorted(in_sync.items(), reverse=True)
        self._sequences: dict[int, int] = {}

    def push(self, shard: int, value: bytes) -> None:
        sequence = self._sequences.get(shard, 0)
        assert self.world.push(self.node, self.stream, shard, value, 5, sequence)
        self._sequences[shard] = sequence + 1

    def transfer(self) -> None:
        epoch = self.world.map(self.node).shards[self.moves].epoch
        assert self.world.do(self.node, Transfer(self.moves, epoch, self.heir)).accepted


@pytest.mark.parametrize("last", ["stays", "moves"])
def test_what_is_still_its_own_leaves_and_the_rest_costs_no_credit(last):
    """The grants wait for a node that was killed, as they do after every kill; meanwhile one of
    the two shards moves. Whichever of the two grants is the last in the log."""
    case = Case()
    order = [case.moves, case.stays] if last == "stays" else [case.stays, case.moves]
    for shard in order:
        case.push(shard, b"moves" if shard == case.moves else b"stays")
    case.world.kill(case.away)
    subscribed = Subscribed(case.world, case.node, case.stream)
    assert subscribed.credit == CREDITS - 2
    case.transfer()
    assert subscribed.deliveries == []
    case.world.run(3_000_000)
    assert subscribed.deliveries == [[b"stays"]]
    assert subscribed.credit == CREDITS - 1


def test_a_subscription_is_served_on_although_all_its_deliveries_failed():
    """As many as may be under way wait for a node that cannot be reached, all of one shard, which
    moves then. A message of another shard is there, and nothing else happens."""
    case = Case()
    for number in range(MAX_FEEDING):
        case.push(case.moves, b"%d" % number)
    case.push(case.stays, b"stays")
    case.world.part((case.node, case.heir))
    subscribed = Subscribed(case.world, case.node, case.stream, credit=1)
    for _ in range(MAX_FEEDING):
        subscribed.send(Verb.CREDIT, CREDIT.pack(1))
    assert subscribed.deliveries == []
    case.transfer()
    case.world.run(100_000)
    assert subscribed.deliveries == [[b"stays"]]
    assert subscribed.credit == MAX_FEEDING


class Consumer(Subscribed):
    """Acks what it gets, and gives as much credit, a little later."""

    def __init__(self, world: World, node: int, stream: int) -> None:
        self._stream = stream
        self.given, self.got = CREDITS, 0
        super().__init__(world, node, stream)

    def delivered(self, body: memoryview) -> None:
        super().delivered(body)
        heads = heads_of(body)
        count = sum(head.count for head in heads)
        self.got += count
        items = [
            SettleItem(Settle.ACK, head.shard, head.count, head.grant, head.position, 0)
            for head in heads
        ]

        def later() -> None:
            self.send(Verb.SETTLE, pack_settle(self._stream, items), REQUEST + 1)
            self.given += count
            self.send(Verb.CREDIT, CREDIT.pack(count))

        self._world.after(self._world.random.randint(1_000, 300_000), later)


class Chaos:
    """A consumer on every node, while shards move, and nodes die, come back and fall asleep."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.stream = self.world.queue("q")
        self.producer = Client(self.world, self.stream)
        self.consumers = {n: Consumer(self.world, n, self.stream) for n in self.world.hosts}
        self.ended: list[Consumer] = []

    def disturb(self) -> None:
        chance = self.world.random
        node = chance.choice(list(self.world.hosts))
        kind = chance.choice(["move", "move", "pause", "kill"])
        if kind == "kill":
            self.world.kill(node)
            self.move_some()
            self.world.run(chance.randint(100_000, 4_000_000))
            self.world.start(node)
            self.ended.append(self.consumers[node])
            self.consumers[node] = Consumer(self.world, node, self.stream)
        elif kind == "pause":
            self.world.pause(node, chance.randint(100_000, 2_000_000))
        self.move_some()

    def move_some(self) -> None:
        """While deliveries wait to be safe. The cluster may be unable to decide, or refuse."""
        for _ in range(4):
            self.world.run(self.world.random.randint(1_000, 100_000))
            alive = self.world.alive()
            member = self.world.hosts[alive].member
            assert member is not None
            shard = self.world.random.randrange(SHARDS)
            place = newest_map(self.world).shards[shard]
            heir = self.world.random.choice(place.in_sync)
            member.ask(Transfer(shard, place.epoch, heir), self.world.now_us)

    def push(self, count: int) -> None:
        for _ in range(count):
            self.producer.push(self.world.random.randrange(SHARDS))

    def calm_down(self) -> None:
        self.world.run(10_000_000)
        for shard in range(SHARDS):
            assert self.producer.push(shard, tries=12)
        self.world.run(25_000_000)


@pytest.mark.parametrize(
    "seed", [2, 4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (6, 8))]
)
def test_everything_is_delivered_and_the_credit_is_right_whatever_happens(seed):
    chaos = Chaos(seed)
    for _ in range(12):
        chaos.push(chaos.world.random.randint(1, 40))
        chaos.disturb()
        chaos.world.run(chaos.world.random.randint(1_000, 1_500_000))
    chaos.calm_down()
    consumers = [*chaos.consumers.values(), *chaos.ended]
    seen = [delivery for consumer in consumers for delivery in consumer.deliveries]
    assert all(seen)
    assert chaos.producer.pushed <= {value for delivery in seen for value in delivery}
    for consumer in chaos.consumers.values():
        assert consumer.credit == consumer.given - consumer.got
