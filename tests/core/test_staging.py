"""Staging and publishing: invisible before, all of it after, once for a key and number, whatever
crash comes between."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.canonical import state_of
from tests.core.harness import Node

from penstock.core import staging
from penstock.core.publications import KEPT_US
from penstock.errors import (
    ConflictError,
    InvalidError,
    LimitError,
    NotFoundError,
)
from penstock.wire import messages as m
from penstock.wire.frames import PushExtra

HOUR_US = 3_600_000_000
SHARDS = 4


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Stager:
    """A node with a queue and a topic, and what was staged there."""

    def __init__(self, node: Node | None = None, **queue: object) -> None:
        self.node = node or Node(SHARDS)
        if node is None:
            self.queue = self.node.open("queue", "q", **queue)
            self.topic = self.node.open("topic", "t", partitions=2)
        self.staged: dict[int, dict[int, int]] = {}  # stage: shard: messages

    def after(self, node: Node) -> Stager:
        other = Stager(node)
        other.queue, other.topic, other.staged = self.queue, self.topic, self.staged
        return other

    def place(self, partition: int) -> int:
        stream = self.node.fabric.kernel.streams[self.topic]
        place: int = stream.info.placement[partition]
        return place

    def to_queue(
        self, stage: int, values: list[bytes], shard: int = 0, stage_ms: int = 0,
        id: bytes | None = None, **terms: Any,
    ) -> None:  # fmt: skip
        extra = PushExtra(id, stage=name(stage), stage_ms=stage_ms)
        request = self.node.push(self.queue, values, shard, extra=extra, **terms)
        self._count(stage, shard, request)

    def to_topic(self, stage: int, values: list[bytes], partition: int = 0) -> None:
        extra = PushExtra(stage=name(stage))
        request = self.node.push(self.topic, values, partition=partition, extra=extra)
        self._count(stage, self.place(partition), request)

    def _count(self, stage: int, shard: int, request: int) -> None:
        self.node.commit()
        receipt = self.node.receipt(request)
        assert receipt.base == 0, "what is staged has no place"
        if not receipt.duplicate:
            counts = self.staged.setdefault(stage, {})
            counts[shard] = counts.get(shard, 0) + receipt.count

    def call(self, key: str, number: int, *stages: int) -> m.PublishStaged:
        shards = sorted({shard for stage in stages for shard in self.staged[stage]})
        parts = [
            m.StagesOf(
                shard,
                [
                    m.StagedPart(name(stage), self.staged[stage][shard])
                    for stage in stages
                    if shard in self.staged[stage]
                ],
            )
            for shard in shards
        ]
        return m.PublishStaged(key, number, parts)

    def publish(self, key: str, number: int, *stages: int) -> tuple[int, str]:
        told = self.node.call(self.call(key, number, *stages))
        return told["number"], told["outcome"]

    def values(self, partition: int = 0) -> list[bytes]:
        request = self.node.fetch(self.topic, partition, 0)
        fetched = self.node.answer(request).fetched
        assert fetched is not None
        assert [offset for offset, _ in fetched[2]] == list(range(len(fetched[2])))
        return [value for _, value in fetched[2]]

    def popped(self) -> list[bytes]:
        return [got.value for got in self.node.popped(self.queue, 1000)]

    def stages(self) -> int:
        return sum(len(s.staging.stages) for s in self.node.fabric.kernel.shards)


def test_nobody_sees_it_before_and_everybody_after():
    here = Stager()
    here.to_topic(1, [b"a", b"b"])
    here.to_topic(1, [b"c"], partition=1)
    here.to_queue(1, [b"x"])
    assert here.values() == here.values(1) == here.popped() == []
    figures = here.node.call(m.StreamStats(here.queue))
    assert figures["messages"] == figures["ready"] == 0
    here.node.check()
    assert here.publish("job", 0, 1) == (0, "published")
    assert (here.values(), here.values(1)) == ([b"a", b"b"], [b"c"])
    assert here.popped() == [b"x"]
    assert here.stages() == 0
    here.node.check()


def test_the_order_is_that_of_the_stages_given():
    here = Stager()
    for stage, value in ((1, b"a"), (2, b"b"), (1, b"c"), (3, b"d")):
        here.to_topic(stage, [value])
    here.node.receipt(here.node.push(here.topic, [b"0"]))
    here.publish("job", 7, 3, 1)
    here.publish("job", 9, 2)
    assert here.values() == [b"0", b"d", b"a", b"c", b"b"]


def test_a_number_is_published_once_and_the_rest_is_dropped():
    here = Stager()
    for stage in (1, 2, 3):
        here.to_topic(stage, [b"%d" % stage])
    assert here.publish("job", 5, 1) == (5, "published")
    assert here.publish("job", 5, 1) == (5, "published"), "sent again"
    assert here.publish("job", 5, 2) == (5, "already")
    assert here.publish("job", 4, 3) == (5, "already")
    assert here.stages() == 0
    assert here.values() == [b"1"]
    here.to_topic(4, [b"4"])
    assert here.publish("other", 5, 4) == (5, "published"), "a key of its own"
    assert here.values() == [b"1", b"4"]
    here.node.check()


def test_a_stage_that_is_gone_or_lacks_something_publishes_nothing():
    here = Stager()
    here.to_topic(1, [b"a"])
    here.to_topic(2, [b"b"])
    place = here.place(0)
    assert here.node.call(m.DiscardStages(place, [name(2), name(9)])) == 1
    with pytest.raises(NotFoundError):
        here.publish("job", 1, 1, 2)
    here.staged[1][place] = 2
    with pytest.raises(NotFoundError):
        here.publish("job", 1, 1)
    here.staged[1][place] = 1
    assert here.values() == []
    assert here.publish("job", 1, 1) == (1, "published")


def test_a_stage_ends_by_itself():
    here = Stager()
    here.to_queue(1, [b"a"], stage_ms=1000)
    here.to_queue(2, [b"b"])
    here.node.tick(900_000)
    here.to_queue(1, [b"c"], stage_ms=1000)
    here.node.tick(900_000)
    assert here.stages() == 2
    here.node.tick(2_100_000)
    here.node.commit()
    assert here.stages() == 1
    with pytest.raises(NotFoundError):
        here.publish("job", 1, 1)
    here.node.tick(25 * HOUR_US)
    here.node.commit()
    assert here.stages() == 0
    here.node.check()
    assert not any(here.node.live.values())


def test_delay_time_to_live_and_priority_count_from_the_publication_on():
    here = Stager()
    here.to_queue(1, [b"late"], due_us=-2_000_000)
    here.to_queue(1, [b"short"], ttl_ms=3000)
    here.to_queue(1, [b"low"])
    here.to_queue(1, [b"high"], priority=9)
    here.node.tick(10_000_000)
    here.publish("job", 1, 1)
    assert here.popped() == [b"high", b"short", b"low"]
    here.node.tick(2_000_000)
    assert here.popped() == [b"late"]
    here.to_queue(2, [b"gone"], ttl_ms=3000)
    here.publish("job", 2, 2)
    here.node.tick(3_000_000)
    assert here.popped() == []


def test_an_id_is_there_once():
    here = Stager()
    place = here.node.fabric.kernel.place_of(b"one")
    here.to_queue(1, [b"first"], place, id=b"one")
    here.to_queue(1, [b"again"], place, id=b"one")
    here.to_queue(2, [b"second"], place, id=b"one")
    assert here.publish("job", 1, 1) == (1, "published")
    assert here.publish("job", 2, 2) == (2, "published")
    assert here.popped() == [b"first"]
    request = here.node.push(here.queue, [b"third"], place, extra=PushExtra(b"one"))
    assert here.node.receipt(request).duplicate
    here.node.check()


def test_a_resend_of_a_staged_batch_is_stored_once():
    here = Stager()
    for _ in range(2):
        here.to_queue(1, [b"a", b"b"], producer=7, sequence=0)
    here.to_queue(1, [b"c"], producer=7, sequence=2)
    assert here.staged == {1: {0: 3}}
    here.publish("job", 1, 1)
    assert here.popped() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("bound", "value"), [("MAX_STAGES", 1), ("MAX_STAGE_BYTES", 10), ("MAX_STAGED_BYTES", 10)]
)
def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch, bound: str, value: int):
    here = Stager()
    here.to_queue(1, [b"a"])
    monkeypatch.setattr(staging, bound, value)
    with pytest.raises(LimitError):
        here.to_queue(1 if bound == "MAX_STAGE_BYTES" else 2, [b"b"])


def test_what_cannot_be_staged_is_refused():
    here = Stager(ordered="key")
    with pytest.raises(InvalidError):
        here.to_queue(1, [b"a"], keys=[b"k"])
    extra = PushExtra(b"i", hold=True, stage=name(1))
    plain = here.node.open("queue", "plain")
    place = here.node.fabric.kernel.place_of(b"i")
    with pytest.raises(InvalidError):
        here.node.receipt(here.node.push(plain, [b"a"], place, extra=extra))
    with pytest.raises(InvalidError):
        here.node.receipt(here.node.push(plain, [b"a"], extra=PushExtra(stage=b"short")))


def test_a_full_queue_takes_nothing_more_and_what_is_staged_waits_for_no_room():
    here = Stager(max_messages=2)
    here.to_queue(1, [b"a", b"b"])
    here.to_queue(2, [b"c", b"d"])
    here.publish("job", 1, 1)
    with pytest.raises(LimitError):
        here.to_queue(3, [b"e"])
    here.publish("job", 2, 2)
    assert here.popped() == [b"a", b"b", b"c", b"d"]


def test_a_deleted_stream_takes_what_is_staged_with_it():
    here = Stager()
    here.to_queue(1, [b"a"])
    here.to_topic(1, [b"b"])
    here.node.call(m.Delete("queue", "q"))
    with pytest.raises(NotFoundError):
        here.publish("job", 1, 1)
    here.node.call(m.Delete("topic", "t"))
    here.node.check()
    assert not any(here.node.live.values())


def test_keys_are_forgotten_after_a_long_time_or_by_hand():
    here = Stager()
    here.to_queue(1, [b"a"])
    here.publish("old", 3, 1)
    assert [each["key"] for each in here.node.call(m.Publications())] == ["old"]
    assert here.node.call(m.ForgetPublication("old")) is True
    assert here.node.call(m.ForgetPublication("old")) is False
    place_of = here.node.fabric.kernel.place_of
    keys = [f"k{n}" for n in range(100) if not place_of(b"default\0k%d" % n)]
    here.publish(keys[0], 1)
    here.node.tick(KEPT_US)
    here.publish(keys[1], 1)
    assert [each["key"] for each in here.node.call(m.Publications())] == [keys[1]]


def test_it_is_not_published_while_it_is_written():
    here = Stager()
    here.to_queue(1, [b"a"])
    here.node.lazy = True
    extra = PushExtra(stage=name(1))
    request = here.node.push(here.queue, [b"b"], extra=extra)
    with pytest.raises(ConflictError):
        here.publish("job", 1, 1)
    here.node.commit()
    assert here.node.receipt(request).count == 1


def crashes(here: Stager, key: str, number: int, *stages: int) -> list[Stager]:
    """The node after a crash at every record of a publication, with and without a checkpoint."""
    node = here.node
    node.lazy = True
    before, taken = len(node.journal), node.snapshot()
    request = node.send(9, m.pack(here.call(key, number, *stages)))
    written = len(node.journal)
    assert written > before
    found = [here.after(node.crash(keep=keep)) for keep in range(before, written + 1)]
    found += [here.after(node.crash(taken, keep)) for keep in range(before, written + 1)]
    during = node.snapshot()
    found.append(here.after(node.crash(during)))
    node.commit()
    node.answer(request).value()
    found.append(here.after(node.crash()))
    found.append(here.after(node.crash(node.snapshot())))
    node.lazy = False
    return found


def test_a_crash_at_any_moment_leaves_all_or_nothing():
    here = Stager()
    here.to_topic(1, [b"a", b"b"])
    here.to_topic(1, [b"c"], partition=1)
    here.to_queue(1, [b"x"], 0)
    here.to_queue(1, [b"y"], 3)
    outcomes = set()
    for after in crashes(here, "job", 1, 1):
        after.node.commit()
        after.node.lazy = False
        seen = (after.values(), after.values(1), sorted(after.popped()))
        assert seen in (([], [], []), ([b"a", b"b"], [b"c"], [b"x", b"y"]))
        outcomes.add(bool(seen[0]))
        after.node.check()
        assert after.publish("job", 1, 1) == (1, "published")
        assert (after.values(), after.values(1)) == ([b"a", b"b"], [b"c"])
        after.node.check()
    assert outcomes == {True, False}


_step = st.one_of(
    st.tuples(st.just("topic"), st.integers(1, 4), st.integers(0, 1)),
    st.tuples(st.just("queue"), st.integers(1, 4), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("push"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("publish"), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("discard"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("pop"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("crash"), st.just(0), st.integers(0, 1)),
)


@settings(max_examples=150)
@given(st.lists(_step, max_size=30))
def test_against_a_model(steps: list[tuple[str, int, int]]):
    here = Stager(lease_ms=43_200_000)
    topic: list[list[bytes]] = [[], []]
    queue: list[bytes] = []
    staged: dict[int, list[tuple[str, int, bytes]]] = {}
    highest, names = -1, {each: each for each in range(1, 5)}
    for count, (what, number, more) in enumerate(steps):
        value, stage = b"%d" % count, names.get(number, 0)
        if what == "topic":
            here.to_topic(stage, [value], more)
            staged.setdefault(stage, []).append(("topic", more, value))
        elif what == "queue":
            here.to_queue(stage, [value], more)
            staged.setdefault(stage, []).append(("queue", more, value))
        elif what == "push":
            here.node.receipt(here.node.push(here.topic, [value], partition=more))
            topic[more].append(value)
        elif what == "publish" and stage in staged:
            outcome = here.publish("job", more, stage)
            new = more > highest
            assert outcome == (max(more, highest), "published" if new else "already")
            highest = max(more, highest)
            for kind, place, each in staged.pop(stage) if new else ():
                (topic[place] if kind == "topic" else queue).append(each)
            staged.pop(stage, None)
            names[number] = stage + 10
        elif what == "discard" and stage in staged:
            for shard in here.staged[stage]:
                here.node.call(m.DiscardStages(shard, [name(stage)]))
            staged.pop(stage)
            names[number] = stage + 10
        elif what == "pop":
            for got in here.node.popped(here.queue, number):
                queue.remove(got.value)
        elif what == "crash":
            before = state_of(here.node.fabric, timed=False)
            here = here.after(here.node.crash(here.node.snapshot() if more else None))
            assert state_of(here.node.fabric, timed=False) == before
    assert [here.values(0), here.values(1)] == topic
    assert sorted(here.popped()) == sorted(queue)
    assert here.stages() == sum(len(here.staged[each]) for each in staged)
    here.node.check()
