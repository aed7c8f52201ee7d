"""Topics that grow while clients use them: the same scripts everywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from tests.node.test_cluster import wait_for

from penstock.errors import InvalidError
from penstock.wire.growth import Layout

LONG_S = 20.0


@pytest.fixture
def two(fabric: Any) -> tuple[Any, Any]:
    """What two parts of a program open of it: neither is told what the other knows of a topic."""
    return fabric, fabric


def rows(topic: Any) -> Iterator[tuple[bytes, bytes, int, int]]:
    """All messages: key, value, partition, offset."""
    for partition in range(topic.partitions):
        for batch in topic.read(partition):
            yield from (
                (key, value, partition, offset)
                for key, value, offset in zip(
                    batch.keys, batch.values, batch.offsets.tolist(), strict=True
                )
            )


def by_key(topic: Any) -> dict[bytes, list[int]]:
    """The values of each key, in the order of their offsets."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    for key, value, _, offset in rows(topic):
        found.setdefault(key, []).append((offset, int(value)))
    return {key: [value for _, value in sorted(each)] for key, each in found.items()}


def keyed(first: int, end: int, keys: int = 10) -> dict[str, list[bytes]]:
    numbers = range(first, end)
    return {
        "values": [b"%d" % each for each in numbers],
        "keys": [b"key-%d" % (each % keys) for each in numbers],
    }


def expected(end: int, keys: int = 10) -> dict[bytes, list[int]]:
    return {b"key-%d" % key: list(range(key, end, keys)) for key in range(keys)}


def layout_of(topic: Any) -> Layout:
    info = topic.info
    return Layout(len(info.placement) - sum(map(len, info.growths)), info.growths)


def test_a_family(fabric):
    topic = fabric.topic("t", 2)
    topic.publish_many(**keyed(0, 40))
    (zero, one) = topic.family()
    assert (zero.low, zero.high, one.low, one.high) == (0, 1 << 31, 1 << 31, 1 << 32)
    ends = [end for _, end in topic.offsets()]
    topic.grow(6)
    assert topic.partitions == 6
    assert wait_for(lambda: all(kin.origin is not None for kin in topic.family()), LONG_S)
    family = topic.family()
    assert [(kin.parent, kin.generation) for kin in family[2:]] == [(0, 1), (0, 1), (1, 1), (1, 1)]
    assert [kin.origin for kin in family] == [0, 0, ends[0], ends[0], ends[1], ends[1]]
    (split,) = family[0].splits
    assert (split.generation, split.offset, split.children) == (1, ends[0], [2, 3])
    assert split.bounds == [family[2].low, family[3].low]
    ranges = sorted((kin.low, kin.high) for kin in family)
    assert [low for low, _ in ranges[1:]] == [high for _, high in ranges[:-1]]
    topic.grow(6)
    with pytest.raises(InvalidError):
        topic.grow(5)
    with pytest.raises(InvalidError):
        topic.grow(True)


def test_keys_keep_their_order_for_those_who_do_not_know(two):
    """The second client publishes on, and is never told that the topic grows."""
    topic, other = (each.topic("t", 2) for each in two)
    last = 0
    for partitions in (3, 7, 8):
        other.publish_many(**keyed(last, last + 100), batch=10)
        topic.grow(partitions)
        other.publish_many(**keyed(last + 100, last + 200), batch=7)
        receipt = other.publish(b"%d" % (last + 200), key="key-0")
        assert receipt.count == 1
        last += 210
        other.publish_many(**keyed(last - 9, last), batch=1)
    assert other.partitions == 8
    found = by_key(topic)
    assert {key: sorted(each) for key, each in found.items()} == found
    assert sum(map(len, found.values())) == last
    layout = layout_of(topic)
    for key, _, partition, _ in rows(topic):
        assert any(layout.partition_at(key, each) == partition for each in range(4))


def test_a_producer_that_is_at_work_while_it_grows(two):
    topic, other = (each.topic("t", 2) for each in two)
    seen: list[int] = []

    def grow() -> None:
        assert wait_for(lambda: bool(seen), LONG_S)
        for partitions in (4, 5, 9):
            topic.grow(partitions)

    grower = threading.Thread(target=grow)
    grower.start()
    total = 5000
    receipts = other.publish_many(**keyed(0, total), batch=20, progress=seen.append)
    grower.join()
    other.publish_many(**keyed(total, total + 100), batch=20)
    assert receipts.count == seen[-1] == total
    assert by_key(topic) == expected(total + 100)


def test_many_at_once_who_do_not_know(two):
    """Single messages of many keys under way at the same time, all placed before it grew."""
    topic, other = (each.topic("t", 1) for each in two)
    each_of, many = 30, 24

    def publish(key: int) -> None:
        for number in range(each_of):
            other.publish(b"%d" % number, key=b"key-%d" % key)

    threads = [threading.Thread(target=publish, args=(key,)) for key in range(many)]
    for at, thread in enumerate(threads):
        thread.start()
        if at in (10, 20):
            topic.grow(at // 2)
    for thread in threads:
        thread.join()
    assert by_key(topic) == {b"key-%d" % key: list(range(each_of)) for key in range(many)}


def test_partitions_that_are_meant(two):
    topic, other = (each.topic("t", 1) for each in two)
    layout = Layout(1, [[0]])
    key = next(b"%d" % each for each in range(100) if layout.partition_of(b"%d" % each) == 1)
    named = other.producer("me", 0)
    named.push_many([b"1", b"2"], keys=[key, key])
    topic.grow(2)
    assert other.publish(b"3", key=key, partition=0).partition == 0
    other.publish_many([b"4"], keys=[key], partition=0)
    named.push_many([b"5"], keys=[key])
    assert named.stored == 3
    assert other.publish(b"6", key=key).partition == 1
    found = [(value, partition) for _, value, partition, _ in rows(topic)]
    assert found == [(b"1", 0), (b"2", 0), (b"3", 0), (b"4", 0), (b"5", 0), (b"6", 1)]


def test_a_transaction_of_one_who_does_not_know(two):
    topic, other = (each.topic("t", 1) for each in two)
    topic.grow(2)
    topic.grow(5)
    with two[1].transaction() as txn:
        for number in range(30):
            txn.publish(other, b"%d" % number, key=b"key-%d" % (number % 10))
    assert wait_for(lambda: len(list(rows(topic))) == 30, LONG_S)
    assert by_key(topic) == expected(30)
    layout = layout_of(topic)
    assert all(layout.partition_of(key) == at for key, _, at, _ in rows(topic))
    assert other.partitions == 5, "it was told"


def test_a_consumer_goes_on_to_the_children(two):
    """It is at work when the topic grows, and hands out each key in order."""
    topic, other = (each.topic("t", 2) for each in two)
    topic.publish_many(**keyed(0, 50))
    with other.subscribe("group", idle_timeout=LONG_S) as consumer:
        got = list(islice(iter(consumer), 50))
        topic.grow(5)
        topic.publish_many(**keyed(50, 100))
        got += islice(iter(consumer), 50)
        consumer.commit()
    values: dict[bytes, list[int]] = {}
    for each in got:
        values.setdefault(each.key, []).append(int(each.value))
    assert values == expected(100)
    assert {each.partition for each in got} > {0, 1}
    ends = {number: end for number, (_, end) in enumerate(topic.offsets())}
    done = topic.committed("group")
    assert done == {number: end for number, end in ends.items() if number in done}


def test_a_child_is_read_after_its_parent(fabric):
    topic = fabric.topic("t", 1)
    topic.publish_many(**keyed(0, 50))
    topic.grow(2)
    topic.grow(4)  # before any message came to the children
    topic.publish_many(**keyed(50, 100))
    topic.grow(7)
    topic.publish_many(**keyed(100, 150))
    values: dict[bytes, list[int]] = {}
    with topic.subscribe(idle_timeout=LONG_S) as consumer:
        for each in islice(iter(consumer), 150):
            values.setdefault(each.key, []).append(int(each.value))
    assert values == expected(150)


def test_a_group_waits_for_what_another_member_must_commit(fabric):
    topic = fabric.topic("t", 1)
    topic.publish_many(**keyed(0, 20))
    topic.grow(2)
    topic.publish_many(**keyed(20, 40))
    child = topic.family()[1]
    assert list(topic.subscribe("g", partitions=[1], idle_timeout=1.0)) == []
    alone = list(topic.subscribe(partitions=[1], idle_timeout=1.0))
    assert alone
    assert alone[0].offset == child.origin
    topic.commit("g", {0: child.origin - 1})
    assert list(topic.subscribe("g", partitions=[1], idle_timeout=1.0)) == []
    topic.commit("g", {0: child.origin})
    with topic.subscribe("g", partitions=[1], idle_timeout=LONG_S) as consumer:
        got = list(islice(iter(consumer), len(alone)))
    assert [each.value for each in got] == [each.value for each in alone]


def test_figures_and_settings_of_a_topic_that_has_grown(two):
    topic, other = (each.topic("t", 2) for each in two)
    topic.grow(5)
    topic.publish_many(**keyed(0, 20))
    assert wait_for(lambda: len(topic.stats()["partitions"]) == 5, LONG_S)
    assert topic.stats()["messages"] == 20
    assert other.refresh()
    assert not other.refresh()
    other.configure(retention=3600)
    assert other.options.partitions == 5
    assert two[1].topic("t", 2).partitions == two[1].topic("t", 5).partitions == 5
