"""Leases that the disk refused, and took later: nobody has them, unless whoever subscribed is there
still."""

from __future__ import annotations

import pytest
from tests.core.harness import Node

from penstock.errors import MovedError, StorageError
from penstock.wire import messages as m
from penstock.wire.frames import Verb


@pytest.fixture
def node() -> Node:
    """With a message in each of two shards, in a queue whose messages are delivered once."""
    node = Node(lazy=True)
    node.open("queue", "q", max_deliveries=1)
    for shard in range(2):
        node.push(1, [b"%d" % shard], shard)
    node.commit()
    node.inbox.clear()
    return node


def counts(node: Node) -> tuple[int, int, int]:
    figures = node.call(m.StreamStats(1))
    return figures["ready"], figures["leased"], figures["dead"]


def values(node: Node) -> list[tuple[bytes, int]]:
    return sorted((got.value, got.deliveries) for got in node.popped(1, 10))


@pytest.mark.parametrize("before", [0, 1])
def test_a_pop_gives_back_all_of_its_leases(node: Node, before: int) -> None:
    pop = node.pop(1, 10)
    node.commit(before)  # of one of the two
    node.refuse()
    node.refuse()  # it was tried again
    with pytest.raises(StorageError):
        node.answer(pop).value()
    node.commit()
    assert not node.inbox, "it is told once"
    assert counts(node) == (2, 0, 0)
    again = node.crash()
    for each in (node, again):
        assert values(each) == [(b"0", 1), (b"1", 1)]


def test_whoever_waits_gets_what_a_pop_was_refused(node: Node) -> None:
    node.pop(1, 10)
    waiting = node.pop(1, 10, wait_ms=1000)
    node.refuse()
    node.commit()
    assert node.answer(waiting).messages


def lose(node: Node, shard: int) -> None:
    """Another node owns a shard now, as one of a cluster hears it."""
    node.fabric.end_shard(node.fabric.kernel.shards[shard])
    for entry in [each for each in node.pending if each.shard == shard]:
        node.pending.remove(entry)
        entry.answer = entry.done = None
        if entry.failed is not None:
            entry.failed(MovedError("it has another owner now"))
    node.tick()


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("verb", [Verb.POP, Verb.SUBSCRIBE])
def test_the_new_owner_of_a_shard_hears_of_leases_that_were_refused_before(
    node: Node, verb: Verb, shard: int
) -> None:
    told: list[int] = []
    node.fabric.queues.undelivered.on_lost = lambda lost, *_: told.append(lost)
    node.fabric.kernel.shared = node.fabric.kernel.edges = True  # in a cluster, of new nodes
    node.pop(1, 10, verb=verb)
    node.refuse()
    node.refuse()
    node.inbox.clear()
    lose(node, shard)
    node.commit()
    assert set(told) == {shard}
    (other,) = node.fabric.queues.view(1).shards.values()
    if verb == Verb.SUBSCRIBE:  # somebody is there to take what is still here
        (delivered,) = node.inbox
        assert [got.shard for got in delivered.messages] == [other.shard]
    else:
        assert not node.inbox
        assert (other.ready, other.leases.messages) == (1, 0)


def test_a_queue_that_is_deleted_meanwhile(node: Node) -> None:
    node.pop(1, 10)
    node.refuse()
    node.call(m.Delete("queue", "q"))
    node.commit()
    assert not any(node.live.values())


def test_a_subscription_gets_its_messages_late(node: Node) -> None:
    node.pop(1, 10, verb=Verb.SUBSCRIBE)
    node.refuse()
    node.commit()
    delivered = [each for each in node.inbox if each.verb == Verb.DELIVER]
    assert sorted(got.value for each in delivered for got in each.messages) == [b"0", b"1"]
    assert counts(node) == (0, 2, 0)


def test_a_subscription_that_is_over_gives_its_messages_back(node: Node) -> None:
    node.connect(2)
    node.pop(1, 10, verb=Verb.SUBSCRIBE, connection=2)
    node.refuse()
    node.fabric.disconnect(2)
    node.commit()
    assert counts(node) == (2, 0, 0)
    assert values(node) == [(b"0", 1), (b"1", 1)]
