"""Messages move to where consumers wait: each once, as it was, and no further than they are
wanted; whatever happens on the way."""

from __future__ import annotations

from collections import Counter

import pytest
import xxhash
from tests.cluster.members.test_queue_lists import enable, newest_map, shard_on
from tests.cluster.members.world import CLIENT, SHARDS, World

from penstock.core.changes import Op
from penstock.engine.member import Member
from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch
from penstock.wire.frames import (
    COUNT,
    FRAME_BYTES,
    GRANT,
    POP,
    PUSH,
    SETTLE_HEAD,
    SETTLE_ITEM,
    Flag,
    Verb,
    frame,
)

WAIT_MS = 60_000


def new_world(seed: int = 1) -> World:
    world = World(seed, 3)
    start_stealing(world)
    return world


def start_stealing(world: World) -> None:
    """As when the cluster's level has it."""
    enable(world)
    for host in world.hosts.values():
        if host.member is not None:
            host.member.engine.fabric.kernel.forwarding = True


def member(world: World, number: int) -> Member:
    found = world.hosts[number].member
    assert found is not None
    return found


def define(world: World, **options: object) -> int:
    settings = m.QueueOptions(durability="replicated", lease_ms=600_000, **options)  # type: ignore[arg-type]
    return world._define("q", settings)


def push(
    world: World, node: int, stream: int, values: list[bytes], sequence: int = 0, priority: int = 0,
    ttl_ms: int = 0, due_us: int = 0, key: bytes | None = None,
) -> None:  # fmt: skip
    batch = encode_batch(
        values, timestamp_us=5, producer=9, sequence=sequence, priority=priority, ttl_ms=ttl_ms,
        due_us=due_us, keys=None if key is None else [key] * len(values),
    )  # fmt: skip
    head = PUSH.pack(stream, 0, shard_on(world, node), 0, 0)
    world.request(node, Verb.PUSH, head + bytes(batch))


class Waiting:
    """A pop that is parked on one node."""

    def __init__(self, world: World, node: int, stream: int, messages: int = 1) -> None:
        self.values: list[bytes] = []
        self.deliveries: list[int] = []
        self.tokens: list[bytes] = []
        self.done = False
        self._stream = stream
        body = POP.pack(stream, messages, 1 << 20, WAIT_MS, 0, 0)
        world.send(node, Verb.POP, body, self._answered, 2 * WAIT_MS * 1000)

    def _answered(self, answer: bytes | None) -> None:
        self.done = True
        if answer is None or answer[5] & Flag.ERROR:
            return
        body = memoryview(answer)[FRAME_BYTES:]
        grants, _ = COUNT.unpack_from(body)
        at = COUNT.size + GRANT.size * grants
        for number in range(grants):
            grant, position, count, shard, deliveries, length, _ = GRANT.unpack_from(
                body, COUNT.size + GRANT.size * number
            )
            batch = Batch.parse(body[at : at + length])
            rows = zip(batch.offsets, batch.values, strict=True)
            self.values += [v for offset, v in rows if position <= offset < position + count]
            self.deliveries += [deliveries] * count
            item = SETTLE_ITEM.pack(Op.ACK, shard, count, grant, position, 0)
            self.tokens.append(SETTLE_HEAD.pack(self._stream, 1) + item)
            at += length


def ready(world: World, node: int, stream: int) -> int:
    view = member(world, node).engine.fabric.queues.views.get(stream)
    return 0 if view is None else view.ready(1 << 30)


def moved(world: World) -> int:
    return sum(member(world, number).stealing.moved for number in (1, 2, 3))


def test_messages_move_to_a_consumer_that_waits():
    world = new_world()
    stream = define(world)
    push(world, 2, stream, [b"%d" % number for number in range(10)])
    waiting = Waiting(world, 1, stream)
    world.run(1_000_000)
    assert waiting.values == [b"0"]
    assert waiting.deliveries == [1]
    assert (ready(world, 1, stream), ready(world, 2, stream)) == (9, 0)
    again = [Waiting(world, 3, stream) for _ in range(10)]
    world.run(3_000_000)
    assert sorted(value for each in again for value in each.values) == sorted(
        b"%d" % number for number in range(1, 10)
    )


def test_about_half_moves_in_whole_batches_no_more_than_is_wanted():
    world = new_world()
    stream = define(world)
    for number in range(20):
        push(world, 2, stream, [b"x"] * 5, sequence=5 * number)
    waiting = Waiting(world, 1, stream, messages=1000)
    world.run(1_000_000)
    assert waiting.values
    assert len(waiting.values) + ready(world, 1, stream) == 50
    assert ready(world, 2, stream) == 50
    few = Waiting(world, 3, stream, messages=12)
    world.run(1_000_000)
    assert few.values
    assert moved(world) == 60


def test_what_somebody_was_given_stays():
    world = new_world()
    stream = define(world)
    push(world, 2, stream, [b"a"] * 4)
    assert len(world.pop(2, stream)) == 4
    push(world, 2, stream, [b"b"] * 4, sequence=4)
    push(world, 2, stream, [b"c"] * 4, sequence=8)
    body = POP.pack(stream, 2, 1 << 20, 0, 0, 0)
    world.request(2, Verb.POP, body)  # two of the second batch
    waiting = Waiting(world, 1, stream, messages=100)
    world.run(1_000_000)
    assert waiting.values == [b"b"] * 2
    again = [Waiting(world, 1, stream, messages=100) for _ in range(2)]
    world.run(3_000_000)
    assert sorted(value for each in again for value in each.values) == [b"c"] * 4
    assert moved(world) == 6


def test_priority_and_time_to_live_go_along_and_what_is_delayed_waits():
    world = new_world()
    stream = define(world)
    push(world, 2, stream, [b"low"])
    push(world, 2, stream, [b"high"], sequence=1, priority=9)
    push(world, 2, stream, [b"short"], sequence=2, ttl_ms=3_000)
    push(world, 2, stream, [b"late"], sequence=3, due_us=-4_000_000)
    world.run(1_000_000)
    first = Waiting(world, 1, stream)
    world.run(300_000)
    assert first.values == [b"high"]
    second = Waiting(world, 1, stream)
    world.run(1_000_000)
    assert second.values == [b"low"]
    world.run(200_000)
    third = Waiting(world, 1, stream, messages=1)
    world.run(300_000)
    assert third.values == [b"short"]
    fourth = Waiting(world, 1, stream)
    world.run(500_000)
    assert not fourth.done
    world.run(2_000_000)
    assert fourth.values == [b"late"]


def test_a_time_to_live_does_not_begin_anew():
    world = new_world()
    stream = define(world, ttl_ms=2_000)
    push(world, 2, stream, [b"a"])
    push(world, 2, stream, [b"b"], sequence=1)
    push(world, 2, stream, [b"c"] * 2, sequence=2)
    world.run(1_000_000)
    waiting = Waiting(world, 1, stream, messages=1)
    world.run(200_000)
    assert waiting.values == [b"a"]
    again = Waiting(world, 3, stream, messages=1)
    world.run(200_000)
    assert again.values == [b"b"]
    world.run(800_000)
    assert [ready(world, node, stream) for node in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("options", [{"ordered": "queue"}, {"ordered": "key"}, {"stealing": False}])
def test_what_is_ordered_or_told_to_stay_stays(options):
    world = new_world()
    stream = define(world, **options)
    if options.get("ordered") == "queue":
        shard = xxhash.xxh3_64_intdigest(b"q") % SHARDS
        node = world.map().owner_of(shard)
        batch = encode_batch([b"x"] * 10, timestamp_us=5, producer=9, sequence=0)
        world.request(node, Verb.PUSH, PUSH.pack(stream, 0, shard, 0, 0) + bytes(batch))
    else:
        node = 2
        push(world, 2, stream, [b"x"] * 10, key=b"k")
    waiting = Waiting(world, node % 3 + 1, stream)
    world.run(2_000_000)
    assert not waiting.done
    assert moved(world) == 0


def test_a_resend_of_what_moved_is_still_known():
    world = new_world()
    stream = define(world)
    shard = shard_on(world, 2)
    assert world.push(2, stream, shard, b"x", 9, 0)
    waiting = Waiting(world, 1, stream)
    world.run(1_000_000)
    assert waiting.values == [b"x"]
    assert not world.push(2, stream, shard, b"x", 9, 0)
    world.run(1_000_000)
    assert [ready(world, node, stream) for node in (1, 2, 3)] == [0, 0, 0]


def test_a_busy_node_keeps_what_its_own_consumers_take():
    world = new_world()
    stream = define(world)
    subscription = POP.pack(stream, 1, 1 << 20, 0, 0, 0)
    host = member(world, 2)
    request = bytearray(frame(Verb.SUBSCRIBE, 77_777, 0, subscription))
    host.engine.receive(CLIENT, request, world.now_us)
    push(world, 2, stream, [b"x"] * 10)
    push(world, 2, stream, [b"x"] * 10, sequence=10)
    waiting = Waiting(world, 1, stream)
    world.run(1_000_000)
    assert not waiting.done
    assert moved(world) == 0


class Chaos:
    """Pushes to one node, pops that wait on others, and acks that are repeated until they are
    answered. A message whose pop was answered to nobody comes back when its lease ends."""

    def __init__(self, seed: int) -> None:
        self.world = new_world(seed)
        self.stream = self.world.queue("q")  # of short leases
        self.sent: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.doubtful: set[bytes] = set()
        self.moved = 0
        self._tries = 0
        self._waiting: list[Waiting] = []
        self._sequences: Counter[int] = Counter()

    def push(self) -> None:
        """To a shard of one node, as long as it has any."""
        values = [b"%d" % (len(self.sent) + number) for number in range(4)]
        cluster = newest_map(self.world)
        shard = next((shard for shard in range(SHARDS) if cluster.owner_of(shard) == 2), 0)
        sequence = self._sequences[shard]
        batch = encode_batch(values, timestamp_us=5, producer=9, sequence=sequence)
        self._ask(shard, Verb.PUSH, PUSH.pack(self.stream, 0, shard, 0, 0) + bytes(batch))
        self.sent.update(values)
        self._sequences[shard] += 4

    def _ask(self, shard: int, verb: int, body: bytes) -> memoryview:
        self._tries = 0
        while self._tries < 30:
            self._tries += 1
            try:
                return self.world.request(newest_map(self.world).owner_of(shard), verb, body)
            except (PenstockError, TimeoutError):
                self.world.run(200_000)
        raise AssertionError("nobody answers")

    def wait(self, *nodes: int) -> None:
        for node in nodes:
            self._waiting.append(Waiting(self.world, node, self.stream, messages=8))

    def kill(self, victim: int) -> None:
        self.moved += member(self.world, victim).stealing.moved
        self.world.kill(victim)
        self.world.run(2_500_000)
        self.world.start(victim)
        start_stealing(self.world)

    def ack(self) -> None:
        answered = [each for each in self._waiting if each.done]
        self._waiting = [each for each in self._waiting if not each.done]
        for each in answered:
            at = 0
            for token in each.tokens:
                count = SETTLE_ITEM.unpack_from(token, SETTLE_HEAD.size)[2]
                values = each.values[at : at + count]
                if self._ack(token):
                    self.acked.update(values)
                elif self._tries > 1:  # the answer to the first may be lost
                    self.doubtful.update(values)
                at += count

    def _ack(self, token: bytes) -> bool:
        shard = SETTLE_ITEM.unpack_from(token, SETTLE_HEAD.size)[1]
        return bool(COUNT.unpack_from(self._ask(shard, Verb.SETTLE, token))[0])


def run_chaos(seed: int) -> Chaos:
    """Nodes die, and links break, while messages move."""
    chaos = Chaos(seed)
    world, chance = chaos.world, chaos.world.random
    for turn in range(9):
        for _ in range(4):
            chaos.push()
        chaos.wait(1, 3)
        world.run(chance.randint(10_000, 150_000))
        if turn % 3 == 1:
            chaos.kill(chance.choice((1, 2, 3)))
        elif turn % 3 == 2:
            world.part((2, chance.choice((1, 3))))
            world.run(chance.randint(10_000, 3_000_000))
            world.part()
        chaos.ack()
    for _ in range(40):
        chaos.wait(1, 2, 3)
        world.run(1_000_000)
        chaos.ack()
    chaos.moved += moved(world)
    return chaos


@pytest.mark.parametrize(
    "seeds", [(0, 1), *(pytest.param(pair, marks=pytest.mark.slow) for pair in ((2, 3), (4, 5)))]
)
def test_each_message_is_there_once_whatever_happens(seeds):
    runs = [run_chaos(seed) for seed in seeds]
    for chaos in runs:
        assert chaos.sent - set(chaos.acked) <= chaos.doubtful
        assert set(chaos.acked) <= chaos.sent
        assert {value: count for value, count in chaos.acked.items() if count > 1} == {}
    assert sum(chaos.moved for chaos in runs) > 0
