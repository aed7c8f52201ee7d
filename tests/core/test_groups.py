"""What groups keep in a partition: states are bounded; renewals and looks cost no record."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Node

from penstock.core.partition import MAX_STATES_BYTES
from penstock.errors import FencedError, InvalidError, LimitError, TooLargeError
from penstock.wire import messages as m
from penstock.wire.limits import MAX_STATE_BYTES, MAX_STATES

LARGEST = bytes(MAX_STATE_BYTES)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def topic(node: Node) -> int:
    return node.open("topic", "t", partitions=3)


def look(node: Node, topic: int, group: str, *partitions: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.call(m.Claims(topic, group, list(partitions), True))
    return found


def test_states_of_a_partition_are_bounded(node, topic):
    for number in range(MAX_STATES_BYTES // MAX_STATE_BYTES):
        node.call(m.Commit(topic, f"g{number}", [(0, 0, 0)], [LARGEST]))
    with pytest.raises(LimitError):
        node.call(m.Commit(topic, "another", [(1, 0, 0), (0, 0, 0)], [b"x", b"x"]))
    assert look(node, topic, "another", 1)[0]["offset"] is None, "all or none"
    node.call(m.Commit(topic, "another", [(0, 0, 0)]))
    node.call(m.Commit(topic, "g0", [(0, 0, 0)], [LARGEST[:-1] + b"x"]))
    node.call(m.Commit(topic, "g1", [(0, 0, 0)]))
    node.call(m.Commit(topic, "another", [(0, 0, 0)], [b"x"]))
    again = node.crash(node.snapshot())
    assert [each["state"] for each in look(again, topic, "another", 0)] == [b"x"]
    part = again.fabric.topics.partition(topic, 0)
    assert part.states_bytes == sum(map(len, part.states.values()))


def test_a_state_in_a_transaction_is_checked_like_any(node, topic):
    home = node.fabric.kernel.streams[topic].info.placement[0]
    large = m.Transact(9, 0, home, commits=[m.TxnCommit(topic, 0, "g", 0, 0, LARGEST + b"x")])
    with pytest.raises(TooLargeError):
        node.call(large)
    node.call(m.Claim(topic, 0, "g", "me", 1000))
    late = m.Transact(9, 0, home, commits=[m.TxnCommit(topic, 0, "g", 0, 7, b"late")])
    with pytest.raises(FencedError):
        node.call(late)
    assert look(node, topic, "g", 0)[0]["state"] == b""


def test_a_state_for_each_offset_or_none(node, topic):
    with pytest.raises(InvalidError):
        node.call(m.Commit(topic, "g", [(0, 0, 0)], [b"x", b"y"]))


def test_states_are_told_of_so_many_partitions_at_a_time(node):
    wide = node.open("topic", "wide", partitions=MAX_STATES + 1)
    with pytest.raises(LimitError):
        node.call(m.Claims(wide, "g", None, True))
    assert len(node.call(m.Claims(wide, "g"))) == MAX_STATES + 1
    assert len(look(node, wide, "g", *range(MAX_STATES))) == MAX_STATES


def test_renewals_and_looks_write_nothing(node, topic):
    token = node.call(m.Claim(topic, 0, "g", "me", 1000))["token"]
    records = len(node.journal)
    for _ in range(5):
        node.tick(900_000)
        assert node.call(m.Renew(topic, "g", "me", [(0, token), (1, token)])) == [True, False]
    assert look(node, topic, "g", 0)[0]["left_ms"] == 1000
    assert len(node.journal) == records


def test_states_wait_until_all_nodes_of_a_cluster_keep_them(node, topic):
    node.fabric.kernel.shared = True
    with pytest.raises(InvalidError):
        node.call(m.Commit(topic, "g", [(0, 0, 0)], [b"x"]))
    node.fabric.kernel.forwarding = True
    node.call(m.Commit(topic, "g", [(0, 0, 0)], [b"x"]))


def test_a_snapshot_from_before_there_were_states_can_be_read(node, topic):
    node.call(m.Claim(topic, 0, "g", "me", 1000))
    node.call(m.Commit(topic, "g", [(0, 0, 1)], [b"x"]))
    part = node.fabric.topics.partition(topic, 0)
    data = part.snapshot()
    del data["states"], data["reserved"]
    old = type(part).restore(topic, 0, part.options, part.totals, data)
    assert (old.commits, old.states, old.claims["g"].token) == ({"g": 0}, {}, 1)


def test_long_names_are_refused(node, topic):
    with pytest.raises(InvalidError):
        node.call(m.Claim(topic, 0, "g", "x" * 201, 1000))
    token = node.call(m.Claim(topic, 0, "g", "me", 1000))["token"]
    with pytest.raises(InvalidError):
        node.call(m.Unclaim(topic, 0, "g", token, "x" * 201, 10))
