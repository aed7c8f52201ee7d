"""Publications and reservations of a cluster: whoever dies at whatever moment, all or nothing."""

from __future__ import annotations

import msgspec
import pytest
from tests.cluster.outbox.fabric import Fabric, place_of

from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import PUSH, PushExtra, Verb

KEY = "job"
STEPS = [pytest.param(n, marks=[] if n in range(3, 24, 8) else [pytest.mark.slow])
         for n in range(24)]  # fmt: skip


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


def spread(fabric: Fabric) -> list[int]:
    """A shard of every node, and the home among them."""
    home = place_of(m.publication_name("default", KEY).encode())
    others = [fabric.shard_of(node) for node in (1, 2, 3) if node != fabric.owner(home)]
    return sorted({home, *others})


def stage(fabric: Fabric, stream: int, shard: int, number: int, *values: bytes) -> None:
    packed = m.pack(PushExtra(stage=name(number)))
    extra = len(packed).to_bytes(4, "little") + packed
    extra += bytes(-len(extra) % 8)
    batch = bytes(encode_batch(list(values), timestamp_us=5))
    body = PUSH.pack(stream, shard, shard, 0, len(extra)) + extra + batch
    fabric.request(fabric.owner(shard), Verb.PUSH, body)


def publish(fabric: Fabric, number: int, stage: int, shards: list[int]) -> m.Publication:
    parts = [m.StagesOf(shard, [m.StagedPart(name(stage), 2)]) for shard in shards]
    call = m.PublishStaged(KEY, number, parts)
    home = place_of(m.publication_name("default", KEY).encode())
    return msgspec.msgpack.decode(fabric.ask(home, call), type=m.Publication)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", [0, 1])
def test_an_owner_dies_after_any_step_of_a_publication(step: int, victim: int):
    fabric = Fabric(step)
    topic, shards = fabric.topic("t", 8), spread(fabric)
    for shard in shards:
        stage(fabric, topic, shard, 1, b"a", b"b")
        stage(fabric, topic, shard, 2, b"c", b"d")
    dies = fabric.owner(shards[victim])
    fabric.after(step * 1_000, lambda: fabric.kill(dies))
    assert publish(fabric, 5, 1, shards).outcome == "published"
    assert publish(fabric, 5, 2, shards).outcome == "already"
    fabric.calm()
    for shard in shards:
        assert fabric.values(topic, shard, shard) == [b"a", b"b"]
        assert not fabric.shard(shard).staging.stages, "what came too late is dropped"
    dropped = [member.engine.fabric.figures()["dropped_parts"] for member in fabric.members()]
    assert sum(dropped) == 0


def secured(fabric: Fabric, shard: int) -> bool:
    return any(each.secured for each in fabric.shard(shard).staging.stages.values())


@pytest.mark.parametrize("span_us", [1_000, 300_000])
def test_a_publication_whose_link_is_gone_is_refused_soon_and_lets_its_stages_go(span_us: int):
    fabric = Fabric(1)
    topic, shards = fabric.topic("t", 8), spread(fabric)
    home = place_of(m.publication_name("default", KEY).encode())
    node, away = fabric.owner(home), next(shard for shard in shards if shard != home)
    for shard in shards:
        stage(fabric, topic, shard, 1, b"a", b"b")
    parts = [m.StagesOf(shard, [m.StagedPart(name(1), 2)]) for shard in shards]
    answers: list[bytes | None] = []
    fabric.send_call(node, m.PublishStaged(KEY, 1, parts), answers.append)
    while not secured(fabric, away):
        fabric.run(20)
    fabric.part((node, fabric.owner(away)))
    fabric.after(span_us, fabric.part)
    fabric.run(span_us + 100_000)  # its own stages are on the disks of all by then
    assert len(answers) == 1
    fabric.run(1_000_000)
    assert not any(secured(fabric, shard) for shard in shards)
    assert publish(fabric, 1, 1, shards).outcome == "published"
    fabric.calm()
    assert all(fabric.values(topic, shard, shard) == [b"a", b"b"] for shard in shards)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("acked", [True, False])
def test_an_owner_dies_after_any_step_of_a_reservation(step: int, acked: bool):
    fabric = Fabric(step)
    queue, home = fabric.queue("q"), place_of(KEY.encode())
    nodes = (1, 2, 3)
    shards = [fabric.shard_of(node) for node in nodes]
    for shard in shards:
        assert fabric.push(fabric.owner(shard), queue, shard, b"m%d" % shard, 70 + shard, 0)
    call = m.Reserve(queue, KEY, 1, 10, 1 << 20)
    parts = [
        m.ReservedPart(*part)
        for shard in shards
        for part in msgspec.msgpack.decode(fabric.ask(shard, call))
    ]
    assert sorted(part.shard for part in parts) == sorted(shards)
    dies = fabric.owner(shards[step % 3])
    fabric.after(step * 1_000, lambda: fabric.kill(dies))
    fabric.ask(home, m.SealReservation(queue, KEY, 1, parts))
    ends = m.FinishReservations(queue, KEY, 1) if acked else m.Unreserve(queue, KEY)
    fabric.ask(home, ends)
    fabric.calm()
    assert sorted(fabric.popped(queue)) == ([] if acked else sorted(b"m%d" % s for s in shards))
    left = [fabric.shard(shard).queues.get(queue) for shard in shards]
    assert sum(each.kept_messages for each in left if each is not None) == 0
