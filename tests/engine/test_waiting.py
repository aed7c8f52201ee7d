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
