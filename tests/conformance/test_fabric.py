"""The fabric as a whole, and that no public method is left out of these scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock.errors import ClosedError

# Transactions and sessions have tests of their own in a cluster, tasks have a folder (tests/tasks);
# `all_of` is how messages are made.
ELSEWHERE = {"transaction", "session", "tasks", "all_of"}
KINDS = [
    penstock.Fabric,
    penstock.Queue,
    penstock.DeadLetters,
    penstock.Message,
    penstock.Delivery,
    penstock.Topic,
    penstock.TopicConsumer,
    penstock.NamedProducer,
    penstock.Table,
    penstock.Watcher,
]


def test_streams_are_listed_and_deleted_by_name(fabric):
    for name in ("b", "a"):
        fabric.queue(name)
        fabric.topic(name, 3)
        fabric.table(name)
    for listed in (fabric.queues, fabric.topics, fabric.tables):
        assert [info.name for info in listed()] == ["a", "b"]
    assert len(fabric.topics()[0].placement) == 3
    deletes = (fabric.delete_queue, fabric.delete_topic, fabric.delete_table)
    for delete in deletes:
        assert [delete("a"), delete("a"), delete("b")] == [True, False, True]
    assert (fabric.queues(), fabric.topics(), fabric.tables()) == ([], [], [])


def test_namespaces_are_apart(connect, request):
    where = request.node.callspec.params["connect"][0]
    if where == "embedded":
        pytest.skip("a directory is opened once, with one namespace")
    names = [f"{request.node.name}-{each}".replace("[", "-").replace("]", "") for each in "ab"]
    first, second = map(connect, names)
    assert (first.namespace, second.namespace) == tuple(names)
    first.queue("q").push(b"x")
    assert second.queue("q").pop() is None
    assert first.queue("q").pop().value == b"x"
    assert first.shards == second.shards == 256


def test_figures_of_the_fabric(fabric):
    before = fabric.stats()
    fabric.queue("q").push_many([b"%d" % each for each in range(90)], batch=1)
    fabric.topic("t", 5).publish_many([b"%d" % each for each in range(50)], batch=5)
    fabric.table("s").put("k", b"v")
    after = fabric.stats()
    grown = {name: after[name] - before[name] for name in ("queues", "topics", "tables")}
    assert grown == {"queues": 1, "topics": 1, "tables": 1}
    assert after["messages"] - before["messages"] == 140
    assert (after["damaged"], after["refusing"]) == (0, None)
    assert after["connections"] >= 1


def test_a_closed_fabric_says_so(connect):
    fabric = connect("closed")
    queue = fabric.queue("q")
    fabric.close()
    with pytest.raises(ClosedError):
        queue.push(b"x")
    fabric.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_name_is_used_here(kind):
    folder = Path(__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    names = {name for name in dir(kind) if not name.startswith("_")} - ELSEWHERE
    unused = [name for name in sorted(names) if not re.search(rf"\.{name}\b", text)]
    assert unused == []
