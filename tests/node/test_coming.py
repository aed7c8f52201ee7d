"""A client that waits is told that something will come: see `Connection.wake` of the server."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.node.early_answers import compiled
from tests.node.raw import RawClient

from penstock.machine import may_spin
from penstock.wire.frames import COMING, POP, Verb, frame

pytestmark = [
    compiled,
    pytest.mark.skipif(not may_spin(), reason="the node keeps no core awake here"),
]


def subscribed(node: NodeProcess, name: str, **kind: bool) -> RawClient:
    features = [COMING] if kind.get("waking", True) else []
    client = RawClient(node.address, features=features, near=kind.get("near", True))
    queue = client.open(name)
    client.request(Verb.SUBSCRIBE, POP.pack(queue["id"], 10, 1 << 20, 0, 0, 0))
    return client


def test_who_waits_is_told_before_the_message_comes(node: NodeProcess) -> None:
    with node.connect() as fabric:
        queue = fabric.queue("q", durability="written")
        with subscribed(node, "q") as client:
            queue.push(b"one")
            assert [client.next_frame()[0] for _ in range(2)] == [Verb.COMING, Verb.DELIVER]


@pytest.mark.parametrize("kind", [{"waking": False}, {"near": False}], ids=["silent", "far"])
def test_others_are_not_told(node: NodeProcess, kind: dict[str, bool]) -> None:
    with node.connect() as fabric:
        queue = fabric.queue("q", durability="written")
        with subscribed(node, "q", **kind) as client:
            for _ in range(5):
                queue.push(b"one")
                assert client.next_frame()[0] == Verb.DELIVER


def test_who_waits_for_a_sync_is_not_told(node: NodeProcess) -> None:
    with node.connect() as fabric:
        queue = fabric.queue("q")
        with subscribed(node, "q") as client:
            for _ in range(5):
                queue.push(b"one")
                assert client.next_frame()[0] == Verb.DELIVER


@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_what_follows_is_read_as_it_was_sent(node: NodeProcess, delay: float) -> None:
    """Also what is large, and was there before the consumer looked."""
    large = [b"A" * 500_000, frame(Verb.DELIVER, 9, 0, b"x" * 284) * 1000]
    with node.connect() as producer, node.connect() as consumer:
        queue, found = producer.queue("q", durability="written"), []
        queue.push(b"first")
        for message in consumer.queue("q", create=False).consume(idle_timeout=5.0, prefetch=10):
            found.append(message.value)
            message.ack()
            if len(found) == 31:
                break
            if len(found) % 3 == 1:  # the consumer is busy meanwhile
                queue.push(b"small", delay=delay)
                for value in large:
                    queue.push(value)
    assert Counter(found) == Counter([b"first", *[b"small", *large] * 10])
