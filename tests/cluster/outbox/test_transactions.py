"""Transactions over several nodes: all or nothing, each part once, whatever dies in between."""

from __future__ import annotations

import pytest
from tests.cluster.outbox.fabric import Fabric, chaos, push_to

from penstock.cluster.commands import Undefine, Undrain
from penstock.engine.maintenance import Pace
from penstock.errors import InvalidError, PenstockError
from penstock.wire import messages as m
from penstock.wire.frames import Verb

OFTEN = Pace(checkpoint_records=20)


def test_parts_reach_shards_of_all_nodes_once():
    fabric = Fabric()
    queue, topic, table = fabric.queue("q"), fabric.topic("t", 8), fabric.table("k")
    home = fabric.shard_of(1)
    shards = [fabric.shard_of(node) for node in (1, 2, 3)]
    keys = [fabric.key_in(shard) for shard in shards]
    txn = fabric.transaction(
        home,
        pushes=[
            *(push_to(queue, shard, b"p%d" % shard) for shard in shards),
            *(push_to(topic, 0, b"t%d" % shard, shard) for shard in shards),
        ],
        writes=[m.TxnWrite(table, key, b"v") for key in keys],
    )
    receipt = fabric.transact(txn)
    again = fabric.transact(txn)
    assert again.duplicate
    assert again.number == receipt.number
    fabric.calm()
    assert sorted(fabric.popped(queue)) == sorted(b"p%d" % shard for shard in shards)
    for shard in shards:
        assert fabric.values(topic, shard, shard) == [b"t%d" % shard]
    assert [fabric.get(table, key) for key in keys] == [b"v"] * 3


def parts_on(fabric: Fabric, topic: int, home: int, value: bytes) -> m.Transact:
    """One that publishes a value to a partition of every node."""
    shards = [fabric.shard_of(node, but=home) for node in (1, 2, 3)]
    return fabric.transaction(
        home, pushes=[push_to(topic, 0, value, shard) for shard in [home, *shards]]
    )


def check_once(fabric: Fabric, topic: int, sent: list[m.Transact], values: list[bytes]) -> None:
    """Every part of every transaction is where it belongs, once, and in the order of its home."""
    wanted: dict[int, list[bytes]] = {}
    for txn, value in zip(sent, values, strict=True):
        for push in txn.pushes:
            wanted.setdefault(push.partition, []).append(value)
    for partition, expected in wanted.items():
        found = fabric.values(topic, partition, partition)
        assert sorted(found) == sorted(expected), f"partition {partition}"
        for home in {txn.home for txn in sent}:
            mine = [v for t, v in zip(sent, values, strict=True) if t.home == home]
            assert [v for v in found if v in mine] == [v for v in expected if v in mine]


QUICK = range(3, 18, 6)
STEPS = [
    pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in range(18)
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("role", ["home", "target"])
def test_an_owner_dies_after_any_step(step: int, role: str):
    fabric = Fabric(step)
    topic = fabric.topic("t", 8)
    home = fabric.shard_of(1)
    victim = 1 if role == "home" else 2
    txn = parts_on(fabric, topic, home, b"v")
    fabric.after(step * 1_000, lambda: fabric.kill(victim))
    fabric.transact(txn)
    fabric.calm()
    check_once(fabric, topic, [txn], [b"v"])


def test_nothing_is_done_elsewhere_for_a_record_that_is_lost():
    fabric = Fabric()
    topic = fabric.topic("t", 8)
    places = fabric.map().shards
    homes = [(shard, place.in_sync) for shard, place in enumerate(places) if place.replicas[0] == 1]
    home, in_sync = homes[0]
    (heir,) = set(in_sync) - {1}
    (third,) = {1, 2, 3} - {1, heir}
    away = fabric.shard_of(third)
    fabric.part((1, heir))
    pushes = [push_to(topic, 0, b"v", shard) for shard in (home, away)]
    txn = fabric.transaction(home, pushes=pushes)
    with pytest.raises(TimeoutError):  # the one who has to have it cannot get it
        fabric.request(1, Verb.CALL, m.pack(txn), 400_000)
    fabric.lose_power(1)
    fabric.part()
    fabric.run(8_000_000)
    assert fabric.owner(home) == heir
    fabric.calm()
    for shard in (home, away):
        assert fabric.values(topic, shard, shard) == []
    fabric.transact(txn)
    fabric.calm()
    for shard in (home, away):
        assert fabric.values(topic, shard, shard) == [b"v"]


def test_what_is_refused_has_no_effect_anywhere():
    fabric = Fabric()
    queue, topic, table = fabric.queue("q"), fabric.topic("t", 8), fabric.table("k")
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    version_of = [m.TxnWrite(table, fabric.key_in(home), b"v", 7)]
    pushes = [push_to(topic, 0, b"v", away)]
    refused = [
        m.Transact(9, 0, home, writes=version_of, pushes=pushes),
        m.Transact(9, 0, home, pushes=pushes, acks=[m.TxnSettle(queue, home, 1, 0, 1)]),
    ]
    for txn in refused:
        with pytest.raises(PenstockError):
            fabric.transact(txn)
    fabric.run(1_000_000)
    assert fabric.outstanding() == 0
    assert fabric.values(topic, away, away) == []


def test_what_must_be_checked_elsewhere_is_refused():
    fabric = Fabric()
    topic, table = fabric.topic("t", 8), fabric.table("k")
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    refused = [
        m.Transact(9, 0, home, writes=[m.TxnWrite(table, fabric.key_in(away), b"v", 0)]),
        m.Transact(9, 0, home, commits=[m.TxnCommit(topic, away, "g", 0)]),
    ]
    for txn in refused:
        with pytest.raises(InvalidError, match="another shard than its home"):
            fabric.transact(txn)


def test_a_deleted_stream_drops_its_part_and_nothing_else():
    fabric = Fabric()
    topic, gone = fabric.topic("t", 8), fabric.topic("gone", 8)
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    fabric.part((1, 2), (2, 3))
    txn = fabric.transaction(
        home, pushes=[push_to(gone, 0, b"v", away), push_to(topic, 0, b"v", away)]
    )
    fabric.transact(txn)
    name = next(name for name in fabric.member(1).plane.state.definitions if "gone" in name)
    version = fabric.member(1).plane.state.definitions[name].version
    assert fabric.do(1, Undefine(name, version)).accepted
    fabric.calm()
    assert fabric.values(topic, away, away) == [b"v"]
    dropped = [member.engine.fabric.figures()["dropped_parts"] for member in fabric.members()]
    assert sum(dropped) == 1


def test_nothing_is_left_of_what_was_delivered():
    fabric = Fabric()
    topic = fabric.topic("t", 8)
    home = fabric.shard_of(1)
    for n in range(20):
        fabric.transact(parts_on(fabric, topic, home, b"v%d" % n))
    fabric.calm()
    for member in fabric.members():  # followers as well
        assert sum(shard.outbox.parts for shard in member.engine.fabric.kernel.shards) == 0
        assert sum(shard.outbox.bytes for shard in member.engine.fabric.kernel.shards) == 0


def test_what_is_outstanding_survives_checkpoints_and_restarts():
    fabric = Fabric(1, OFTEN)
    topic = fabric.topic("t", 8)
    home, away = fabric.shard_of(1), fabric.shard_of(2)
    sent: list[m.Transact] = []
    values = [b"v%d" % n for n in range(60)]
    fabric.kill(2)  # until another node is promoted, nothing reaches its shards
    for value in values:
        sent.append(fabric.transaction(home, pushes=[push_to(topic, 0, value, away)]))
        fabric.request(1, Verb.CALL, m.pack(sent[-1]))
    assert fabric.member(1).engine.maintenance.checkpoints > 0
    assert fabric.outstanding() > 0
    for number in (1, 3):
        fabric.lose_power(number)
    fabric.calm()
    check_once(fabric, topic, sent, values)


def test_a_shard_that_moves_takes_its_outbox_along():
    fabric = Fabric(2, OFTEN)
    topic = fabric.topic("t", 8)
    sent: list[m.Transact] = []
    values: list[bytes] = []

    def work(count: int) -> None:
        for _ in range(count):
            home = fabric.random.randrange(8)
            partitions = fabric.random.sample(range(8), 3)
            value = b"%d-%d" % (home, len(sent))
            pushes = [push_to(topic, 0, value, partition) for partition in partitions]
            sent.append(fabric.transaction(home, pushes=pushes))
            values.append(value)
            fabric.transact(sent[-1])

    work(20)
    for node in (2, 3):
        fabric.drain(node)
        work(60)
        fabric.run(5_000_000)
        assert all(fabric.owner(shard) != node for shard in range(8))
        fabric.do(fabric.alive(), Undrain(node))
        work(20)
    fabric.calm()
    check_once(fabric, topic, sent, values)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_or_nothing_and_once_whatever_happens(seed: int):
    fabric = Fabric(seed)
    topic = fabric.topic("t", 8)
    fabric.slow = 0.02
    chaos(fabric, 40_000_000)
    sent: list[m.Transact] = []
    values: list[bytes] = []
    while fabric.now_us < 65_000_000:
        home = fabric.random.randrange(8)
        value = b"%d-%d" % (home, len(sent))
        partitions = fabric.random.sample(range(8), fabric.random.randint(1, 4))
        txn = fabric.transaction(home, pushes=[push_to(topic, 0, value, p) for p in partitions])
        sent.append(txn)
        values.append(value)
        fabric.transact(txn)
        fabric.run(fabric.random.randint(0, 300_000))
    fabric.calm()
    assert len(sent) > 20
    check_once(fabric, topic, sent, values)
