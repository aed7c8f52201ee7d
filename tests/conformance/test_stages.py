"""Stages: the same scripts everywhere; nothing is seen before, all of it after, once."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tests.node.test_cluster import wait_for

from penstock import StageToken
from penstock.errors import ConflictError, InvalidError, NotFoundError

PARTITIONS = 7


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % each for each in range(start, start + count)]


def read(topic: Any, partition: int) -> list[tuple[int, bytes]]:
    return [
        (int(offset), value)
        for batch in topic.read(partition)
        for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True)
    ]


def read_all(topic: Any) -> list[bytes]:
    return [value for number in range(topic.partitions) for _, value in read(topic, number)]


def drained(queue: Any) -> list[bytes]:
    found: list[bytes] = []
    while batch := queue.pop_many(100):
        found += [message.value for message in batch]
        queue.ack(batch, wait=True)
    return sorted(found)


def test_nothing_is_seen_before_and_all_of_it_after(fabric):
    topic, queue = fabric.topic("t", PARTITIONS), fabric.queue("q")
    stage, other = topic.stage(), queue.stage()
    keys = [b"k%d" % (each % 20) for each in range(500)]
    stage.publish_many(values(500), keys=keys, batch=30)
    stage.publish(b"alone", partition=3)
    receipts = other.push_many(values(300), batch=20)
    assert receipts.count == 300
    assert (stage.messages, other.messages) == (501, 300)
    assert read_all(topic) == []
    assert queue.pop() is None
    told = fabric.publish_staged("job", 0, [stage.token, other.token])
    assert (told.key, told.number, told.outcome) == ("job", 0, "published")
    assert wait_for(lambda: len(read_all(topic)) == 501)
    assert sorted(read_all(topic)) == sorted([*values(500), b"alone"])
    for number in range(PARTITIONS):
        offsets = [offset for offset, _ in read(topic, number)]
        assert offsets == list(range(len(offsets)))
    found: list[bytes] = []
    assert wait_for(lambda: len(found.__iadd__(drained(queue))) == 300)
    assert sorted(found) == sorted(values(300))


def test_a_number_is_published_once(fabric):
    topic = fabric.topic("t", PARTITIONS)
    tokens = []
    for each in range(3):
        stage = topic.stage()
        stage.publish_many(values(10, 100 * each), batch=1)
        tokens.append(pickle.loads(pickle.dumps(StageToken.read(bytes(stage.token)))))
    assert fabric.publish_staged("job", 4, tokens[:1]).outcome == "published"
    assert fabric.publish_staged("job", 4, tokens[:1]).outcome == "published"
    assert fabric.publish_staged("job", 4, tokens[1:2]).outcome == "already"
    assert fabric.publish_staged("job", 3, tokens[2:]).number == 4
    with pytest.raises(NotFoundError):
        wait_for(lambda: fabric.publish_staged("job", 5, tokens[1:]) is None)
    assert wait_for(lambda: len(read_all(topic)) == 10)
    assert sorted(read_all(topic)) == values(10)
    assert [(each.key, each.number) for each in fabric.publications()] == [("job", 4)]
    assert fabric.forget_publication("job")
    assert not fabric.forget_publication("job")
    assert fabric.publications() == []


def test_what_is_dropped_is_gone(fabric):
    topic, queue = fabric.topic("t", PARTITIONS), fabric.queue("q")
    stage, other = topic.stage(), queue.stage()
    stage.publish_many(values(50), batch=5)
    other.push_many(values(50), batch=5)
    assert stage.discard() == len(stage.token.parts)
    assert fabric.discard_staged([other.token]) == len(other.token.parts)
    for each in (stage, other):
        with pytest.raises(NotFoundError):
            fabric.publish_staged("job", 1, [each.token])
    assert fabric.publish_staged("job", 1, []).outcome == "published"
    assert read_all(topic) == []
    assert queue.pop() is None


def test_a_stage_of_a_queue_takes_what_a_queue_takes(fabric):
    queue = fabric.queue("q")
    stage = queue.stage()
    stage.push(b"low")
    stage.push(b"high", priority=9)
    stage.push(b"one", id="i")
    queue.push(b"same", id="i")
    with pytest.raises(InvalidError):
        stage.push(b"again", id="i")
    assert stage.messages == 3
    fabric.publish_staged("job", 1, [stage.token])
    found: list[bytes] = []
    assert wait_for(lambda: len(found.__iadd__(drained(queue))) == 3)
    assert sorted(found) == [b"high", b"low", b"same"]


def test_a_stage_with_a_failed_push_cannot_be_published(fabric):
    queue = fabric.queue("q", ordered="key")
    stage = queue.stage()
    with pytest.raises(InvalidError):
        stage.push(b"a", key=b"k")
    with pytest.raises(ConflictError):
        stage.token  # noqa: B018
    with pytest.raises(InvalidError):
        fabric.publish_staged("job", -1, [])
    with pytest.raises(InvalidError):
        StageToken.read(b"nothing")
