"""What a partition keeps of the rows that keep-latest removed: no more than somebody asks for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Node

from penstock.core.partition import Partition
from penstock.core.records import Thinned
from penstock.wire.durability import Durability


@pytest.fixture
def node() -> Node:
    """Four batches of three rows, at 0, 3, 6 and 9."""
    node = Node(1)
    topic = node.open("topic", "t", partitions=1, keep="latest")
    for _ in range(4):
        node.push(topic, [b"a", b"b", b"c"], keys=[b"a", b"b", b"c"])
    return node


def partition_of(node: Node) -> Partition:
    (partition,) = node.fabric.kernel.shards[0].partitions.values()
    return partition


def thin(node: Node, base: int, mask: int) -> None:
    kernel, topic = node.fabric.kernel, partition_of(node).stream
    note = Thinned(topic, 0, base, mask.to_bytes(1, "little"))
    kernel.note(kernel.shards[0], note, Durability.SYNCED)
    node.tick()


def figures(node: Node) -> tuple[Any, ...]:
    partition = partition_of(node)
    thin = dict(partition.thin)
    return partition.live_messages, partition.bytes, partition.totals.messages, thin


def test_nothing_is_kept_of_a_batch_that_is_gone(node):
    thin(node, 0, 0b111)
    thin(node, 3, 0b010)
    thin(node, 6, 0b001)
    assert partition_of(node).thin == {3: 0b010, 6: 0b001}
    thin(node, 3, 0b101)  # in parts
    assert partition_of(node).thin == {6: 0b001}
    partition_of(node).trimmed(9)
    assert partition_of(node).thin == {}
    assert partition_of(node).live_messages == 3


def test_what_is_removed_again_changes_nothing(node):
    thin(node, 3, 0b111)
    thin(node, 6, 0b011)
    before = figures(node)
    for base, mask in ((3, 0b111), (3, 0b001), (6, 0b011), (6, 0b010)):
        thin(node, base, mask)
    assert figures(node) == before
    thin(node, 6, 0b111)  # one more row than before
    assert partition_of(node).live_messages == 6
    node.check()


def test_a_replay_comes_to_the_same_from_any_snapshot(node):
    taken: list[dict[str, bytes]] = [{}]
    for base, mask in ((0, 0b001), (3, 0b111), (0, 0b011), (6, 0b100), (0, 0b111), (3, 0b111)):
        thin(node, base, mask)
        taken.append(node.snapshot())
    expected = figures(node)
    assert expected[-1] == {6: 0b100}
    for snapshot in taken:
        assert figures(node.crash(snapshot)) == expected


def test_a_snapshot_that_has_rows_of_batches_that_are_gone_is_loaded_without(node):
    thin(node, 0, 0b111)
    thin(node, 3, 0b010)
    expected = figures(node)
    partition_of(node).thin |= {0: 0b111}  # as they were made once
    taken = node.snapshot()
    again = node.crash(taken)
    assert figures(again) == expected
    thin(again, 0, 0b111)
    assert figures(again) == expected
    again.check()
