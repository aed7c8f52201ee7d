"""What leaves a queue for another shard: never anything that somebody was given, nothing twice, and
all nodes that fold the log agree on what is left."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.canonical import queue_state, state_of
from tests.core.harness import Got, Node

from penstock.core.outbox import read_part
from penstock.core.steals import Loot, Steals
from penstock.errors import ExistsError
from penstock.wire.batch import Batch
from penstock.wire.frames import PushExtra, Settle
from penstock.wire.messages import Configure, Release

SHARDS = 4
HERE = range(SHARDS - 1)  # shards that messages are pushed to
AWAY = SHARDS - 1  # where they go

_step = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 5), st.sampled_from([0, 0, 0, 9])),
    st.tuples(st.just("delay"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("hold"), st.just(1), st.just(0)),
    st.tuples(st.just("release"), st.just(0), st.just(0)),
    st.tuples(st.just("pop"), st.integers(1, 7), st.just(0)),
    st.tuples(st.just("settle"), st.integers(0, 5), st.sampled_from([Settle.ACK, Settle.NACK])),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
    st.tuples(st.just("steal"), st.integers(1, 4), st.booleans()),
)


class Queue:
    """A queue, what was pushed to it and what became of it."""

    def __init__(self, **options: object) -> None:
        self.node = Node(SHARDS)
        self.node.fabric.kernel.forwarding = True
        self.stream = self.node.open("queue", "q", **options)
        self.steals = Steals(self.node.fabric.queues, self.node.fabric.transactions)
        self.leased: list[Got] = []
        self.given: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.pushed: list[bytes] = []
        self.held: list[bytes] = []

    def step(self, what: str, count: int, more: int) -> None:
        node, stream = self.node, self.stream
        if what in ("push", "delay", "hold"):
            self._push(what, count, more)
        elif what == "release" and self.held:
            node.call(Release(stream, [self.held.pop()]))
        elif what == "pop":
            got = node.popped(stream, count)
            self.leased += got
            self.given.update(each.value for each in got)
        elif what == "settle" and self.leased:
            got_one = self.leased.pop(count % len(self.leased))
            if node.ack(stream, got_one, more).accepted and more == Settle.ACK:
                self.acked[got_one.value] += 1
        elif what == "wait":
            node.tick(2_000_000)
        elif what == "steal":
            self.steal(count, bool(more))

    def _push(self, what: str, count: int, priority: int) -> None:
        first = len(self.pushed)
        values = [b"%d" % number for number in range(first, first + count)]
        self.pushed += values
        extra = None
        shard = first % len(HERE)
        if what == "hold":
            extra = PushExtra(values[0], True)
            shard = self.node.fabric.kernel.place_of(values[0])
            self.held.append(values[0])
        due_us = -1_000_000 if what == "delay" else 0
        request = self.node.push(
            self.stream, values, shard, extra=extra, priority=priority, due_us=due_us
        )
        self.node.receipt(request)

    def steal(self, batches: int, late: bool = False) -> int:
        """`late`: somebody pops between the decision and the record."""
        loot = self.lying()[:batches]
        pairs = [(each, self.node.batches[each.stored.location]) for each in loot]
        if late:
            self.step("pop", 2, 0)
        moved = self.steals.move(self.stream, AWAY, pairs)
        self.node._carry_out()
        return moved

    def lying(self) -> list[Loot]:
        return [each for each in self.steals.lying(self.stream) if each.shard != AWAY]

    def on_the_way(self) -> list[bytes]:
        found: list[bytes] = []
        for shard in self.node.fabric.kernel.shards:
            for packed in shard.outbox.first(AWAY, 1 << 40, 1000, 1 << 30):
                batch = Batch.parse(bytearray(read_part(packed).batch))  # type: ignore[union-attr]
                assert batch.header.producer == 0
                found += batch.values
        return found

    def left(self) -> int:
        shards = self.node.fabric.kernel.shards
        return sum(shard.queues[self.stream].messages for shard in shards if shard.queues)


@given(st.lists(_step, max_size=30))
def test_each_message_is_in_one_place_and_all_who_fold_the_log_agree(steps):
    queue = Queue(lease_ms=600_000, max_deliveries=100)
    for step in steps:
        queue.step(*step)
    away = queue.on_the_way()
    assert len(set(away)) == len(away)
    assert not queue.given & set(away), "somebody was given it before"
    assert queue.left() + len(away) + queue.acked.total() == len(queue.pushed)
    queue.node.check()
    for shard in queue.node.fabric.kernel.shards:
        for part in shard.queues.values():
            queue_state(part)
    before = state_of(queue.node.fabric, timed=False)
    snapshot = queue.node.snapshot()
    for after in (queue.node.crash(owns=False), queue.node.crash(snapshot, owns=False)):
        assert state_of(after.fabric, timed=False) == before
        waiting = [shard.outbox.snapshot() for shard in after.fabric.kernel.shards]
        assert waiting == [shard.outbox.snapshot() for shard in queue.node.fabric.kernel.shards]


def test_the_first_to_be_popped_go_first():
    queue = Queue()
    for step in (("push", 2, 0), ("push", 3, 0), ("push", 1, 9)):
        queue.step(*step)
        queue.node.tick(1000)
    assert [each.span for each in queue.lying()] == [1, 2, 3]
    assert queue.steal(2) == 3
    assert queue.on_the_way() == [b"0", b"1", b"5"]


def test_the_rest_of_a_batch_goes_with_all_that_its_messages_have():
    queue = Queue()
    request = queue.node.push(
        queue.stream, [b"a", b"b", b"c"], keys=[b"k", None, b"m"], priority=3, ttl_ms=9000,
        timestamps_us=[1, 2, 3], headers=[{}, {"h": b"1"}, {}], producer=5,
    )  # fmt: skip
    queue.node.receipt(request)
    queue.step("pop", 1, 0)
    queue.node.tick(4_000_000)
    assert queue.steal(1) == 2
    (packed,) = queue.node.fabric.kernel.shards[0].outbox.first(AWAY, 1 << 40, 1000, 1 << 30)
    batch = Batch.parse(bytearray(read_part(packed).batch))  # type: ignore[union-attr]
    assert [(row.value, row.key, row.timestamp_us, row.headers) for row in batch] == [
        (b"b", None, 2, {"h": b"1"}),
        (b"c", b"m", 3, {}),
    ]
    assert (batch.header.priority, batch.header.ttl_ms) == (3, 5000)


def test_a_full_outbox_keeps_messages_where_they_are(monkeypatch):
    queue = Queue()
    monkeypatch.setattr("penstock.core.outbox.MAX_OUTSTANDING_PARTS", 1)
    queue.step("push", 2, 0)
    queue.step("push", 2, 0)
    assert queue.steal(1) == 2
    queue.step("push", 2, 0)
    queue.step("push", 2, 0)
    assert queue.left() == 6
    assert sum(queue.steal(1) for _ in range(4)) <= 4  # one for each shard that has room
    assert queue.left() + len(queue.on_the_way()) == 8


@pytest.mark.parametrize("options", [{"ordered": "queue"}, {"ordered": "key"}, {"stealing": False}])
def test_what_must_stay_stays(options):
    queue = Queue(**options)
    assert not queue.steals.may_leave(queue.stream)
    assert not queue.steals.may_leave(queue.stream + 1)


def test_the_setting_is_kept_compared_and_changed():
    queue = Queue(stealing=False)
    node = queue.node
    assert node.open("queue", "q", stealing=False) == queue.stream
    with pytest.raises(ExistsError):
        node.open("queue", "q", stealing=True)
    assert "stealing" not in node.call(Configure(queue.stream, {"stealing": True}))["options"]
    assert queue.steals.may_leave(queue.stream)
    assert node.open("queue", "q", stealing=True) == queue.stream
