"""Acks of one transaction in shards of several nodes: all of them count, or none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.cluster.outbox.fabric import SHARDS, Fabric, chaos, push_to

from penstock.core.securing import SECURED_US
from penstock.engine.outbox_messages import OutboxMessage, Secured
from penstock.errors import LeaseLostError, PenstockError
from penstock.wire import messages as m
from penstock.wire.frames import SETTLE_HEAD, SETTLE_ITEM, Verb

Leased = dict[bytes, tuple[int, bytes, m.TxnSettle]]  # value: node, token, ack


def leased(fabric: Fabric, stream: int, shards: list[int]) -> Leased:
    """One message in each of these shards, popped."""
    for at, shard in enumerate(shards):
        assert fabric.push(fabric.owner(shard), stream, shard, b"m%d" % shard, 50 + at, 0)
    found: Leased = {}
    for node in sorted({fabric.owner(shard) for shard in shards}):
        for value, token in fabric.pop(node, stream):
            found[value] = node, token, ack_of(stream, token)
    assert len(found) == len(shards)
    return found


def ack_of(stream: int, token: bytes) -> m.TxnSettle:
    """What a transaction says instead of sending this token."""
    _, shard, count, grant, position, _ = SETTLE_ITEM.unpack_from(token, SETTLE_HEAD.size)
    return m.TxnSettle(stream, shard, grant, position, count)


def spread(fabric: Fabric) -> list[int]:
    """A shard of every node."""
    return [fabric.shard_of(node) for node in (1, 2, 3)]


def acks_of(found: Leased) -> list[m.TxnSettle]:
    return [ack for _, _, ack in found.values()]


def left(fabric: Fabric, stream: int) -> int:
    """Messages of a queue that are neither acknowledged nor dropped, on all nodes."""
    shards = [fabric.shard(number) for number in range(SHARDS)]
    queues = [shard.queues[stream] for shard in shards if stream in shard.queues]
    lanes = [lane for queue in queues for lane in queue.lanes.values()]
    return sum(stored.live for lane in lanes for stored in lane.index.rows())


def test_they_are_acknowledged_together():
    fabric = Fabric()
    stream, out = fabric.queue("q"), fabric.queue("out")
    shards = spread(fabric)
    found = leased(fabric, stream, shards)
    txn = fabric.transaction(
        shards[0], acks=acks_of(found), pushes=[push_to(out, shards[2], b"result")]
    )
    fabric.transact(txn)
    assert fabric.transact(txn).duplicate
    fabric.calm()
    assert left(fabric, stream) == 0
    assert fabric.popped(out) == [b"result"]


def test_one_lost_lease_refuses_all_and_the_others_keep_theirs():
    fabric = Fabric()
    stream, out = fabric.queue("q"), fabric.queue("out")
    shards = spread(fabric)
    found = leased(fabric, stream, shards)
    node, token, _ = found[b"m%d" % shards[1]]
    assert fabric.ack(node, token)
    txn = fabric.transaction(
        shards[0], acks=acks_of(found), pushes=[push_to(out, shards[2], b"result")]
    )
    with pytest.raises(LeaseLostError):
        fabric.transact(txn)
    fabric.run(1_000_000)
    assert left(fabric, stream) == 2
    assert fabric.popped(out) == []
    node, token, _ = found[b"m%d" % shards[2]]
    (grant,) = fabric.shard(shards[2]).queues[stream].leases.grants.values()
    assert grant.lease_us < SECURED_US, "it was secured for nothing"
    assert fabric.ack(node, token)


def test_transactions_behind_one_that_waits_keep_their_order():
    fabric = Fabric()
    stream, topic = fabric.queue("q"), fabric.topic("t", 8)
    shards = spread(fabric)
    found = leased(fabric, stream, shards)
    first = fabric.transaction(
        shards[0], acks=acks_of(found), pushes=[push_to(topic, 0, b"1", shards[0])]
    )
    second = fabric.transaction(shards[0], pushes=[push_to(topic, 0, b"2", shards[0])])
    answers: list[bytes | None] = []
    home = fabric.owner(shards[0])
    fabric.send_call(home, first, answers.append)
    # A connection keeps their order; this network does not. It waits for the other nodes then.
    while not fabric.member(home).engine.fabric.securing.tickets._waiting:
        fabric.run(50)
    fabric.send_call(home, second, answers.append)
    fabric.run(1_000_000)
    assert len(answers) == 2
    fabric.calm()
    assert fabric.values(topic, shards[0], shards[0]) == [b"1", b"2"]
    assert left(fabric, stream) == 0


class Away:
    """One message of a shard, leased; and a transaction of another node that acknowledges it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 1) -> None:
        self.fabric = fabric = Fabric(seed)
        self.stream = fabric.queue("q")
        self.shard = fabric.shard_of(2)
        self.home = fabric.shard_of(1)
        self.found = leased(fabric, self.stream, [self.shard])
        out = push_to(self.stream, self.home, b"out")
        self.txn = fabric.transaction(self.home, acks=acks_of(self.found), pushes=[out])
        self.answers: list[bytes | None] = []
        self._monkeypatch = monkeypatch

    def ask(self) -> None:
        """Commits it once; whoever does so does not try again."""
        self.fabric.send(1, Verb.CALL, m.pack(self.txn), self.answers.append, 6_000_000)

    def at_the_answer(self, happen: Callable[[], None]) -> None:
        """Once, instead of the first answer that the leases are secured."""
        outboxes = self.fabric.member(2).outboxes
        send = outboxes._send

        def sent(node: int, message: OutboxMessage) -> None:
            if isinstance(message, Secured):
                self._monkeypatch.setattr(outboxes, "_send", send)
                assert self.lease_us() == SECURED_US
                self.fabric.after(0, happen)
            else:
                send(node, message)

        self._monkeypatch.setattr(outboxes, "_send", sent)

    def lease_us(self) -> int:
        """How long the message is leased."""
        (grant,) = self.fabric.shard(self.shard).queues[self.stream].leases.grants.values()
        return grant.lease_us

    def cut(self, span_us: int) -> None:
        """The link between home and shard is gone for a while."""
        self.fabric.part((1, 2))
        self.fabric.after(span_us, self.fabric.part)

    def undo(self) -> None:
        """The acks will not come, says the home."""
        self.fabric.member(1).engine.fabric.securing.undo(self.txn.acks)


def test_a_question_whose_link_is_gone_is_over_at_once(monkeypatch: pytest.MonkeyPatch):
    """Also what waits behind it, of the same producer: all are tried again."""
    away = Away(monkeypatch)
    behind = away.fabric.transaction(away.home, pushes=[push_to(away.stream, away.home, b"2")])
    away.ask()
    while not away.fabric.member(1).engine.fabric.securing.tickets._waiting:
        away.fabric.run(20)
    away.fabric.send_call(1, behind, away.answers.append)
    away.cut(1_000)
    away.fabric.run(100_000)
    assert len(away.answers) == 2
    away.fabric.transact(away.txn)
    away.fabric.transact(behind)
    away.fabric.calm()
    assert sorted(away.fabric.popped(away.stream)) == [b"2", b"out"]


@pytest.mark.parametrize("span_us", [0, 100_000, 3_500_000])
def test_what_was_secured_and_nobody_heard_of_is_let_go(
    monkeypatch: pytest.MonkeyPatch, span_us: int
):
    away = Away(monkeypatch)
    away.at_the_answer(lambda: away.cut(span_us) if span_us else None)
    away.ask()
    away.fabric.run(4_000_000)
    assert away.answers[0] is not None
    assert away.lease_us() < SECURED_US
    away.fabric.run(6_000_000)
    assert away.fabric.popped(away.stream) == [b"m%d" % away.shard]


@pytest.mark.parametrize("seed", range(3))
def test_what_an_owner_secured_that_died_its_heir_lets_go(
    monkeypatch: pytest.MonkeyPatch, seed: int
):
    away = Away(monkeypatch, seed)
    away.at_the_answer(lambda: away.fabric.kill(2))
    away.ask()
    away.fabric.run(10_000_000)
    assert away.fabric.popped(away.stream) == [b"m%d" % away.shard]


@pytest.mark.parametrize("span_us", [0, 1_000, 100_000])
def test_what_is_secured_once_more_is_not_let_go_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch, span_us: int
):
    away = Away(monkeypatch)
    away.at_the_answer(lambda: away.cut(span_us) if span_us else None)
    away.ask()
    away.fabric.run(2_500_000)
    kept: list[int] = []
    away.at_the_answer(lambda: kept.append(away.lease_us()))
    away.ask()
    away.fabric.run(1_000_000)
    assert kept == [SECURED_US]
    away.fabric.transact(away.txn)
    away.fabric.calm()
    assert left(away.fabric, away.stream) == 1, "what it pushed"


def test_letting_go_what_was_not_secured_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    away = Away(monkeypatch)
    before = away.fabric.shard(away.shard).last
    away.undo()
    away.fabric.run(1_000_000)
    assert away.lease_us() == 5_000_000
    assert away.fabric.shard(away.shard).last == before
    away.fabric.transact(away.txn)
    away.undo()
    away.fabric.run(1_000_000)
    assert away.fabric.popped(away.stream) == [b"out"]


def test_an_ack_counts_that_comes_after_its_lease_was_let_go(monkeypatch: pytest.MonkeyPatch):
    """The home is elsewhere by now, and what the one before took back came late."""
    away = Away(monkeypatch)
    away.ask()
    while not away.answers:
        if away.fabric.member(1).engine.fabric.kernel.shards[away.home].outbox.parts:
            away.undo()
        away.fabric.run(100)
    away.fabric.calm()
    away.fabric.run(10_000_000)
    assert away.fabric.popped(away.stream) == [b"out"]
    dropped = [each.engine.fabric.figures()["dropped_parts"] for each in away.fabric.members()]
    assert sum(dropped) == 0


QUICK = range(4, 24, 8)
STEPS = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in range(24)]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", [1, 2])
def test_an_owner_dies_after_any_step(step: int, victim: int):
    fabric = Fabric(step)
    stream, topic = fabric.queue("q"), fabric.topic("t", 8)
    shards = spread(fabric)
    found = leased(fabric, stream, shards)
    txn = fabric.transaction(
        shards[0], acks=acks_of(found), pushes=[push_to(topic, 0, b"v", shards[2])]
    )
    fabric.after(step * 1_000, lambda: fabric.kill(victim))
    fabric.transact(txn)
    fabric.calm()
    fabric.run(10_000_000)  # longer than a lease: what was not acknowledged would be there again
    assert left(fabric, stream) == 0
    assert fabric.popped(stream) == []
    assert fabric.values(topic, shards[2], shards[2]) == [b"v"]
    dropped = [member.engine.fabric.figures()["dropped_parts"] for member in fabric.members()]
    assert sum(dropped) == 0


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_input_has_one_output_whatever_happens(seed: int):
    """Messages of several shards are consumed in one step, with one output each."""
    fabric = Fabric(seed)
    stream, topic = fabric.queue("q"), fabric.topic("t", 8)
    fabric.slow = 0.02
    values = [b"%d" % n for n in range(80)]
    for n, value in enumerate(values):
        shard = n % SHARDS
        assert fabric.push(fabric.owner(shard), stream, shard, value, 60 + shard, n // SHARDS)
    chaos(fabric, 40_000_000)
    pool: list[tuple[bytes, m.TxnSettle]] = []
    while fabric.now_us < 65_000_000:
        node = fabric.random.choice([n for n, host in fabric.hosts.items() if host.member])
        with suppress(PenstockError, TimeoutError):
            pool += [(value, ack_of(stream, token)) for value, token in fabric.pop(node, stream)]
        fabric.random.shuffle(pool)
        found, pool = pool[:5], pool[5:]
        fabric.run(fabric.random.randint(0, 400_000))
        if not found:
            continue
        pushes = [push_to(topic, 0, value, int(value) % 8) for value, _ in found]
        txn = fabric.transaction(found[0][1].shard, acks=[ack for _, ack in found], pushes=pushes)
        try:
            fabric.transact(txn)
        except LeaseLostError:
            fabric.take_back(txn)
    fabric.calm()
    outputs = [value for at in range(8) for value in fabric.values(topic, at, at)]
    assert len(outputs) == len(set(outputs)), "no output twice"
    missing = set(values) - set(outputs)
    assert len(missing) < len(values) // 2, "there was something to check"
    assert left(fabric, stream) == len(missing)
