"""Stages that are published after their topic grew, in a cluster whose nodes die: every row once,
where its key belongs."""

from __future__ import annotations

import msgspec
import pytest
from tests.cluster.outbox.fabric import Fabric, chaos, place_of
from tests.cluster.outbox.test_growing import KEYS, check_family, grow, info_of
from tests.cluster.outbox.test_publications import KEY, STEPS, name

from penstock.errors import PenstockError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import PUSH, PushExtra, Verb
from penstock.wire.growth import Layout

FIRST = Layout(2, [])


def stage(fabric: Fabric, topic: int, number: int) -> dict[int, int]:
    """A message for each key, as a client places them that knows the topic as it was at the
    beginning; how many are in which shard."""
    packed = m.pack(PushExtra(stage=name(number)))
    extra = len(packed).to_bytes(4, "little") + packed
    extra += bytes(-len(extra) % 8)
    stored: dict[int, int] = {}
    for partition in (0, 1):
        keys = [key for key in KEYS if FIRST.partition_of(key) == partition]
        values = [b"%s:%d" % (key, number) for key in keys]
        shard = info_of(fabric, topic).placement[partition]
        # Its own numbers: whoever sends it again, because no answer came, stores it once.
        batch = bytes(
            encode_batch(values, keys=keys, timestamp_us=5, producer=1000 + number, sequence=0)
        )
        body = PUSH.pack(topic, partition, shard, 0, len(extra)) + extra + batch
        while shard not in stored:
            try:
                fabric.request(fabric.owner(shard), Verb.PUSH, body)
                stored[shard] = len(keys)
            except (PenstockError, TimeoutError, AssertionError):
                fabric.run(500_000)
    return stored


def publish(fabric: Fabric, number: int, stored: dict[int, int]) -> m.Publication:
    parts = [
        m.StagesOf(shard, [m.StagedPart(name(number), count)]) for shard, count in stored.items()
    ]
    home = place_of(m.publication_name("default", KEY).encode())
    answer = fabric.ask(home, m.PublishStaged(KEY, number, parts))
    return msgspec.msgpack.decode(answer, type=m.Publication)


def check(fabric: Fabric, topic: int, generations: dict[int, int]) -> None:
    """Every stage is there once; no row is where its key was before the generation in which the
    stage was published."""
    fabric.calm()
    layout = check_family(fabric, topic)
    found: list[bytes] = []
    for partition, shard in enumerate(info_of(fabric, topic).placement):
        values = fabric.values(topic, partition, shard)
        found += values
        for key, number in (value.split(b":") for value in values):
            since = range(generations[int(number)], layout.generation + 1)
            assert partition in {layout.partition_at(key, each) for each in since}
        assert not fabric.shard(shard).staging.stages
    assert sorted(found) == sorted(b"%s:%d" % (key, n) for key in KEYS for n in generations)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", [0, 1])
def test_an_owner_dies_after_any_step(step: int, victim: int):
    fabric = Fabric(step)
    topic = fabric.topic("t", 2)
    stored = stage(fabric, topic, 1)
    grow(fabric, topic, 6)
    dies = fabric.owner(info_of(fabric, topic).placement[victim])
    fabric.after(step * 1_000, lambda: fabric.kill(dies))
    assert publish(fabric, 1, stored).outcome == "published"
    check(fabric, topic, {1: 1})


@pytest.mark.parametrize("seed", range(1, 5))
def test_it_grows_while_they_are_published_whatever_dies(seed: int):
    fabric = Fabric(seed)
    topic = fabric.topic("t", 2)
    staged = {number: stage(fabric, topic, number) for number in range(1, 9)}
    chaos(fabric, 25_000_000)
    for number, stored in staged.items():
        if number % 3 == 1:
            grow(fabric, topic, 2 + 2 * number)
        assert publish(fabric, number, stored).outcome == "published"
        fabric.run(300_000)
    check(fabric, topic, {number: 1 + (number - 1) // 3 for number in staged})
