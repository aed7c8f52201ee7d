"""What is foreseen of a push is what comes of it: on the disk, to whom, and in the state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.engine.machine import CONSUMER, OTHER, PRODUCER, Machine

from penstock.core.kernel import EARLY_BYTES
from penstock.engine import foresight
from penstock.engine.recovery import open_engine
from penstock.errors import StorageError
from penstock.store.disk import DiskError
from penstock.store.flush import APART_BYTES
from penstock.wire.batch import HEADER_BYTES
from penstock.wire.frames import FRAME_BYTES, PUSH, Flag, Settle, Verb, read_error

pytestmark = pytest.mark.skipif(
    not foresight.COMPILED, reason="the compiled module was not built, or PENSTOCK_PURE is set"
)
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"durability": "written"},
    "bounded": {"durability": "written", "max_messages": 3, "max_bytes": 2000},
    "fleeting": {"durability": "written", "ttl_ms": 50},
    "ordered": {"durability": "written", "ordered": "queue"},
    "synced": {"durability": "synced"},
    "kept": {"durability": "memory"},
}
UNUSUAL = [{"priority": 3}, {"ttl_ms": 40}, {"due_us": -10_000}, {"due_us": 5}]
TERMS: list[dict[str, int]] = [{}] * 8 + UNUSUAL
PUSHES = st.tuples(
    st.sampled_from(["plain"] * 5 + ["synced"] * 3 + [*QUEUES]),
    st.lists(st.binary(max_size=200), min_size=1, max_size=3),
    st.sampled_from([0] * 8 + [1, 7]),  # a shard; there are two
    st.sampled_from([PRODUCER] * 6 + [OTHER, CONSUMER]),
    st.sampled_from([0] * 8 + [3]),  # the durability that is asked for
    st.sampled_from([0] * 8 + [-1, 1]),  # how far the sequence is beside what is next
    st.sampled_from(TERMS),
)
STEPS = st.lists(
    PUSHES.map(lambda push: ("push", push))
    | PUSHES.map(lambda push: ("push", push))
    | st.tuples(
        st.sampled_from(["pop", "subscribe"]),
        st.tuples(
            st.sampled_from(["plain"] * 3 + ["synced"] * 2 + [*QUEUES]),
            st.sampled_from([CONSUMER] * 3 + [OTHER]),
            st.sampled_from([1, 2, 100]),  # messages
            st.sampled_from([1 << 20, 1 << 20, 150]),  # bytes
        ),
    )
    | st.tuples(st.just("settle"), st.sampled_from([Settle.ACK, Settle.ACK, Settle.NACK]))
    | st.tuples(st.just("tick"), st.sampled_from([10, 60_000, 40_000_000]))
    | st.tuples(st.just("pause"), st.booleans())
    | st.tuples(st.just("gone"), st.just(CONSUMER)),
    min_size=5,
    max_size=40,
)


class Driver:
    """Does the same with any machine."""

    def __init__(self, hasty: bool) -> None:
        self.machine = machine = Machine(hasty)
        self.queues = {name: machine.open(name, **given) for name, given in QUEUES.items()}
        self.sequences: dict[tuple[int, int], int] = {}

    def push(
        self, name: str, values: list[bytes], shard: int, connection: int, durability: int,
        beside: int, terms: dict[str, Any],
    ) -> None:  # fmt: skip
        key, machine = (connection, shard), self.machine
        sequence = max(0, self.sequences.get(key, 0) + beside)
        before = len(machine.told(connection))
        machine.push(
            self.queues[name], values, shard, durability, connection,
            producer=connection, sequence=sequence, **terms,
        )  # fmt: skip
        told = machine.told(connection)[before:]
        receipts = [data for data in told if data[4] == Verb.PUSH and data[5] == Flag.RESPONSE]
        if receipts and not beside:
            self.sequences[key] = sequence + len(values)

    def step(self, what: str, given_: Any) -> None:
        machine = self.machine
        if what == "push":
            self.push(*given_)
        elif what in ("pop", "subscribe"):
            name, connection, messages, size = given_
            verb = Verb.POP if what == "pop" else Verb.SUBSCRIBE
            machine.pop(self.queues[name], messages, verb, connection, size)
        elif what == "settle":
            deliveries = [data for data in machine.told(CONSUMER) if data[4] == Verb.DELIVER]
            if deliveries:
                machine.ack(self.queues["plain"], deliveries[-1], given_)
        elif what == "tick":
            machine.tick(given_)
        elif what == "pause":
            machine.engine.pause(CONSUMER, given_, machine.now_us)
        else:
            machine.engine.disconnect(given_)
            machine.engine.fabric.connections[given_] = {}  # it comes back at once


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_nothing_differs_but_that_it_comes_sooner(steps: list[tuple[str, Any]]) -> None:
    """Every connection is told the same in the same order, all bytes on the disk are the same, and
    all state; now, and after a restart."""
    hasty, other = Driver(True), Driver(False)
    for driver in (hasty, other):
        for what, given_ in steps:
            driver.step(what, given_)
    one, two = hasty.machine, other.machine
    for connection in (PRODUCER, CONSUMER, OTHER):
        assert one.told(connection) == two.told(connection)
    assert one.disk.files == two.disk.files
    assert state_of(one.engine.fabric) == state_of(two.engine.fabric)
    again = [open_engine(each.disk, each.now_us, 1) for each in (one, two)]
    assert state_of(again[0].fabric) == state_of(again[1].fabric)


@pytest.fixture
def machine() -> Machine:
    """With a queue on which one message was pushed before, so that its part is there."""
    machine = Machine(True)
    queue = machine.open("q", durability="written")
    machine.push(queue, [b"first"], producer=9, sequence=0)
    assert machine.foreseen == []
    machine.pop(queue, 1)
    machine.ack(queue, machine.told(CONSUMER)[-1])
    return machine


def queue_of(machine: Machine) -> int:
    (number,) = machine.engine.fabric.kernel.streams
    return number


@pytest.mark.parametrize("verb", [Verb.POP, Verb.SUBSCRIBE])
def test_a_push_that_somebody_waits_for_is_foreseen(machine: Machine, verb: Verb) -> None:
    queue = queue_of(machine)
    machine.pop(queue, 10, verb)
    machine.sent.clear()
    machine.push(queue, [b"second"], producer=9, sequence=1)
    (foreseen,) = machine.foreseen
    assert machine.sent[:2] == list(foreseen.replies)
    assert [connection for connection, _ in machine.sent] == [PRODUCER, CONSUMER]
    assert machine.sent[1][1].count(b"second") == 1
    machine.push(queue, [b"third"], producer=9, sequence=2)
    waits_still = verb == Verb.SUBSCRIBE
    assert len(machine.foreseen) == 1 + waits_still


@pytest.mark.parametrize(
    ("level", "most"), [("written", EARLY_BYTES), ("synced", APART_BYTES - 256)]
)
def test_the_largest_frame_is_foreseen_and_no_larger_one(level: str, most: int) -> None:
    machine = Machine(True)
    queue = machine.open("q", durability=level)
    machine.push(queue, [b"first"], producer=9, sequence=0)
    machine.pop(queue, 100, Verb.SUBSCRIBE)
    machine.ack(queue, machine.told(CONSUMER)[-1])
    rest = FRAME_BYTES + PUSH.size + HEADER_BYTES + 8
    for sequence, size in enumerate((most - rest, most - rest + 8, 0), 1):
        machine.push(queue, [bytes(size)], producer=9, sequence=sequence)
        assert len(machine.foreseen) == 1 + (sequence == 3)
        machine.ack(queue, machine.told(CONSUMER)[-1])
    delivered = [data for data in machine.told(CONSUMER) if data[4] == Verb.DELIVER]
    assert len(delivered) == 4


def test_a_synced_push_is_foreseen_if_nobody_waits_too_and_a_written_one_is_not() -> None:
    machine = Machine(True)
    for level, foreseen in (("synced", 3), ("written", 0)):
        queue = machine.open(level, durability=level)
        machine.foreseen.clear()
        for sequence in range(4):
            shard = int(foreseen > 0)
            machine.push(queue, [b"%d" % sequence], shard, producer=9, sequence=sequence)
        assert len(machine.foreseen) == foreseen
        assert all(each.synced and len(each.replies) == 1 for each in machine.foreseen)


def test_what_is_damaged_is_not_foreseen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(machine)
    machine.pop(queue, 100, Verb.SUBSCRIBE)
    before = machine.engine.foresee
    seen = []

    def damaged(connection: int, data: bytearray, now_us: int) -> Any:
        for at in range(4, len(data)):
            data[at] ^= 1
            if at not in range(FRAME_BYTES - 8, FRAME_BYTES):  # another request is as good
                seen.append(before(connection, data, now_us))
            data[at] ^= 1
        return None

    monkeypatch.setattr(machine.engine, "foresee", damaged)
    machine.push(queue, [b"0123456"], producer=9, sequence=1)
    # A bit of the stream or the partition is another one, which is not there or as good; what the
    # node stamps is not covered by the checksum, and written anew.
    assert len(seen) > 100
    assert sum(each is not None for each in seen) <= 4 + 32 + 4


def test_a_write_that_fails_is_that_of_the_flush(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves; it is refused, written again elsewhere once the disk takes it, and whoever
    pushed is told once."""
    queue = queue_of(machine)
    machine.pop(queue, 10, Verb.SUBSCRIBE)
    machine.sent.clear()

    def refuse(*_: object) -> None:
        raise DiskError("no room", full=True)

    with monkeypatch.context() as patch:
        patch.setattr(machine.disk, "write", refuse)
        machine.push(queue, [b"second"], producer=9, sequence=1)
    assert len(machine.foreseen) == 1
    ((connection, data),) = machine.sent
    assert (connection, data[4], data[5]) == (PRODUCER, Verb.PUSH, Flag.RESPONSE | Flag.ERROR)
    assert isinstance(read_error(data[FRAME_BYTES:]), StorageError)
    machine.tick(2_000_000)
    assert [number for number, _ in machine.sent[1:]] == [CONSUMER]
    again = open_engine(machine.disk, machine.now_us, 1)
    assert again.fabric.stream_figures(queue)["leased"] == 1


def test_what_cannot_be_sent_at_once_is_sent_after_it(machine: Machine) -> None:
    queue = queue_of(machine)
    machine.pop(queue, 10, Verb.SUBSCRIBE)
    machine.takes = False
    machine.sent.clear()
    machine.push(queue, [b"second"], producer=9, sequence=1)
    assert len(machine.foreseen) == 1
    assert sorted(machine.sent) == sorted(machine.foreseen[0].replies)
