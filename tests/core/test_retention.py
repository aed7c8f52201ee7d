"""Retention is a record like any other: messages are gone once that is safe, and stay gone."""

from __future__ import annotations

import pytest
from tests.core.harness import Node

from penstock.core.topics import RETENTION_EVERY_US, RETENTION_TURNS
from penstock.errors import NotFoundError
from penstock.wire import messages as m

KEPT_MS = 5_000


def aged() -> tuple[Node, int]:
    """A lazy node with a topic whose messages are past their time; nobody has looked yet."""
    node = Node(1, lazy=True)
    topic = node.open("topic", "t", partitions=1, retention_ms=KEPT_MS)
    for value in (b"a", b"b"):
        node.push(topic, [value])
        node.commit()
    return node, topic


def look(node: Node) -> None:
    for _ in range(RETENTION_TURNS):
        node.tick(RETENTION_EVERY_US)


def bounds(node: Node, topic: int) -> list[list[int]]:
    found: list[list[int]] = node.call(m.Offsets(topic, [0]))
    return found


def test_what_is_not_safe_yet_is_not_gone():
    node, topic = aged()
    look(node)
    assert [entry.kind for entry in node.pending], "nobody looked"
    before = len(node.journal) - 1
    assert bounds(node, topic) == [[0, 2]]
    assert node.answer(node.fetch(topic, 0, 0)).fetched == (0, 2, [(0, b"a"), (1, b"b")])
    again = node.crash(keep=before)
    assert bounds(again, topic) == [[0, 2]]
    look(again)
    again.commit()
    assert bounds(again, topic) == [[2, 2]]


def test_it_is_logged_once_while_the_disk_does_not_answer():
    node, topic = aged()
    for _ in range(3):
        look(node)
    assert len(node.pending) == 1
    node.commit()
    assert bounds(node, topic) == [[2, 2]]
    with pytest.raises(NotFoundError, match="is gone; the first is 2"):
        node.answer(node.fetch(topic, 0, 0)).value()
    node.check()


def test_a_snapshot_that_was_taken_meanwhile_does_not_forget_it():
    node, topic = aged()
    look(node)
    taken = node.snapshot()
    node.commit()
    assert bounds(node.crash(taken), topic) == [[2, 2]]


def test_a_topic_that_was_deleted_meanwhile_stays_so():
    node, topic = aged()
    look(node)
    node.call(m.Delete("topic", "t"))
    node.commit()
    assert topic not in node.fabric.kernel.streams
    node.check()
