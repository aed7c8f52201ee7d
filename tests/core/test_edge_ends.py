"""The ends of edges in odd moments: ids that come twice at once, streams that are gone, and very
many edges at one place."""

from __future__ import annotations

import pytest
from tests.core.harness import Node
from tests.core.test_edges import Graph

from penstock.wire import messages as m
from penstock.wire.frames import PushExtra


@pytest.mark.parametrize("window_ms", [0, 1])
def test_an_id_is_known_before_its_message_is_committed(window_ms: int) -> None:
    """However short the queue's window: two messages would be one in what is known of them."""
    graph = Graph(Node(3, lazy=True), id_window_ms=window_ms)
    graph.node.commit()
    for sequence in range(2):
        txn = m.Transact(99, sequence, 0, holds=[graph.part(b"n0", {b"x"})])
        graph.node.send(9, m.pack(txn))
        graph.node.tick(1000)
    home = graph.node.fabric.kernel.shard_of(b"n0").id
    graph.node.push(graph.queue, [b"n0"], home, extra=PushExtra(b"n0", True))
    for node in (graph.node.crash(), graph.node):
        node.commit()
        assert node.call(m.StreamStats(graph.queue))["messages"] == 1
    graph.put(b"x")
    assert graph.ready() == {b"n0"}
    assert all(
        shard.queues[graph.queue].holds.bytes == 0
        for shard in graph.node.fabric.kernel.shards
        if graph.queue in shard.queues
    )
