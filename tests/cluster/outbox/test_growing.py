"""Topics that grow in a cluster whose nodes die: children open once, where their parents ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.cluster.outbox.fabric import SHARDS, Fabric, chaos

from penstock.cluster.commands import Define
from penstock.engine.member import definition_of
from penstock.errors import InvalidError, PenstockError, StorageError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.growth import Layout

KEYS = [b"key-%d" % number for number in range(16)]


def info_of(fabric: Fabric, topic: int) -> m.StreamInfo:
    """As the node knows it that knows most."""
    infos = [member.engine.fabric.kernel.streams[topic].info for member in fabric.members()]
    return max(infos, key=lambda info: info.generation)


def grow(fabric: Fabric, topic: int, partitions: int) -> None:
    """Asks until the cluster has decided."""
    while len(info_of(fabric, topic).placement) < partitions:
        member = fabric.member(fabric.alive())
        name, data = definition_of(member.engine.fabric.control.grown(m.Grow(topic, partitions)))
        known = member.plane.state.definitions[name]
        try:
            fabric.do(fabric.alive(), Define(name, data, known.version))
        except (PenstockError, TimeoutError, AssertionError):
            fabric.run(500_000)


def kin_of(fabric: Fabric, topic: int, partition: int) -> m.Kinship:
    shard = info_of(fabric, topic).placement[partition]
    answer = fabric.ask(shard, m.Family(topic, [partition]))
    return msgspec.msgpack.decode(answer, type=list[m.Kinship])[0]


def check_family(fabric: Fabric, topic: int) -> Layout:
    layout = info_of(fabric, topic).layout()
    for child, parent in enumerate(layout.parents):
        if parent is not None:
            splits = dict(kin_of(fabric, topic, parent).splits)
            assert kin_of(fabric, topic, child).origin == splits[layout.born[child]]
    return layout


def publishes(topic: int, partition: int, keys: list[bytes], tag: int) -> m.TxnPush:
    """As a client places them that knows the topic as it was at the beginning."""
    values = [b"%s:%d" % (key, tag) for key in keys]
    batch = bytes(encode_batch(values, keys=keys, timestamp_us=5))
    return m.TxnPush(topic, partition, partition, batch)


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_comes_too_late_finds_its_partition_whatever_dies(seed: int):
    fabric = Fabric(seed)
    topic = fabric.topic("t", 2)
    first = Layout(2, [])
    chaos(fabric, 25_000_000)
    wanted: dict[bytes, int] = {}
    for tag in range(24):
        if tag % 6 == 2:
            grow(fabric, topic, 2 + (tag // 6 + 1) * 2)
        home = fabric.random.randrange(SHARDS)
        keys = fabric.random.sample(KEYS, 5)
        parts = {at: [k for k in keys if first.partition_of(k) == at] for at in (0, 1)}
        pushes = [publishes(topic, at, mine, tag) for at, mine in parts.items() if mine]
        fabric.transact(fabric.transaction(home, pushes=pushes))
        wanted |= {b"%s:%d" % (key, tag): tag for key in keys}
        fabric.run(500_000)
    fabric.calm()
    layout = check_family(fabric, topic)
    found: list[bytes] = []
    for partition, shard in enumerate(info_of(fabric, topic).placement):
        values = fabric.values(topic, partition, shard)
        found += values
        for value in values:
            key = value.split(b":")[0]
            assert partition in {layout.partition_at(key, each) for each in range(5)}
    assert sorted(found) == sorted(wanted)


def commit_to(topic: int, partition: int, offset: int, state: bytes, token: int = 0) -> Any:
    return m.TxnCommit(topic, partition, "g", offset, token, state)


def committed(fabric: Fabric, topic: int, partition: int) -> tuple[int | None, bytes]:
    shard = info_of(fabric, topic).placement[partition]
    answer = fabric.ask(shard, m.Claims(topic, "g", [partition], True))
    (status,) = msgspec.msgpack.decode(answer, type=list[m.ClaimStatus])
    return status.offset, status.state


def test_a_group_hands_its_state_on_to_the_children_in_one_transaction():
    fabric = Fabric()
    topic = fabric.topic("t", 2)
    fabric.transact(fabric.transaction(0, pushes=[publishes(topic, 0, [b"key-0"], 0)]))
    fabric.calm()
    grow(fabric, topic, 6)
    fabric.calm()
    (_, split), = kin_of(fabric, topic, 0).splits
    seeds = [commit_to(topic, child, split, b"seed-%d" % child) for child in (2, 3)]
    own = commit_to(topic, 0, split, b"rest")
    fabric.transact(fabric.transaction(0, commits=[own, *seeds]))
    fabric.calm()
    assert committed(fabric, topic, 0) == (split, b"rest")
    assert [committed(fabric, topic, child) for child in (2, 3)] == [
        (split, b"seed-2"), (split, b"seed-3"),
    ]  # fmt: skip
    late = [commit_to(topic, child, 0, b"late") for child in (2, 3)]
    fabric.transact(fabric.transaction(0, commits=[own, *late]))
    fabric.calm()
    assert committed(fabric, topic, 2) == (split, b"seed-2"), "only the first of a group counts"
    no_child, claimed = commit_to(topic, 4, split, b""), commit_to(topic, 2, 0, b"", token=1)
    for each in (no_child, claimed):
        txn = fabric.transaction(0, commits=[own, each])
        with pytest.raises(InvalidError):
            fabric.transact(txn)
        fabric.take_back(txn)


def test_a_node_whose_disk_refuses_waits_before_it_tries_again():
    """What it would bring to itself is refused at once, and its core's clock stands still."""
    fabric = Fabric()
    topic = fabric.topic("t", 2)
    home = fabric.shard_of(1)
    member = fabric.member(1)
    kernel, outboxes = member.engine.fabric.kernel, member.outboxes
    shard = kernel.shards[home]
    target = fabric.shard_of(1, but=home)
    shard.outbox.add(target, shard.safe, 0, publishes(topic, 0, [b"key-0"], 0))
    member.engine.fabric.forwards.wake(shard)
    kernel.refusing = StorageError("the disk is full")
    now_us = kernel.now_us + 60_000_000
    outboxes.advance(fabric.map(1), now_us)
    due_us = outboxes.next_due()
    assert due_us is not None
    assert due_us > now_us
