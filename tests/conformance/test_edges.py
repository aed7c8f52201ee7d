"""Messages that are held until entries of tables exist: the same scripts everywhere."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from tests.conformance.conftest import refuses
from tests.node.test_cluster import wait_for

from penstock import Hold
from penstock.errors import ClosedError, InvalidError

PARENTS = [b"p%02d" % each for each in range(12)]


def values_of(queue, most: int = 100) -> list[bytes]:
    """All that is ready, acknowledged."""
    found = queue.pop_many(most)
    if found:
        queue.ack(found)
    return sorted(message.value for message in found)


def ready(queue, count: int) -> list[bytes]:
    """Waits until so many messages are ready, and takes them."""
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(values_of(queue))
        return len(found) >= count

    wait_for(enough)
    return sorted(found)


def test_a_message_waits_for_all_its_entries(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    queue.hold(b"child", id="c", after=[(table, key) for key in PARENTS])
    for key in PARENTS[:-1]:
        table.put(key, b"done")
        assert queue.pop() is None
    wait_for(lambda: queue.held("c").count == 1)
    assert queue.held("c").edges == [("t", PARENTS[-1])]
    assert queue.stats()["held"] == 1
    table.put(PARENTS[-1], b"done")
    assert ready(queue, 1) == [b"child"]
    assert queue.held("c") is None
    assert queue.stats()["messages"] == 0


def test_entries_that_are_there_already_count(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    table.put("a", b"1")
    queue.hold(b"one", id="one", after=[(table, "a")])
    queue.hold(b"none", id="none")
    queue.hold(b"two", id="two", after=[(table, "a"), (table, "b")])
    assert ready(queue, 2) == [b"none", b"one"]
    table.delete("a")  # does not bring the edge back
    wait_for(lambda: queue.held("two").count == 1)
    table.put("b", b"1")
    assert ready(queue, 1) == [b"two"]


def test_an_id_is_held_once(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    for _ in range(3):
        queue.hold(b"v", id="c", after=[(table, "a")])
    table.put("a", b"1")
    assert ready(queue, 1) == [b"v"]
    queue.hold(b"v", id="c", after=[(table, "b")])
    assert queue.stats()["messages"] == 0
    assert queue.release(["c"]) == ["done"]


def test_released_by_hand(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    queue.hold(b"v", id="c", after=[(table, "a")])
    assert queue.release(["c"]) == ["released"]
    assert ready(queue, 1) == [b"v"]
    table.put("a", b"1")
    assert queue.pop(timeout=0.2) is None


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_failure_travels_along_the_edges(fabric, policy):
    queue, table, topic = fabric.queue("q"), fabric.table("t"), fabric.topic("r", partitions=2)
    names = [f"task-{number}" for number in range(6)]
    for parent, name in pairwise(names):
        instead = fabric.transaction()
        instead.put(table, name, b"not run", mark="failed" if policy == "fail" else "skipped")
        instead.publish(topic, name.encode(), partition=1)
        queue.hold(b"v", id=name, after=[(table, parent)], on_failure=policy, fallback=instead)
    queue.hold(b"cleanup", id="last", after=[(table, name) for name in names], on_failure="run")
    table.put(names[0], b"it broke", mark="failed")
    assert ready(queue, 1) == [b"cleanup"]
    assert table.entry(names[-1]).mark == (1 if policy == "fail" else 2)
    wait_for(lambda: topic.offsets()[1][1] == 5)
    assert queue.stats()["messages"] == 0


def test_time_to_live_ends_a_held_message(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    instead = fabric.transaction()
    instead.put(table, "c", b"too late", mark="failed")
    queue.hold(b"v", id="c", after=[(table, "never")], fallback=instead, ttl=0.3)
    wait_for(lambda: table.get("c") == b"too late")
    wait_for(lambda: queue.stats()["messages"] == 0)


def test_in_a_transaction(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    queue.push(b"parent")
    work = queue.pop(timeout=5)
    done = fabric.transaction()
    done.ack(work)
    done.put(table, "parent", b"1")
    done.hold(queue, b"child", id="child", after=[(table, "parent"), (table, "other")])
    done.commit()
    wait_for(lambda: queue.held("child") is not None and queue.held("child").count == 1)
    table.put("other", b"1")
    assert ready(queue, 1) == [b"child"]


def test_many(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    told: list[int] = []
    chain = [
        Hold(b"%d" % n, b"n%d" % n, [(table, b"n%d" % (n - 1)), (table, b"root")])
        for n in range(1, 300)
    ]
    assert queue.hold_many(chain, progress=told.append) == 299
    assert told[-1] == 299
    assert queue.stats()["held"] == 299
    table.put(b"root", b"1")
    table.put(b"n0", b"1")
    for number in range(1, 20):
        assert ready(queue, 1) == [b"%d" % number]
        table.put(b"n%d" % number, b"1")


def test_what_is_refused(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    for wrong in ({"after": [("t", "a")]}, {"on_failure": "perhaps"}, {"id": ""}):
        with pytest.raises(InvalidError):
            queue.hold(b"v", **{"id": "c", **wrong})
    with pytest.raises(InvalidError):
        table.put("a", b"v", mark="perhaps")
    used = fabric.transaction()
    used.put(table, "c", b"v")
    queue.hold(b"v", id="c", after=[(table, "a")], fallback=used)
    with pytest.raises(ClosedError):
        used.commit()
    ordered = fabric.queue("o", ordered=True)
    with pytest.raises(InvalidError):
        ordered.hold(b"v", id="c", after=[(table, "a")])
    other = fabric.table("gone")
    other.drop()
    refuses(lambda: queue.hold(b"v", id="d", after=[(other, "a")]))
    assert queue.held("d") is None


def test_watchers_of_a_deleted_table_wait_until_they_are_released(fabric):
    queue, table = fabric.queue("q"), fabric.table("t")
    queue.hold(b"v", id="c", after=[(table, "a")])
    time.sleep(0.2)
    table.drop()
    again = fabric.table("t")
    again.put("a", b"1")
    assert queue.pop(timeout=0.2) is None
    assert queue.release(["c"]) == ["released"]
    assert ready(queue, 1) == [b"v"]
