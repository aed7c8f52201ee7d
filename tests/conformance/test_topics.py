"""Topics: the same scripts everywhere, with partitions that lie on all nodes of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from tests.conformance.conftest import refuses
from tests.node.test_cluster import wait_for

from penstock.errors import (
    ConflictError,
    FencedError,
    InvalidError,
    NotFoundError,
)

PARTITIONS = 7
LONG_S = 10.0  # for what will come
SHORT_S = 0.1  # for what will not


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % each for each in range(start, start + count)]


def read(topic: Any, partition: int, *args: Any, **kwargs: Any) -> list[bytes]:
    return [value for batch in topic.read(partition, *args, **kwargs) for value in batch.values]


def take(topic: Any, count: int, **options: Any) -> list[Any]:
    """The first so many that a subscription gets."""
    with topic.subscribe(idle_timeout=LONG_S, **options) as consumer:
        return list(islice(consumer, count))


def nothing(topic: Any, **options: Any) -> bool:
    """Whether a subscription gets nothing."""
    return list(topic.subscribe(idle_timeout=SHORT_S, **options)) == []


def publish_evenly(topic: Any, each: int) -> None:
    """So many messages to every partition, in batches of two."""
    for partition in range(topic.partitions):
        topic.publish_many(values(each), partition=partition, batch=2)


def places_in(partitions: Iterable[int], first: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in partitions for offset in range(first, end)]


def later(act: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(0.1, act)
    timer.start()
    return timer


def test_a_key_has_a_partition_and_keeps_its_order(fabric):
    topic = fabric.topic("t", PARTITIONS)
    keys = [b"k%d" % (each % 20) for each in range(200)]
    seen: list[int] = []
    receipts = topic.publish_many(values(200), keys=keys, batch=50, progress=seen.append)
    assert receipts.count == seen[-1] == 200
    receipt = topic.publish(b"200", key="k0", headers={"h": b"1"}, timestamp=1.5)
    assert (receipt.count, receipt.duplicate) == (1, False)
    by_key: dict[bytes, list[int]] = {}
    for partition in range(PARTITIONS):
        for batch in topic.read(partition):
            for key, value in zip(batch.keys, batch.values, strict=True):
                by_key.setdefault(key, []).append(int(value))
    assert by_key == {b"k%d" % key: [*range(key, 201 - (key > 0), 20)] for key in range(20)}
    (batch,) = topic.read(receipt.partition, receipt.base)
    assert (batch.values[0], batch.headers[0]) == (b"200", {"h": b"1"})
    assert batch.timestamps.tolist() == [1_500_000]


def test_messages_without_a_key_take_turns(fabric):
    topic = fabric.topic("t", PARTITIONS)
    for value in values(PARTITIONS * 8):
        topic.publish(value)
    assert topic.offsets() == [(0, 8)] * PARTITIONS
    topic.publish_many(values(PARTITIONS * 10), batch=10)
    assert topic.offsets() == [(0, 18)] * PARTITIONS


def test_reading_starts_where_it_is_told_to(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    wait_for(lambda: datetime.now(UTC).microsecond > 1000)
    between = datetime.now(UTC)
    for partition in range(PARTITIONS):
        assert topic.publish(b"late", partition=partition).base == 4
        assert read(topic, partition) == [*values(4), b"late"]
        assert read(topic, partition, 3) == [b"3", b"late"]
        assert read(topic, partition, "start", max_bytes=1) == [*values(4), b"late"]
        assert read(topic, partition, "end") == []
        assert read(topic, partition, between) == [b"late"]
    assert topic.offset_at(between) == [4] * PARTITIONS
    assert topic.offset_at(between.timestamp() - 60) == [0] * PARTITIONS
    assert topic.offset_at(datetime.now(UTC) + timedelta(hours=1)) == [5] * PARTITIONS
    for wrong in (-1, "middle", 1.5):
        with pytest.raises(InvalidError):
            read(topic, 0, wrong)
    with pytest.raises(InvalidError):
        read(topic, 0, 99)
    with pytest.raises(InvalidError):
        read(topic, PARTITIONS)


def test_a_reader_that_follows_gets_what_comes(fabric):
    topic = fabric.topic("t", PARTITIONS)
    last = PARTITIONS - 1
    topic.publish(b"a", partition=last)
    timer = later(lambda: topic.publish(b"b", partition=last))
    with topic.read(last, follow=True, idle_timeout=LONG_S) as batches:
        assert [batch.values[0] for batch in islice(batches, 2)] == [b"a", b"b"]
    timer.join()
    assert read(topic, last, follow=True, idle_timeout=0.05) == [b"a", b"b"]


def test_commits_of_all_partitions(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    assert topic.committed("g") == {}
    topic.commit("g", {each: each % 5 for each in range(PARTITIONS)})
    assert topic.committed("g") == {each: each % 5 for each in range(PARTITIONS)}
    topic.commit("g", {PARTITIONS - 1: 2})
    topic.commit("h", {1: 0})
    assert topic.committed("g") == {**{each: each % 5 for each in range(6)}, 6: 2}
    assert topic.committed("h") == {1: 0}
    for wrong in ({}, {PARTITIONS: 1}, {0: 99}, {0: -1}):
        with pytest.raises(InvalidError):
            topic.commit("g", wrong)
    assert topic.committed("g")[0] == 0


def test_a_subscription_reads_all_partitions(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    found = take(topic, 4 * PARTITIONS)
    places = [(message.partition, message.offset, message.value) for message in found]
    assert sorted(places) == [(p, at, b"%d" % at) for p in range(PARTITIONS) for at in range(4)]
    some = take(topic, 8, partitions=[5, 1])
    assert sorted((each.partition, each.offset) for each in some) == places_in([1, 5], 0, 4)
    pairs = take(topic, 2 * PARTITIONS, batches=True)
    assert [batch.values for _, batch in pairs].count([b"2", b"3"]) == PARTITIONS
    assert {partition for partition, _ in pairs} == set(range(PARTITIONS))
    for wrong in ([], [1, 1], [PARTITIONS]):
        with pytest.raises(InvalidError):
            topic.subscribe(partitions=wrong)


def test_a_subscription_starts_where_it_is_told_to(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 2)
    wait_for(lambda: datetime.now(UTC).microsecond > 1000)
    between = datetime.now(UTC)
    publish_evenly(topic, 2)
    for start, first in ((3, 3), (between, 2), ("start", 0)):
        found = take(topic, (4 - first) * PARTITIONS, start=start)
        seen = sorted((each.partition, each.offset) for each in found)
        assert seen == places_in(range(PARTITIONS), first, 4), start
    assert nothing(topic, start="end")


def test_a_subscription_starts_from_an_offset_of_each_partition(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    found = take(topic, 3, start={1: 3, 5: 2}, partitions=[5, 1])
    assert sorted((each.partition, each.offset) for each in found) == [(1, 3), (5, 2), (5, 3)]
    for wrong in ({1: 3}, {1: 3, 5: -1}):
        with pytest.raises(InvalidError):
            take(topic, 1, start=wrong, partitions=[5, 1])


def test_a_group_goes_on_where_it_has_committed(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    with topic.subscribe(group="g", idle_timeout=LONG_S) as consumer:
        first = [next(consumer) for _ in range(10)]
        taken = {message.partition: message.offset + 1 for message in first}
        assert consumer.positions == taken
        consumer.commit()
        assert consumer.positions == {}
    assert topic.committed("g") == taken
    with topic.subscribe(group="g", idle_timeout=LONG_S) as consumer:
        second = list(islice(consumer, 4 * PARTITIONS - 10))
        consumer.commit()
    seen = sorted((message.partition, message.offset) for message in first + second)
    assert seen == places_in(range(PARTITIONS), 0, 4)
    assert topic.committed("g") == dict.fromkeys(range(PARTITIONS), 4)
    assert nothing(topic, group="g")
    assert nothing(topic, group="other", start="end")
    with topic.subscribe() as consumer, pytest.raises(InvalidError):
        consumer.commit()


def test_a_waiting_group_gets_what_comes(fabric):
    topic = fabric.topic("t", PARTITIONS)
    timer = later(lambda: publish_evenly(topic, 1))
    with topic.subscribe(group="g", batches=True, idle_timeout=LONG_S) as consumer:
        found = {next(consumer)[0] for _ in range(PARTITIONS)}
        consumer.commit()
    timer.join()
    assert found == set(range(PARTITIONS))
    assert topic.committed("g") == dict.fromkeys(range(PARTITIONS), 1)


def test_claims(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 2)
    for partition in range(PARTITIONS):
        mine = topic.claim(partition, "g", "me", 30)
        assert (mine.owner, mine.token) == ("me", 1)
        other = topic.claim(partition, "g", "other", 30)
        assert (other.owner, other.token) == ("me", 0)
        assert topic.claim(partition, "g", "me", 30, mine.token) == mine
        with pytest.raises(ConflictError):
            topic.claim(partition, "g", "other", 30, 7)
    with pytest.raises(FencedError):
        topic.commit("g", {2: 1}, 7)
    topic.commit("g", dict.fromkeys(range(PARTITIONS), 2), 1)
    assert topic.unclaim(3, "g", 1)
    assert not topic.unclaim(3, "g", 1)
    assert topic.claim(3, "g", "other", 30).token == 2


def test_named_producers_of_partitions(fabric):
    topic = fabric.topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        producer = topic.producer("p", partition)
        assert producer.stored == 0
        assert producer.push(b"0").partition == partition
        assert producer.push_many(values(3, 1), batch=1).count == 3
        again = topic.producer("p", partition)
        assert again.stored == 4
        with pytest.raises(FencedError):
            producer.push(b"late")
        again.push(b"4")
        assert read(topic, partition) == values(5)


def test_figures_of_a_topic(fabric):
    topic = fabric.topic("t", PARTITIONS)
    publish_evenly(topic, 4)
    topic.commit("a", {0: 1})
    topic.commit("b", {PARTITIONS - 1: 1})
    figures = topic.stats()
    assert (figures["name"], figures["kind"], figures["damaged"]) == ("t", "topic", 0)
    assert figures["messages"] == 4 * PARTITIONS
    assert figures["groups"] == ["a", "b"]
    assert [(each["start"], each["end"]) for each in figures["partitions"]] == topic.offsets()
    assert figures["bytes"] == sum(each["bytes"] for each in figures["partitions"]) > 0


def test_what_retention_takes_is_gone(fabric):
    partitions = 16
    topic = fabric.topic("t", partitions, retention_bytes=1)
    for partition in range(partitions):
        topic.publish_many(values(3), partition=partition, batch=1)
    trimmed = wait_for(lambda: [at for at, (start, _) in enumerate(topic.offsets()) if start])[0]
    assert topic.offsets()[trimmed] == (3, 3)
    with pytest.raises(NotFoundError):
        read(topic, trimmed, 0)
    assert read(topic, trimmed, "start") == []
    topic.configure(retention_bytes=0)
    assert topic.options.retention_bytes == 0
    assert topic.publish(b"new", partition=trimmed).base == 3
    found = take(topic, 1, partitions=[trimmed])
    assert [(message.offset, message.value) for message in found] == [(3, b"new")]


def test_a_topic_comes_and_goes(fabric):
    with pytest.raises(NotFoundError):
        fabric.topic("t", create=False)
    topic = fabric.topic("t", PARTITIONS, keep="latest")
    assert fabric.topic("t").info == topic.info
    assert (topic.name, topic.partitions, topic.options.keep) == ("t", PARTITIONS, "latest")
    with pytest.raises(InvalidError):
        topic.configure(partitions=3)
    topic.publish(b"x", key=b"k")
    assert topic.delete()
    assert not topic.delete()
    refuses(lambda: topic.publish(b"x", key=b"k"))
    refuses(topic.offsets)
    fresh = fabric.topic("t", 2)
    assert fresh.offsets() == [(0, 0)] * 2
