"""Gangs: all members or nobody, the oldest that fits, and none waits for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.canonical import state_of
from tests.core.gang_model import Model
from tests.core.harness import Node

from penstock.core import gang_line
from penstock.core.gang_line import MAX_OVERTAKEN
from penstock.core.parking import MAX_PARKED_WORKERS, MAX_SEEN, SEEN_US, Parking
from penstock.errors import (
    ConflictError,
    InvalidError,
    LimitError,
    MovedError,
    StorageError,
    TooLargeError,
)
from penstock.wire import messages as m
from penstock.wire.batch import Batch
from penstock.wire.frames import PushExtra, Settle, SettleItem, Verb

LEASE_MS = 1000
WAIT_MS = 100_000
WORKERS = [f"w{number}" for number in range(8)]


class Workers:
    """A node with a queue of gangs, and workers, each on a connection of its own."""

    def __init__(self, node: Node | None = None) -> None:
        if node is None:
            node = Node()
            node.open("queue", "g", gangs=True, lease_ms=LEASE_MS, max_deliveries=0)
        self.node = node
        self.connections = {worker: number for number, worker in enumerate(WORKERS, 2)}
        self.requests: dict[str, int] = {}
        for connection in self.connections.values():
            node.connect(connection)

    def push(self, name: bytes, size: int, **terms: Any) -> None:
        shard = self.node.fabric.kernel.place_of(b"g")
        request = self.node.push(1, [name], shard, generation=size, **terms)
        if not self.node.lazy:
            self.node.receipt(request)

    def park(self, worker: str, wait_ms: int = WAIT_MS) -> None:
        call = msgspec.msgpack.encode(m.Park(1, worker, f"at {worker}", wait_ms))
        connection = self.connections[worker]
        self.requests[worker] = self.node.send(Verb.CALL, call, connection=connection)

    def leave(self, worker: str) -> None:
        """Its connection is gone, and there is a new one."""
        connection = self.connections[worker]
        self.node.fabric.disconnect(connection)
        self.node.connect(connection)

    def seats(self) -> dict[str, m.Seat]:
        """What workers were given since the last time."""
        found: dict[str, m.Seat] = {}
        for worker, connection in self.connections.items():
            request = self.requests.get(worker)
            if request is not None and self.node.has_answer(request, connection):
                value = self.node.answer(request, connection).value()
                del self.requests[worker]
                if value is not None:
                    found[worker] = m.Seat(*value)
        return found

    def settle(self, seat: m.Seat, op: int, arg: int = 0) -> dict[int, int]:
        item = SettleItem(op, seat.shard, 1, seat.grant, seat.position, arg)
        return self.node.settle(1, [item]).refused


def gangs_of(seats: dict[str, m.Seat]) -> dict[bytes, tuple[int, list[str], m.Seat]]:
    """Whole gangs, by name: attempt, members by rank, and a seat."""
    gangs: dict[int, dict[str, m.Seat]] = {}
    for worker, seat in seats.items():
        gangs.setdefault(seat.grant, {})[worker] = seat
    found = {}
    for members in gangs.values():
        ranks = sorted(members, key=lambda worker: members[worker].rank)
        first = members[ranks[0]]
        assert [members[worker].rank for worker in ranks] == list(range(len(first.addresses)))
        assert first.addresses == [f"at {worker}" for worker in ranks]
        (name,) = Batch.parse(first.batch).values
        found[name] = (first.attempt, ranks, first)
    return found


class GangMachine(RuleBasedStateMachine):
    """A node and a model of it, and a second node that folds what the first one logs."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers()
        self.model = Model(most=2)
        self.usual, gang_line.MAX_OVERTAKEN = gang_line.MAX_OVERTAKEN, self.model.most
        self.seats: dict[bytes, m.Seat] = {}
        self.names = 0

    def teardown(self) -> None:
        gang_line.MAX_OVERTAKEN = self.usual

    def granted(self) -> None:
        """Both grant the same; nobody is in two gangs."""
        found = gangs_of(self.workers.seats())
        wanted = {name: (attempt, who) for name, attempt, who in self.model.grants()}
        assert {name: (attempt, who) for name, (attempt, who, _) in found.items()} == wanted
        self.seats |= {name: seat for name, (_, _, seat) in found.items()}

    @rule(size=st.integers(1, 6), priority=st.sampled_from([0, 0, 0, 3]))
    def push(self, size: int, priority: int) -> None:
        self.names += 1
        name = b"g%d" % self.names
        self.workers.push(name, size, priority=priority)
        self.model.push(name, size, priority)
        self.granted()

    def idle(self) -> list[str]:
        busy = {worker for _, members in self.model.running.values() for worker in members}
        return [worker for worker in WORKERS if worker not in busy]

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.idle()))
        was = self.workers.requests.pop(worker, None)
        self.workers.park(worker)
        if was is not None:
            with pytest.raises(ConflictError):
                self.workers.node.answer(was, self.workers.connections[worker]).value()
        self.model.park(worker)
        self.granted()

    @precondition(lambda self: self.model.parked)
    @rule(data=st.data(), cancel=st.booleans())
    def leave(self, data: st.DataObject, cancel: bool) -> None:
        worker = data.draw(st.sampled_from(self.model.parked))
        request = self.workers.requests.pop(worker)
        if cancel:
            connection = self.workers.connections[worker]
            self.workers.node.send(Verb.CANCEL, connection=connection, request=request)
            self.workers.node.answer(request, connection)
        else:
            self.workers.leave(worker)
        self.model.leave(worker)
        self.granted()

    @precondition(lambda self: self.model.running)
    @rule(data=st.data(), op=st.sampled_from([Settle.ACK, Settle.ACK, Settle.NACK]))
    def settle(self, data: st.DataObject, op: Settle) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.running)))
        assert not self.workers.settle(self.seats[name], op)
        self.model.end(name, again=op == Settle.NACK)
        self.granted()

    @precondition(lambda self: self.model.running)
    @rule()
    def leases_end(self) -> None:
        self.workers.node.tick(LEASE_MS * 1000)
        for name in list(self.model.running):
            self.model.end(name, again=True)
        self.granted()

    @rule(snapshot=st.booleans())
    def crash(self, snapshot: bool) -> None:
        """Leases last; workers must park again."""
        node = self.workers.node
        after = node.crash(node.snapshot() if snapshot else None)
        assert state_of(after.fabric) == state_of(node.fabric)
        self.workers = Workers(after)
        self.model.restart()

    @invariant()
    def nothing_is_lost(self) -> None:
        node = self.workers.node
        figures = node.call(m.StreamStats(1))
        assert figures["ready"] == len(self.model.ready)
        assert figures["leased"] == len(self.model.running)
        assert figures["parked"] == len(self.model.parked)
        node.check()


GangMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestGangs = GangMachine.TestCase


@pytest.fixture
def workers() -> Workers:
    return Workers()


def test_a_large_gang_is_overtaken_so_often_and_no_more(workers):
    """Six workers, always one of them free: small gangs come without end."""
    for worker in WORKERS[:6]:
        workers.park(worker)
        workers.push(b"long", 1)
    at_work = dict(workers.seats())
    workers.push(b"large", 6)
    overtaken = 0
    while not any(len(seat.addresses) == 6 for seat in at_work.values()):
        workers.push(b"small", 1)
        worker, seat = next(iter(at_work.items()))
        del at_work[worker]
        assert not workers.settle(seat, Settle.ACK)
        workers.park(worker)
        found = workers.seats()
        overtaken += sum(len(seat.addresses) == 1 for seat in found.values())
        at_work |= found
    assert overtaken == MAX_OVERTAKEN


def test_a_gang_that_no_workers_are_enough_for_keeps_nobody_waiting(workers):
    workers.push(b"too large", 7)
    for _ in range(3 * MAX_OVERTAKEN):
        workers.push(b"small", 2)
        for worker in WORKERS[:2]:
            workers.park(worker)
        seats = workers.seats()
        assert len(seats) == 2
        assert not workers.settle(seats["w0"], Settle.ACK)
    for worker in WORKERS[:7]:
        workers.park(worker)
    assert len(workers.seats()) == 7


def test_workers_that_are_gone_for_long_do_not_count(workers):
    for worker in WORKERS[:5]:
        workers.park(worker, wait_ms=1)
    workers.node.tick(2000)
    workers.push(b"five", 5)
    done = 0
    for second in range(0, 2 * SEEN_US // 1_000_000, 10):
        workers.push(b"one", 1)
        if "w0" not in workers.requests:
            workers.park("w0")
        workers.node.tick(10_000_000)
        for seat in workers.seats().values():
            workers.settle(seat, Settle.ACK)
            done += 1
        if second * 1_000_000 < SEEN_US - 20_000_000:
            assert done <= MAX_OVERTAKEN
    assert done > MAX_OVERTAKEN


def test_nobody_is_answered_before_the_grant_is_safe_and_then_all_are(workers):
    node = workers.node
    workers.push(b"g", 3)
    node.lazy = True
    for worker in WORKERS[:3]:
        workers.park(worker)
    assert not workers.seats()
    node.fabric.disconnect(workers.connections["w1"])  # after the grant: a dead member
    workers.park("w3")
    assert not workers.seats()
    node.commit()
    assert not workers.seats()  # the message is still to be read
    node.read()
    seats = workers.seats()
    assert sorted(seats) == ["w0", "w1", "w2"]  # what is sent to w1 reaches nobody
    assert all(seat.addresses == ["at w0", "at w1", "at w2"] for seat in seats.values())
    assert not workers.settle(seats["w2"], Settle.NACK)
    node.lazy = False
    workers.park("w2")
    workers.park("w0")
    assert {seat.attempt for seat in workers.seats().values()} == {2}


def test_a_gang_that_the_disk_refused_goes_to_others_at_once(workers):
    node = workers.node
    workers.push(b"g", 2)
    node.lazy = True
    for worker in WORKERS[:2]:
        workers.park(worker)
    node.refuse()
    for worker in WORKERS[:2]:
        with pytest.raises(StorageError):
            node.answer(workers.requests.pop(worker), workers.connections[worker]).value()
    node.commit()  # it took the grant after all
    node.lazy = False
    for worker in WORKERS[2:4]:
        workers.park(worker)
    ((attempt, members, _),) = gangs_of(workers.seats()).values()
    assert (attempt, members) == (1, ["w2", "w3"])


def test_workers_of_a_shard_that_moves_are_sent_on(workers):
    node, kernel = workers.node, workers.node.fabric.kernel
    for worker in WORKERS[:2]:
        workers.park(worker)
    shard = kernel.shards[kernel.place_of(b"g")]
    other = kernel.shards[(shard.id + 1) % 4]
    node.fabric.end_shard(other)
    node.tick()
    assert not node.inbox
    node.fabric.end_shard(shard)
    node.tick()
    for worker in WORKERS[:2]:
        request = workers.requests.pop(worker)
        with pytest.raises(MovedError):
            node.answer(request, workers.connections[worker]).value()
    workers.park("w0")
    with pytest.raises(MovedError):
        workers.seats()


def test_a_grant_that_is_lost_with_its_shard_is_told_to_nobody(workers):
    node, kernel = workers.node, workers.node.fabric.kernel
    workers.push(b"g", 2)
    node.lazy = True
    for worker in WORKERS[:2]:
        workers.park(worker)
    kernel.shared = True  # only then somebody else may own it
    node.fabric.end_shard(kernel.shards[kernel.place_of(b"g")])
    node.commit()
    for worker in WORKERS[:2]:
        with pytest.raises(MovedError):
            node.answer(workers.requests[worker], workers.connections[worker]).value()


def test_a_damaged_gang_is_told_to_all_and_ends_with_its_lease(workers):
    node = workers.node
    workers.push(b"g", 2)
    node.batches.clear()
    for worker in WORKERS[:2]:
        workers.park(worker)
    codes = [answer.flags for answer in node.inbox if answer.verb == Verb.CALL]
    assert len(codes) == 2
    assert all(codes)
    node.inbox.clear()
    node.tick(LEASE_MS * 1000)
    assert node.call(m.StreamStats(1))["ready"] == 1


def test_a_gang_has_an_id_on_its_own_shard(workers):
    for _ in range(2):
        workers.push(b"g", 1, extra=PushExtra(b"nightly"))
    assert workers.node.call(m.StreamStats(1))["ready"] == 1


def test_a_cluster_of_several_releases_takes_no_queue_of_gangs(workers):
    """Older nodes do not know the setting; what they take for granted is not told them."""
    fabric = workers.node.fabric
    fabric.control.clustered = True
    wanted = m.Open("queue", "new", options={"gangs": True})
    with pytest.raises(InvalidError, match="not all nodes"):
        fabric.control.draft(wanted, 9)
    assert "gangs" not in fabric.control.draft(m.Open("queue", "plain"), 9).options
    fabric.kernel.edges = True
    assert fabric.control.draft(wanted, 9).options["gangs"] is True


def test_delays_and_times_to_live(workers):
    workers.push(b"later", 1, due_us=-5_000_000)
    workers.push(b"short", 2, ttl_ms=1000)
    workers.park("w0")
    assert not workers.seats()
    workers.node.tick(4_000_000)
    assert workers.node.call(m.StreamStats(1))["messages"] == 1
    workers.node.tick(1_000_000)
    assert list(gangs_of(workers.seats())) == [b"later"]


def test_limits(workers):
    node = workers.node
    plain = node.open("queue", "plain")
    with pytest.raises(InvalidError, match="no gangs"):
        node.call(m.Park(plain, "w"))
    for call in (m.Park(1, ""), m.Park(1, "x" * 201), m.Park(1, "w", "a" * 257)):
        with pytest.raises(InvalidError):
            node.call(call)
    with pytest.raises(TooLargeError):
        workers.push(bytes(1 << 20), 65)
    with pytest.raises(InvalidError):
        node.call(m.Reserve(1, "job", 1, 10, 1000))


def test_parked_workers_are_bounded():
    parking = Parking()
    for number in range(MAX_SEEN + 5):
        parking.enter(1, number, f"w{number}", "", 1).over = True
    assert parking.seen(2) == MAX_SEEN
    assert not parking.waiting
    workers = Workers()
    for number in range(MAX_PARKED_WORKERS):
        call = m.Park(1, f"w{number}", "", WAIT_MS)
        connection = 100 + number // 1000
        if not number % 1000:
            workers.node.connect(connection)
        workers.node.send(Verb.CALL, msgspec.msgpack.encode(call), connection=connection)
    with pytest.raises(LimitError):
        workers.node.call(m.Park(1, "one more"))
