"""Deliveries to a subscription whose node loses some of the shards before they can leave: what is
still its own leaves, and the subscription has credit for the rest."""

from __future__ import annotations

import pytest
from tests.cluster.members.world import CLIENT, World

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
    Verb,
    frame,
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

    def send(self, verb: Verb, body: bytes) -> None:
        self._engine.receive(CLIENT, bytearray(frame(verb, REQUEST, 0, body)), self._world.now_us)
        self._world._settle(self._world.hosts[self._node])

    def _noted(self) -> list[Output]:
        outputs = self._taken()
        for whole in (b"".join(output.parts) for output in outputs):
            if whole and FRAME.unpack_from(whole)[1] == Verb.DELIVER:
                self.deliveries.append(values_of(memoryview(whole)[FRAME_BYTES:]))
        return outputs


def values_of(body: memoryview) -> list[bytes]:
    grants, _ = COUNT.unpack_from(body)
    at = COUNT.size + GRANT.size * grants
    found: list[bytes] = []
    for number in range(grants):
        length = GRANT.unpack_from(body, COUNT.size + GRANT.size * number)[5]
        found += Batch.parse(body[at : at + length]).values
        at += length
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
