"""The lists of queues on whole nodes: whoever waits for messages is told, wherever they are, and
whatever becomes of links, owners and notices."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from tests.cluster.members.world import CLIENT, SHARDS, World, hello

from penstock.cluster.commands import Undefine
from penstock.cluster.map import ClusterMap
from penstock.cluster.pops import Ask, Hint, Pop, PopRoute, list_shard
from penstock.errors import InvalidError, MovedError, NotFoundError, PenstockError
from penstock.wire import messages as m
from penstock.wire.frames import COUNT, FRAME_BYTES, POP, Flag, Verb, frame, read_error

NOTICE_US = 10_000  # more than one takes, with what the journal and the links take
WAIT_MS = 60_000


def new_world(seed: int = 1, nodes: int = 3) -> World:
    world = World(seed, nodes)
    enable(world)
    return world


def enable(world: World) -> None:
    """As when the cluster's level has them."""
    for host in world.hosts.values():
        if host.member is not None:
            host.member.lists.enable()


def newest_map(world: World) -> ClusterMap:
    """A node that was started a moment ago knows none."""
    hosts = world.hosts.values()
    maps = [host.member.plane.state.map() for host in hosts if host.member is not None]
    return max(maps, key=lambda each: each.version)


def owner_of_list(world: World, stream: int) -> int:
    return world.map().owner_of(list_shard(stream, SHARDS))


def where(world: World, node: int, call: m.WhereIs) -> list[Hint]:
    found = world.request(node, Verb.CALL, m.pack(call))
    return msgspec.msgpack.decode(found, type=list[Hint])


def shard_on(world: World, node: int) -> int:
    return next(shard for shard in range(SHARDS) if world.map().owner_of(shard) == node)


def known(world: World, stream: int) -> dict[int, int]:
    """What the list says now; those that have nothing were told so before."""
    return dict(where(world, owner_of_list(world, stream), m.WhereIs(stream)))


def begun(world: World) -> int:
    """A queue whose list is there, and all nodes are known to have nothing."""
    stream = world.queue("q")
    known(world, stream)
    world.run(NOTICE_US)
    assert known(world, stream) == {}
    return stream


class Parked:
    """A question that waits; what came of it."""

    def __init__(self, world: World, stream: int, node: int | None = None) -> None:
        self.frame: bytes | None = None
        self.done = False
        call = m.WhereIs(stream, wait_ms=WAIT_MS)
        asked = owner_of_list(world, stream) if node is None else node
        world.send(asked, Verb.CALL, m.pack(call), self._answered, 2 * WAIT_MS * 1000)
        world.run(NOTICE_US)

    def _answered(self, answer: bytes | None) -> None:
        self.frame, self.done = answer, True

    def hints(self) -> list[Hint]:
        assert self.frame is not None
        body = memoryview(self.frame)[FRAME_BYTES:]
        if self.frame[5] & Flag.ERROR:
            raise read_error(body)
        return msgspec.msgpack.decode(body, type=list[Hint])


def test_a_new_list_names_all_until_they_have_said_what_they_have():
    world = new_world()
    stream = world.queue("q")
    others = {1, 2, 3} - {owner_of_list(world, stream)}
    assert known(world, stream) == dict.fromkeys(others, 0)
    world.run(NOTICE_US)
    assert known(world, stream) == {}
    with pytest.raises(MovedError):
        where(world, owner_of_list(world, stream) % 3 + 1, m.WhereIs(stream))
    with pytest.raises(NotFoundError):
        where(world, 1, m.WhereIs(stream + 1000))


@pytest.mark.parametrize("node", [1, 2, 3])
def test_who_waits_is_told_of_a_message_on_any_node(node):
    world = new_world()
    stream = begun(world)
    waiting = Parked(world, stream)
    assert not waiting.done
    world.push(node, stream, shard_on(world, node), b"x", 5, 0)
    world.run(NOTICE_US)
    assert [hint.node for hint in waiting.hints()] == [node]
    assert list(known(world, stream)) == [node]
    assert world.pop(node, stream)
    world.run(NOTICE_US)
    assert known(world, stream) == {}


def test_a_message_that_comes_back_counts_as_new():
    world = new_world()
    stream = begun(world)
    world.push(2, stream, shard_on(world, 2), b"x", 5, 0)
    assert world.pop(2, stream)
    world.run(NOTICE_US)
    waiting = Parked(world, stream)
    world.run(5_500_000)  # the lease runs out
    ((node, fill),) = waiting.hints()
    assert node == 2
    assert fill & 0xFFFF == 2


def test_a_pop_whose_lease_ran_out_before_it_was_safe_hides_no_other_messages():
    """It is answered with none, which whoever asked takes for the end of what it had heard of."""
    world = new_world()
    stream = begun(world)
    keeper = owner_of_list(world, stream)
    shard, place = next(
        (shard, place)
        for shard, place in enumerate(world.map().shards)
        if keeper not in place.in_sync[1:]
    )
    for sequence in range(2):
        world.push(place.owner, stream, shard, b"x", 5, sequence)
    world.run(NOTICE_US)
    heard = known(world, stream)
    world.kill(place.in_sync[1])  # the grant waits until the cluster goes on without it
    body = POP.pack(stream, 1, 1 << 20, 0, 100, 0)
    assert COUNT.unpack_from(world.request(place.owner, Verb.POP, body)) == (0, 0)
    emptied = list(heard.items())
    world.run(NOTICE_US)
    hints = where(world, owner_of_list(world, stream), m.WhereIs(stream, emptied))
    assert place.owner in [hint.node for hint in hints]


def test_as_many_are_woken_as_there_are_messages_and_then_more():
    world = new_world()
    stream = begun(world)
    waiting = [Parked(world, stream) for _ in range(40)]
    world.push(3, stream, shard_on(world, 3), b"x", 5, 0)
    world.run(5_000)
    assert sum(each.done for each in waiting) in (1, 2)
    world.run(60_000)  # nobody takes it
    assert all(each.done for each in waiting)


def test_a_cancelled_question_is_answered_and_forgotten():
    world = new_world()
    stream = begun(world)
    owner = world.hosts[owner_of_list(world, stream)]
    assert owner.member is not None
    engine = owner.member.engine
    call = bytearray(frame(Verb.CALL, 99_999, 0, m.pack(m.WhereIs(stream, wait_ms=WAIT_MS))))
    engine.receive(CLIENT, call, world.now_us)
    engine.receive(CLIENT, bytearray(frame(Verb.CANCEL, 99_999)), world.now_us)
    (answer,) = [b"".join(output.parts) for output in engine.take_outputs()]
    assert answer[5] & Flag.ERROR
    engine.receive(CLIENT, call, world.now_us)
    engine.disconnect(CLIENT)
    assert not any(each.askers for each in owner.member.lists._lists.values())
    engine.receive(CLIENT, hello(), world.now_us)


def test_a_deleted_queue_ends_the_waiting():
    world = new_world()
    stream = begun(world)
    waiting = Parked(world, stream)
    state = world.hosts[1].member.plane.state  # type: ignore[union-attr]
    name = "queue/default/q"
    world.do(1, Undefine(name, state.definitions[name].version))
    world.run(500_000)
    with pytest.raises(NotFoundError):
        waiting.hints()


def test_the_next_owner_of_the_list_knows_what_is_there():
    world = new_world()
    stream = begun(world)
    owner = owner_of_list(world, stream)
    other = next(number for number in (1, 2, 3) if number != owner)
    world.push(other, stream, shard_on(world, other), b"x", 5, 0)
    world.kill(owner)
    world.run(4_000_000)
    assert owner_of_list(world, stream) != owner
    assert other in known(world, stream)
    world.run(NOTICE_US)
    found = known(world, stream)
    assert other in found
    assert owner not in found


def test_who_waits_on_the_owner_of_before_is_sent_to_the_next():
    world = new_world()
    stream = begun(world)
    owner = owner_of_list(world, stream)
    waiting = Parked(world, stream)
    world.drain(owner)
    world.run(10_000_000)
    with pytest.raises(MovedError):
        waiting.hints()


def test_a_notice_that_is_lost_with_its_link_is_given_again():
    world = new_world()
    stream = begun(world)
    owner = owner_of_list(world, stream)
    other = next(number for number in (1, 2, 3) if number != owner)
    waiting = Parked(world, stream)
    member = world.hosts[other].member
    assert member is not None
    member.lists._send = lambda node, news: None  # on its way, when the link breaks
    world.push(other, stream, shard_on(world, other), b"x", 5, 0)
    world.run(NOTICE_US)
    assert not waiting.done
    member.lists._send = member._send_news
    world.cut(owner, other)
    world.link(owner, other)
    world.run(NOTICE_US)
    assert [hint.node for hint in waiting.hints()] == [other]


def test_before_all_nodes_have_it_nobody_is_asked():
    world = World(1, 2)
    stream = world.queue("q")
    for host in world.hosts.values():
        assert host.member is not None
        host.member.engine.fabric.features.clear()
    with pytest.raises(InvalidError):
        where(world, owner_of_list(world, stream), m.WhereIs(stream))


class Consumer:
    """Follows a route over the nodes; all it is told may be late or wrong."""

    def __init__(self, world: World, stream: int, local: int) -> None:
        self.world = world
        self.stream = stream
        self.route = PopRoute(local)
        self.taken: Counter[bytes] = Counter()
        self.asks = 0
        world.after(1, self.step)

    def owner(self) -> int:
        hosts = self.world.hosts.values()
        maps = [host.member.plane.state.map() for host in hosts if host.member is not None]
        cluster = self.world.random.choice([each for each in maps if each.shards])
        return cluster.owner_of(list_shard(self.stream, SHARDS))

    def step(self) -> None:
        todo = self.route.next()
        if isinstance(todo, Pop):
            body = POP.pack(self.stream, 8, 1 << 20, 0, 0, 0)
            self.send(todo.node, Verb.POP, body, lambda answer: self.popped(todo, answer))
        else:
            emptied: list[tuple[int, int]] = []
            if isinstance(todo, Ask):
                emptied += todo.emptied
            call = m.WhereIs(self.stream, emptied, wait_ms=20_000)
            self.asks += 1
            self.send(self.owner(), Verb.CALL, m.pack(call), self.listed, 21_000_000)

    def send(self, node, verb, body, then, wait_us=2_000_000) -> None:
        self.world.send(node, verb, body, then, wait_us)

    def popped(self, todo: Pop, answer: bytes | None) -> None:
        if answer is None or answer[5] & Flag.ERROR:
            self.route.unreachable(todo.node)
            self.world.after(100_000, self.step)
            return
        _, messages = COUNT.unpack_from(answer, FRAME_BYTES)
        if messages:
            self.route.found(todo.node, messages)
            self.taken[b""] += messages
        else:
            self.route.empty(todo.node, todo.fill)
        self.world.after(1, self.step)

    def listed(self, answer: bytes | None) -> None:
        if answer is None or answer[5] & Flag.ERROR:
            self.world.after(100_000, self.step)
            return
        hints = msgspec.msgpack.decode(memoryview(answer)[FRAME_BYTES:], type=list[Hint])
        self.route.listed(hints)
        self.world.after(1, self.step)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))]
)
def test_nothing_is_left_lying_whatever_happens(seed):
    """Leases are long: whoever waits must have been told of every message, or it is still there."""
    world = new_world(seed)
    options = m.QueueOptions(durability="replicated", lease_ms=600_000)
    stream = world._define("q", options)
    consumers = [Consumer(world, stream, local) for local in (1, 2, 3)]
    chance, sequences = world.random, Counter[int]()
    for turn in range(12):
        for _ in range(chance.randint(0, 3)):
            shard = chance.randrange(SHARDS)
            try:
                owner = newest_map(world).owner_of(shard)
                world.push(owner, stream, shard, b"x", 5, sequences[shard])
                sequences[shard] += 1
            except (PenstockError, TimeoutError):
                sequences[shard] += 1_000_000 - sequences[shard] % 1_000_000
        if turn % 4 == 1:
            victim = chance.randrange(1, 4)
            world.kill(victim)
            world.run(3_000_000)
            world.start(victim)
            enable(world)
        elif turn % 4 == 3:
            world.part((1, 2), (1, 3))
            world.run(2_500_000)
            world.part()
        world.run(chance.randint(1_000, 2_000_000))
    world.run(30_000_000)
    for host in world.hosts.values():
        assert host.member is not None
        view = host.member.engine.fabric.queues.views.get(stream)
        assert view is None or view.ready(1) == 0
    asks = [each.asks for each in consumers]
    world.run(15_000_000)
    assert all(after.asks - before <= 3 for before, after in zip(asks, consumers, strict=True))
