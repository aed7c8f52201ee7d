"""Whoever waits for messages is woken by them, and told when there will be none."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import NotFoundError
from penstock.testing import memory_fabric


def test_a_parked_pop_gets_the_message_at_once() -> None:
    with memory_fabric() as fabric:
        queue = fabric.queue("q")
        found: list[bytes | None] = []

        def wait() -> None:
            message = queue.pop(timeout=30)
            found.append(None if message is None else message.value)

        waiter = threading.Thread(target=wait)
        waiter.start()
        queue.push(b"here")
        waiter.join(10)
        assert found == [b"here"]


def test_deleting_a_queue_ends_its_consumers() -> None:
    with memory_fabric() as fabric:
        queue = fabric.queue("q")
        consumer = iter(queue.consume())
        threading.Timer(0.05, queue.delete).start()
        with pytest.raises(NotFoundError, match="deleted"):
            next(consumer)


def test_deleting_a_queue_ends_parked_pops() -> None:
    with memory_fabric() as fabric:
        queue = fabric.queue("q")
        threading.Timer(0.05, queue.delete).start()
        with pytest.raises(NotFoundError, match="deleted"):
            queue.pop(timeout=4)


def test_deleting_a_topic_ends_those_who_follow_it() -> None:
    with memory_fabric() as fabric:
        topic = fabric.topic("t", partitions=1)
        threading.Timer(0.05, topic.delete).start()
        with pytest.raises(NotFoundError, match="deleted"):
            next(iter(topic.read(0, 0, follow=True)))


def test_deleting_a_table_ends_its_watches() -> None:
    with memory_fabric() as fabric:
        table = fabric.table("t")
        watch = iter(table.watch())
        threading.Timer(0.05, table.drop).start()
        with pytest.raises(NotFoundError, match="deleted"):
            next(watch)


def test_a_large_subscription_is_fed_a_little_at_a_time() -> None:
    """Who asks for everything at once does not make the node read everything at once."""
    with memory_fabric() as fabric:
        queue = fabric.queue("q")
        queue.push_many([bytes(100_000)] * 200, batch=2)
        with queue.consume_batches(idle_timeout=1.0, prefetch=1000) as deliveries:
            sizes = [sum(map(len, delivery.values)) for delivery in deliveries]
        assert sum(sizes) == 200 * 100_000
        assert max(sizes) <= 1280 << 10  # what a client asks for
