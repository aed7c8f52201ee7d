"""Stages of topics that grow: the same scripts everywhere; nothing is seen before, all of it after,
in the partitions that have the keys."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.conformance.test_growing import LONG_S, by_key, expected, keyed, layout_of, rows
from tests.node.test_cluster import wait_for


def settled(topic: Any, count: int) -> bool:
    seen: list[int] = []

    def whole() -> bool:
        seen[:] = [partition for _, _, partition, _ in rows(topic)]
        return len(seen) == count

    try:
        return wait_for(whole, LONG_S)
    except AssertionError:  # seen once; what was there tells whether something is late or missing
        raise AssertionError(f"{len(seen)} of {count}, in partitions {Counter(seen)}") from None


def are_placed(topic: Any) -> bool:
    layout = layout_of(topic)
    return all(layout.partition_of(key) == partition for key, _, partition, _ in rows(topic))


def test_a_writer_that_is_not_told_goes_on_unseen(fabric):
    """What it places anew is as invisible as the rest of its stage."""
    topic, other = fabric.topic("t", 2), fabric.topic("t", 2)
    topic.grow(7)
    # What comes to an owner that does not know yet was staged before: it may come out of order.
    wait_for(lambda: all(parent.splits for parent in topic.family()[:2]))
    stage = other.stage()
    stage.publish_many(**keyed(0, 200), batch=20)
    stage.publish(b"200", key="key-0")
    assert other.partitions == 7
    assert stage.messages == 201
    assert list(rows(topic)) == []
    assert fabric.publish_staged("job", 1, [stage]).outcome == "published"
    assert settled(topic, 201)
    assert are_placed(topic)
    assert by_key(topic) == {**expected(200), b"key-0": [*range(0, 200, 10), 200]}


def test_a_stage_that_was_written_before_is_published_after(fabric):
    topic = fabric.topic("t", 2)
    before, between, after = topic.stage(), topic.stage(), topic.stage()
    before.publish_many(**keyed(0, 200), batch=30)
    before.publish(b"-1", key="key-1", partition=1)
    topic.grow(3)
    between.publish_many(**keyed(200, 300), batch=30)
    topic.grow(8)
    after.publish_many(**keyed(300, 400), batch=30)
    assert list(rows(topic)) == []
    tokens = [before.token, between.token, after.token]
    assert fabric.publish_staged("job", 1, tokens).outcome == "published"
    assert fabric.publish_staged("job", 1, tokens).outcome == "published"
    assert settled(topic, 401)
    meant = [each for each in rows(topic) if each[1] == b"-1"]
    assert [partition for _, _, partition, _ in meant] == [1]
    layout = layout_of(topic)
    for key, value, partition, _ in rows(topic):
        assert value == b"-1" or layout.partition_of(key) == partition
    found = {key: sorted(each) for key, each in by_key(topic).items()}
    assert found == {**expected(400), b"key-1": [-1, *range(1, 400, 10)]}
    topic.publish_many(**keyed(400, 450))
    assert settled(topic, 451)


def test_a_stage_is_published_while_it_grows(fabric):
    topic = fabric.topic("t", 1)
    for turn in range(6):
        stage = topic.stage()
        stage.publish_many(**keyed(turn * 50, turn * 50 + 50), batch=7)
        topic.grow(topic.partitions + turn + 1)
        assert fabric.publish_staged("job", turn, [stage]).outcome == "published"
    assert settled(topic, 300)
    assert {key: sorted(each) for key, each in by_key(topic).items()} == expected(300)
