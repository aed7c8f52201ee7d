"""A client that waits is told that something will come: see `Connection.wake` of the server."""

from __future__ import annotations

import pytest
from tests.node.conftest import NodeProcess
from tests.node.conftest import node as node
from tests.node.early_answers import compiled
from tests.node.raw import RawClient

from penstock.machine import may_spin
from penstock.wire.frames import COMING, POP, Verb

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
