"""The ends of edges in odd moments: ids that come twice at once, streams that are gone, and very
many edges at one place."""

from __future__ import annotations

import pytest
from tests.core.harness import Node
from tests.core.test_edges import Graph

from penstock.core import edge_notes, edges, forwards, holds
from penstock.core.outbox import WatchKeys
from penstock.core.records import Edge, Forward, Watched
from penstock.errors import LimitError
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


def test_who_waits_for_one_entry_is_told_in_parts_that_fit_a_frame() -> None:
    """A part is a frame between nodes, which has a limit: one above it would never arrive."""
    graph = Graph(Node(1, lazy=True))
    key = b"k" * 1000
    for first in range(0, 3000, 100):
        graph.hold(*(graph.part(b"%0250d" % n, {key}) for n in range(first, first + 100)))
    graph.put(key, mark=1)
    graph.node.tick(1)
    graph.node.commit()
    assert graph.node.call(m.StreamStats(graph.queue))["messages"] == 0
    assert max(len(record.meta) for record in graph.node.journal) < 1_200_000


def test_what_is_told_in_parts_is_told_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_notes, "MAX_EDGES_BYTES", 60)
    monkeypatch.setattr(forwards, "MAX_MERGED_BYTES", 300)
    graph = Graph()
    names = [b"n%d" % number for number in range(8)]
    graph.hold(*(graph.part(name, {b"x", b"y", b"z"}) for name in names))
    graph.put(b"x")
    held = len(graph.node.journal)
    graph.put(b"y")
    graph.put(b"z")
    for kept in range(held, len(graph.node.journal) + 1):
        again = Graph(graph.node.crash(keep=kept))
        again.put(b"y")
        again.put(b"z")
        assert again.ready() == set(names)


def test_nobody_watches_for_a_queue_that_was_deleted_before_the_question_came() -> None:
    graph = Graph()
    shard = graph.node.fabric.kernel.shards[1]
    gone = WatchKeys([Edge(graph.table, b"x", 4711, b"n0"), Edge(4712, b"x", graph.queue, b"n0")])
    graph.node.fabric.forwards.carry_out(gone, shard, Forward(2, 0, 1))
    graph.node.tick()
    assert shard.watchers.snapshot() == []
    shard.noted(Watched(2, gone.edges, []), shard.last, graph.node.now_us)
    assert shard.watchers.snapshot() == [], "also if it is folded after the queue was deleted"


def watchers_of(graph: Graph) -> int:
    return sum(shard.watchers.messages for shard in graph.node.fabric.kernel.shards)


def test_messages_whose_time_is_over_do_not_take_the_room_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edges, "MAX_WATCHERS", 3)
    graph = Graph()
    graph.hold(*(graph.part(b"n%d" % number, {b"x"}, ttl_ms=10) for number in range(3)))
    with pytest.raises(LimitError):
        graph.hold(graph.part(b"n3", {b"x"}))
    graph.node.tick(20_000)
    graph.hold(graph.part(b"n4", {b"x"}))
    graph.put(b"x")
    assert graph.ready() == {b"n4"}
    assert watchers_of(graph) == 0


def test_entries_that_nobody_writes_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after a crash, which brings watchers back that were left out; they are told for nothing.
    """
    monkeypatch.setattr(holds, "SPARE_WATCHERS", 5)
    graph = Graph()
    graph.hold(graph.part(b"stays", {b"last", b"x0"}))
    for number in range(100):
        graph.hold(graph.part(b"n%d" % number, {b"x%d" % number, b"y%d" % number}, ttl_ms=1))
        graph.node.tick(2_000)
    assert watchers_of(graph) < 50
    graph.node = graph.node.crash()
    for key in (b"x0", b"x1", b"last"):
        graph.put(key)
    assert graph.ready() == {b"stays"}
    again = graph.node.crash()
    again.tick(1)
    assert again.call(m.StreamStats(graph.queue))["leased"] == 1
