"""Messages that are leased before they are visible: see `core.promises`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.harness import Answer, Node

from penstock.client.push import extra_bytes
from penstock.core.records import Kind
from penstock.errors import StorageError
from penstock.wire import messages as m
from penstock.wire.encode import encode_batch
from penstock.wire.frames import PUSH, PopMode, PushExtra, Verb, frame


@pytest.fixture
def node() -> Node:
    return Node(lazy=True)


def subscribed(node: Node, queue: int, credit: int = 10, connection: int = 1) -> int:
    request = node.pop(queue, credit, verb=Verb.SUBSCRIBE, connection=connection)
    node.answer(request, connection)
    return request


def delivered(node: Node) -> list[Answer]:
    return [each for each in node.inbox if each.verb == Verb.DELIVER]


def values(node: Node, queue: int, **more: int) -> list[tuple[bytes, int]]:
    return [(got.value, got.deliveries) for got in node.popped(queue, 10, **more)]


def counts(node: Node, queue: int) -> tuple[int, int]:
    figures = node.call(m.StreamStats(queue))
    return figures["ready"], figures["leased"]


def test_a_push_for_somebody_who_waits_is_one_commit(node: Node) -> None:
    queue = node.open("queue", "q")
    pop = node.pop(queue, wait_ms=1000)
    push = node.push(queue, [b"a"])
    assert [record.kind for record in node.journal[-2:]] == [Kind.PUSH, Kind.GRANT]
    assert not node.has_answer(pop), "nothing is seen before it is safe"
    node._commit([node.pending.popleft() for _ in range(2)])
    first, second = node.inbox
    assert (first.request, second.request) == (pop, push), "who waits longest is told first"
    assert [got.value for got in first.messages] == [b"a"]
    assert not node.pending
    assert counts(node, queue) == (0, 1)


def test_a_subscription_gets_what_it_has_credit_for(node: Node) -> None:
    queue = node.open("queue", "q")
    subscribed(node, queue, credit=3)
    for value in (b"a", b"b"):
        node.push(queue, [value])
    node.push(queue, [b"c", b"d"])  # more than there is credit for: it is cut when it is there
    node.push(queue, [b"e"])  # not before those
    node.commit()
    got = [got.value for answer in delivered(node) for got in answer.messages]
    assert got[:3] == [b"a", b"b", b"c"]
    assert b"e" not in got
    assert values(node, queue)[-1] == (b"e", 1)


@pytest.mark.parametrize("committed", [0, 1, 2])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_crash_finds_the_lease_with_the_messages(
    node: Node, committed: int, snapshot: bool
) -> None:
    queue = node.open("queue", "q")
    node.pop(queue, wait_ms=1000)
    node.push(queue, [b"a"])
    node.commit(committed)
    taken = node.snapshot() if snapshot else None
    node.commit()
    again = node.crash(taken)
    assert counts(again, queue) == (0, 1)
    again.tick(60_000_000)
    assert values(again, queue) == [(b"a", 2)]


def test_a_crash_that_lost_the_lease_finds_the_messages_ready(node: Node) -> None:
    queue = node.open("queue", "q")
    node.pop(queue, wait_ms=1000)
    node.push(queue, [b"a"])
    taken = node.snapshot()
    again = node.crash(taken, keep=len(node.journal) - 1)
    assert values(again, queue) == [(b"a", 1)]


@pytest.mark.parametrize("how", ["cancel", "disconnect"])
def test_who_is_gone_gets_nothing_and_others_do_at_once(node: Node, how: str) -> None:
    queue = node.open("queue", "q")
    node.connect(2)
    request = subscribed(node, queue, connection=2)
    node.push(queue, [b"a"])
    if how == "cancel":
        node.send(Verb.CANCEL, connection=2, request=request)
    else:
        node.fabric.disconnect(2)
    node.commit()
    assert not delivered(node)
    assert values(node, queue) == [(b"a", 1)], "a delivery that was none does not count"


def test_a_queue_that_is_deleted_meanwhile(node: Node) -> None:
    queue = node.open("queue", "q")
    subscribed(node, queue)
    node.push(queue, [b"a"])
    node.call(m.Delete("queue", "q"))
    node.commit()
    assert not delivered(node)
    assert not any(node.live.values())
    other = node.open("queue", "q")
    node.push(other, [b"b"])
    node.commit()
    assert values(node, other) == [(b"b", 1)]


def test_a_purge_meanwhile_does_not_take_what_is_promised(node: Node) -> None:
    queue = node.open("queue", "q")
    subscribed(node, queue)
    node.push(queue, [b"a"])
    node.call(m.Purge(queue))
    assert counts(node, queue) == (0, 1)
    assert counts(node.crash(), queue) == (0, 1)


def test_nothing_is_promised_out_of_turn(node: Node) -> None:
    queue = node.open("queue", "q")
    node.push(queue, [b"a"])  # on its way when somebody comes
    subscribed(node, queue, credit=1)
    node.push(queue, [b"b"])
    node.commit()
    [answer] = delivered(node)
    assert [got.value for got in answer.messages] == [b"a"]


@pytest.mark.parametrize("terms", [{"due_us": -1_000_000}, {"ttl_ms": 50}])
def test_what_is_not_to_be_had_at_once_is_not_promised(node: Node, terms: dict[str, Any]) -> None:
    queue = node.open("queue", "q")
    subscribed(node, queue)
    node.push(queue, [b"a"], **terms)
    assert node.journal[-1].kind == Kind.PUSH


def test_a_disk_that_refuses_tells_both_and_nobody_has_the_lease(node: Node) -> None:
    queue = node.open("queue", "q")
    pop = node.pop(queue, wait_ms=1000)
    push = node.push(queue, [b"a"])
    node.refuse()
    node.commit()  # it took both after all, when nobody waited any more
    for request in (pop, push):
        with pytest.raises(StorageError):
            node.answer(request).value()
    assert counts(node, queue) == (1, 0)
    assert values(node, queue) == [(b"a", 1)], "a delivery that was none does not count"


def test_a_release_of_what_is_delayed_outlives_a_crash(node: Node) -> None:
    queue = node.open("queue", "q")
    extra, shard = PushExtra(id=b"k"), node.fabric.kernel.place_of(b"k")
    node.push(queue, [b"a"], shard, extra=extra, due_us=-50_000_000)
    node.commit()
    assert node.call(m.Release(queue, [b"k"])) == ["released"]
    assert node.call(m.Release(queue, [b"k"])) == ["done"]
    again = node.crash()
    assert values(again, queue, mode=PopMode.PEEK) == [(b"a", 0)]
    assert values(again, queue) == [(b"a", 1)]


def awaited_by(
    node: Node, queue: int, size: int = 1, due_us: int = 0, extra: bytes = b""
) -> int | None:
    batch = encode_batch([bytes(size)], timestamp_us=1, due_us=due_us)
    body = PUSH.pack(queue, 0, 0, 0, len(extra)) + extra + bytes(batch)
    push = frame(Verb.PUSH, 1, 0, body)
    return node.fabric.pushes.promises.awaited_by(push)


@pytest.mark.parametrize("verb", [Verb.POP, Verb.SUBSCRIBE])
def test_who_will_get_a_push_is_known_before(node: Node, verb: Verb) -> None:
    queue = node.open("queue", "q", durability="written")
    node.connect(2)
    assert awaited_by(node, queue) is None, "nobody waits"
    node.pop(queue, 10, wait_ms=1000, verb=verb, connection=2)
    assert awaited_by(node, queue) == 2
    assert awaited_by(node, queue, 10_000) is None, "it takes longer than to wake up"
    assert awaited_by(node, queue, due_us=-20_000) is None, "it comes later"
    assert awaited_by(node, queue, due_us=20_000) is None
    assert awaited_by(node, queue, extra=extra_bytes(PushExtra(b"id", True))) is None, "it is held"
    assert awaited_by(node, queue + 1) is None
    assert node.fabric.pushes.promises.awaited_by(b"short") is None
    node.push(queue, [b"a"])
    assert awaited_by(node, queue) is None, "another comes first"
    node.commit()
    node.fabric.disconnect(2)
    assert awaited_by(node, queue) is None


@pytest.mark.parametrize("why", ["synced", "paused", "no credit", "ready"])
def test_who_is_not_told(node: Node, why: str) -> None:
    durability = "synced" if why == "synced" else "written"
    queue = node.open("queue", "q", durability=durability)
    node.connect(2)
    if why == "ready":
        node.push(queue, [b"a"])
        node.commit()
    subscribed(node, queue, credit=1, connection=2)
    if why == "paused":
        node.fabric.pause(2, True, node.now_us)
    if why == "no credit":
        node.push(queue, [b"a"])
        node.commit()
    assert awaited_by(node, queue) is None
