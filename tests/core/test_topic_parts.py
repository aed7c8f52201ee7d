"""Calls about some partitions of a topic: a node of a cluster is asked for those that it owns."""

from __future__ import annotations

import pytest
from tests.core.harness import Node

from penstock.errors import InvalidError, MovedError
from penstock.wire import messages as m

PARTITIONS = 4


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    """Partition n has n messages in as many batches, and group g has committed n of them."""
    stream = node.open("topic", "t", partitions=PARTITIONS)
    placement = node.fabric.kernel.streams[stream].info.placement
    for partition in range(PARTITIONS):
        for _ in range(partition):
            node.push(stream, [b"x"], partition=partition, shard=placement[partition])
        node.call(m.Commit(stream, "g", [(partition, partition, 0)]))
    return stream


def test_all_partitions_unless_some_are_named(node, topic):
    assert node.call(m.Offsets(topic)) == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert node.call(m.Committed(topic, "g")) == [0, 1, 2, 3]
    assert node.call(m.OffsetAt(topic, 0)) == [0, 0, 0, 0]
    assert node.call(m.StreamStats(topic))["messages"] == 6


def test_named_partitions_are_told_of_in_their_order(node, topic):
    assert node.call(m.Offsets(topic, [3, 1])) == [[0, 3], [0, 1]]
    assert node.call(m.Offsets(topic, [])) == []
    assert node.call(m.Committed(topic, "g", [2, 0])) == [2, 0]
    later_us = node.now_us + 1
    assert node.call(m.OffsetAt(topic, later_us, [2, 3])) == [2, 3]
    figures = node.call(m.StreamStats(topic, [3, 0]))
    assert figures["messages"] == 3
    assert [part["end"] for part in figures["partitions"]] == [3, 0]
    assert figures["bytes"] == figures["partitions"][0]["bytes"] > 0


@pytest.mark.parametrize("wrong", [[PARTITIONS], [-1], [0] * (PARTITIONS + 1)])
def test_partitions_that_are_not_there(node, topic, wrong):
    calls = [
        m.Offsets(topic, wrong), m.OffsetAt(topic, 0, wrong), m.Committed(topic, "g", wrong),
        m.StreamStats(topic, wrong),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidError):
            node.call(call)


def test_only_those_named_must_be_served_here(node, topic):
    kernel = node.fabric.kernel
    kernel.shards[kernel.streams[topic].info.placement[1]].owned = False
    for partitions in (None, [0, 1]):
        with pytest.raises(MovedError):
            node.call(m.Committed(topic, "g", partitions))
    assert node.call(m.Committed(topic, "g", [0, 2])) == [0, 2]
    assert node.call(m.StreamStats(topic, [2, 3]))["groups"] == ["g"]
