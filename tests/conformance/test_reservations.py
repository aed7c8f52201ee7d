"""Reservations: the same scripts everywhere; what one holds never changes, and ends once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.node.test_cluster import wait_for

from penstock.errors import ConflictError, NotFoundError


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % each for each in range(start, start + count)]


def read(queue: Any, key: str, reservation: Any) -> list[bytes]:
    found: list[bytes] = []
    for part in reservation.parts:
        batches = list(queue.reserved(key, reservation.number, part))
        rows = [value for batch in batches for value in batch.values]
        assert len(rows) == part.messages
        found += rows
    return sorted(found)


def drained(queue: Any) -> list[bytes]:
    found: list[bytes] = []
    while batch := queue.pop_many(100):
        found += [message.value for message in batch]
        queue.ack(batch, wait=True)
    return found


def test_it_is_read_again_and_again_and_finished_once(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(1000), batch=30)
    for value in values(40, 1000):
        queue.push(value)
    first = queue.reserve("job", 1, max_messages=10_000)
    assert first.messages == 1040
    assert queue.pop() is None
    assert queue.stats()["leased"] == queue.stats()["reserved"] == 1040
    queue.push_many(values(100, 2000), batch=10)
    assert queue.reserve("job", 1) == first
    for _ in range(2):
        assert read(queue, "job", first) == sorted(values(1040))
    second = queue.reserve("job", 2, max_messages=30)
    assert 0 < second.messages <= 60
    kept = read(queue, "job", second)
    assert [each.number for each in queue.reservations()] == [1, 2]
    assert queue.finish("job", 1) == 1040
    assert queue.finish("job", 1) == 0
    with pytest.raises(ConflictError):
        queue.reserve("job", 1)
    assert read(queue, "job", second) == kept
    assert wait_for(lambda: queue.stats()["messages"] == 100)
    assert sorted(drained(queue) + kept) == sorted(values(100, 2000))


def test_an_operator_has_it_back(fabric):
    queue = fabric.queue("q")
    queue.push_many(values(50), batch=5)
    held = queue.reserve("job", 1)
    assert queue.unreserve("job", [2]) == 0
    assert queue.unreserve("job") == held.messages == 50
    found: list[bytes] = []
    assert wait_for(lambda: len(found.__iadd__(drained(queue))) == 50)
    assert sorted(found) == sorted(values(50))
    assert queue.finish("job", 1) == 0
    with pytest.raises(NotFoundError):
        read(queue, "job", held)
    assert queue.reservations() == []


def test_nothing_uses_up_no_number(fabric):
    queue = fabric.queue("q")
    assert queue.reserve("job", 1) is None
    queue.push(b"a")
    held = queue.reserve("job", 1)
    assert read(queue, "job", held) == [b"a"]
    assert queue.reserve("other", 1) is None
    assert queue.finish("job", 7) == 1
    with pytest.raises(ConflictError):
        queue.reserve("job", 7)


def test_large_messages_are_read_in_pieces(fabric):
    queue = fabric.queue("q")
    large = [bytes([each]) * 700_000 for each in range(24)]
    queue.push_many(large, batch=3)
    held = queue.reserve("job", 1)
    assert read(queue, "job", held) == large
    queue.finish("job", 1)
