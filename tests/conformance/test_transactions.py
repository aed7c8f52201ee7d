"""Settling leased messages inside a transaction: with what comes of them, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError, LeaseLostError

LONG_S = 10.0


def taken(queue: Any, count: int) -> Any:
    """A delivery of so many messages, of one batch."""
    queue.push_many([b"%d" % each for each in range(count)], batch=count)
    delivery = queue.pop_batch(count, timeout=LONG_S)
    assert len(delivery) == count
    return delivery


def counts(queue: Any) -> tuple[int, int]:
    figures = queue.stats()
    return figures["messages"], figures["dead"]


def test_some_rows_are_acked_and_others_given_up_with_their_outcome(fabric):
    queue, log = fabric.queue("q"), fabric.topic("log", 4)
    delivery = taken(queue, 9)
    with fabric.transaction() as together:
        together.ack(delivery, rows=[0, 2, 4, 8])
        together.dead(delivery, rows=[1, 3])
        together.publish_many(log, [b"done", b"failed"], keys=[b"a", b"b"], partition=2)
    assert counts(queue) == (5, 2)
    assert sorted(each.value for each in queue.dead.peek(9)) == [b"1", b"3"]
    batches = log.subscribe(start="start", idle_timeout=LONG_S, batches=True)
    partition, batch = next(iter(batches))
    assert (partition, list(batch.values)) == (2, [b"done", b"failed"])
    assert list(batch.keys) == [b"a", b"b"]
    delivery.ack(wait=True, rows=[5, 6, 7])
    assert counts(queue) == (2, 2)


def test_one_row_that_is_settled_refuses_all(fabric):
    queue, out = fabric.queue("q"), fabric.queue("out")
    delivery = taken(queue, 6)
    delivery.ack(wait=True, rows=[3])
    late = fabric.transaction()
    late.ack(delivery, rows=[1, 5])
    late.dead(delivery, rows=[3])
    late.push(out, b"x")
    with pytest.raises(LeaseLostError):
        late.commit()
    assert counts(queue) == (5, 0)
    assert out.pop() is None


def test_rows_belong_to_deliveries(fabric):
    queue = fabric.queue("q")
    queue.push(b"x")
    message = queue.pop(timeout=LONG_S)
    with pytest.raises(InvalidError):
        fabric.transaction().ack(message, rows=[0])


def test_the_leases_of_some_rows_are_extended(fabric):
    queue = fabric.queue("q", lease=2.0)
    delivery = taken(queue, 4)
    delivery.ack(wait=True, rows=[1])
    delivery.extend(60.0, rows=[0, 2])
    with pytest.raises(LeaseLostError):
        delivery.extend(60.0, rows=[1])
    delivery.ack(wait=True, rows=[0, 2, 3])
