"""What goes over the links for outboxes: bounded, sent again, and refused if it makes no sense."""

from __future__ import annotations

import pytest
from tests.cluster.outbox.fabric import Fabric, push_to

from penstock.cluster.replication.messages import Probe, pack
from penstock.core.outbox import Packed
from penstock.core.sessions import Binding
from penstock.engine import outbox as module
from penstock.engine.outbox_messages import (
    Bind,
    Bound,
    Confirmed,
    Forward,
    OutboxMessage,
    Refused,
    Secure,
    Secured,
    pack_outbox,
    unpack_outbox,
)
from penstock.errors import LimitError, ProtocolError, TooLargeError, UnavailableError
from penstock.wire import messages as m
from penstock.wire.frames import Verb

PART = Packed(1, 0, 2, m.pack(m.TxnWrite(1, b"k", b"v")))


def test_shards_that_are_not_there():
    fabric = Fabric()
    messages: list[OutboxMessage] = [
        Forward(8, 0, 0, [PART]),
        Forward(0, 8, 0, [PART]),
        Forward(-1, 0, 0, [PART]),
        Confirmed(99, 0, 1, 0),
        Refused(0, 99),
        Bind(99, 1, 0, 1),
        Secure(1, 99, [], False),
    ]
    for message in messages:
        with pytest.raises(ProtocolError):
            fabric.member(1).receive(2, [memoryview(b"o" + pack_outbox(message))], fabric.now_us)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\xa1F\x01\x02", b"\x92\xa1A\x01"])
def test_what_is_no_message(data: bytes):
    with pytest.raises(ProtocolError):
        unpack_outbox(data)


def test_answers_that_nobody_waits_for_do_nothing():
    fabric = Fabric()
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    last = fabric.shard(home).last
    for message in (Bound(77, Binding.BOUND), Secured(77, 0, ""), Refused(home, away)):
        fabric.member(1).receive(2, [memoryview(b"o" + pack_outbox(message))], fabric.now_us)
    assert fabric.shard(home).last == last


def test_a_part_comes_together_with_the_word_that_another_has_the_shard():
    """What is done for the part is in line before the shard is given up; after that it would have
    stayed there for ever, and with it all that the node wrote."""
    fabric = Fabric()
    queue, known = fabric.queue("q"), fabric.member(1).plane.state.map().shards
    owner = known[0].owner
    other = next(node for node in known[0].in_sync if node != owner)
    member, home = fabric.member(owner), fabric.shard_of(other)
    part = Packed(10_000, 0, 3, m.pack(push_to(queue, 0, b"late")))
    forward = Forward(home, 0, member.outboxes._version(), [part])
    probe = b"".join(map(bytes, pack(Probe(0, known[0].epoch + 1, 1))))
    together = [memoryview(b"o" + pack_outbox(forward)), memoryview(b"r" + probe)]
    member.receive(other, together, fabric.now_us)
    assert fabric.push(owner, queue, fabric.shard_of(owner, but=0), b"next", 7, 0) is not None


def test_definitions_that_are_too_new_are_waited_for():
    fabric = Fabric()
    table, home, away = fabric.table("k"), fabric.shard_of(1), fabric.shard_of(2)
    part = Packed(1 << 40, 0, 2, m.pack(m.TxnWrite(table, fabric.key_in(away), b"v")))
    last = fabric.shard(away).last
    member = fabric.member(2)
    for version in (1 << 30, 0):
        message = Forward(home, away, version, [part])
        member.receive(1, [memoryview(b"o" + pack_outbox(message))], fabric.now_us)
        answers = [b"".join(parts) for node, parts in member.peers if node == 1]
        refused = b"o" + pack_outbox(Refused(home, away))
        assert (refused in answers) == (version > 0)
        member.peers.clear()
    assert fabric.shard(away).last == last + 1


def test_a_bounded_number_of_messages_is_on_the_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_ON_THE_WAY", 1)
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    fabric = Fabric()
    topic, home = fabric.topic("t", 8), fabric.shard_of(1)
    targets = [shard for shard in range(8) if fabric.owner(shard) == 2]
    sent: list[OutboxMessage] = []
    outboxes = fabric.member(1).outboxes
    send = outboxes._send
    most = 0

    def watched(node: int, message: OutboxMessage) -> None:
        nonlocal most
        if isinstance(message, Forward):
            sent.append(message)
            assert len(message.parts) <= 2
            most = max(most, outboxes._on_the_way[node])
        send(node, message)

    monkeypatch.setattr(outboxes, "_send", watched)
    parts = [push_to(topic, 0, b"%d" % n, target) for n in range(7) for target in targets]
    fabric.transact(fabric.transaction(home, pushes=parts))
    fabric.calm()
    assert len(sent) >= 4 * len(targets)
    assert most == 1
    for target in targets:
        assert fabric.values(topic, target, target) == [b"%d" % n for n in range(7)]


def test_a_home_whose_targets_are_away_takes_so_much_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("penstock.core.outbox.MAX_OUTSTANDING_PARTS", 5)
    fabric = Fabric()
    topic = fabric.topic("t", 8)
    home = fabric.shard_of(1)
    away = next(s for s in range(8) if fabric.owner(s) == 2)
    monkeypatch.setattr(module.Outboxes, "_reached", lambda self, node: node == self.node)
    txns = [fabric.transaction(home, pushes=[push_to(topic, 0, b"v", away)]) for _ in range(6)]
    for txn in txns[:5]:
        fabric.transact(txn)
    with pytest.raises(LimitError):
        fabric.transact(txns[5])
    monkeypatch.undo()
    fabric.calm()
    fabric.transact(txns[5])
    fabric.calm()
    assert fabric.values(topic, away, away) == [b"v"] * 6


def test_a_transaction_that_no_frame_could_carry_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.core.transactions.MAX_OUTGOING_BYTES", 1000)
    fabric = Fabric()
    topic, home, away = fabric.topic("t", 8), fabric.shard_of(1), fabric.shard_of(2)
    pushes = [push_to(topic, 0, bytes(1000), shard) for shard in (home, away)]
    with pytest.raises(TooLargeError):
        fabric.transact(m.Transact(9, 0, home, pushes=pushes))
    fabric.calm()
    assert fabric.values(topic, home, home) == fabric.values(topic, away, away) == []
    fabric.transact(m.Transact(9, 0, home, pushes=[push_to(topic, 0, b"v", away)]))
    fabric.calm()
    assert fabric.values(topic, away, away) == [b"v"]


def test_before_all_nodes_are_upgraded_nothing_is_forwarded():
    fabric = Fabric()
    topic, home, away = fabric.topic("t", 8), fabric.shard_of(1), fabric.shard_of(2)
    for member in fabric.members():
        member.engine.fabric.kernel.forwarding = False
    txn = m.Transact(9, 0, home, pushes=[push_to(topic, 0, b"v", away)])
    with pytest.raises(UnavailableError):
        fabric.request(1, Verb.CALL, m.pack(txn))
    with pytest.raises(UnavailableError):
        fabric.request(1, Verb.CALL, m.pack(m.SessionOpen(1000, home)))
    own = m.Transact(9, 0, home, pushes=[push_to(topic, 0, b"v", home)])
    fabric.request(1, Verb.CALL, m.pack(own))
    assert fabric.values(topic, home, home) == [b"v"]
