"""Arrow's columns are pushed, published and staged: the same scripts everywhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.test_stages import drained, read_all
from tests.node.test_cluster import wait_for

from penstock.client import arrow_rows
from penstock.errors import InvalidError

COUNT = 600


def table(first: int = 0) -> Any:
    numbers = range(first, first + COUNT)
    return pa.table(
        {
            "value": pa.array([b"%d" % each for each in numbers]),
            "key": pa.array([None if each % 7 == 0 else f"k{each % 20}" for each in numbers]),
        }
    )


def values(first: int = 0) -> list[bytes]:
    return sorted(b"%d" % each for each in range(first, first + COUNT))


def test_rows_are_published_in_the_order_of_their_keys(fabric, monkeypatch) -> None:
    monkeypatch.setattr(arrow_rows, "PIECE_ROWS", 40)
    topic = fabric.topic("t", 5)
    receipts = topic.publish_arrow(table().to_batches(max_chunksize=250))
    assert receipts.count == COUNT
    assert sorted(read_all(topic)) == values()
    homes: dict[bytes, set[int]] = {}
    for partition in range(5):
        last: dict[bytes, int] = {}
        for batch in topic.read(partition):
            for key, value in zip(batch.keys, batch.values, strict=True):
                if key is not None:
                    homes.setdefault(key, set()).add(partition)
                    assert last.get(key, -1) < int(value)
                    last[key] = int(value)
    assert all(len(found) == 1 for found in homes.values())
    other = fabric.topic("lists", 5)
    other.publish_many(table()["value"].to_pylist(), keys=table()["key"].to_pylist())
    for partition in range(5):
        keys = {key for batch in other.read(partition) for key in batch.keys if key is not None}
        assert keys == {key for key in homes if homes[key] == {partition}}


def test_rows_are_pushed(fabric) -> None:
    queue = fabric.queue("q")
    assert queue.push_arrow(table(), compression="lz4").count == COUNT
    delivery = queue.pop_batch(100)
    popped = delivery.to_arrow()["value"].to_pylist()
    assert popped == list(delivery.values)
    delivery.ack(wait=True)
    assert sorted(popped + drained(queue)) == values()


def test_rows_are_staged(fabric) -> None:
    topic, queue = fabric.topic("t", 3), fabric.queue("q")
    stage, other = topic.stage(), queue.stage()
    stage.publish_arrow(table())
    stage.publish_arrow(table(COUNT), partition=2)
    other.push_arrow(table())
    assert read_all(topic) == []
    assert (stage.messages, other.messages) == (2 * COUNT, COUNT)
    fabric.publish_staged("job", 1, [stage.token, other.token])
    assert wait_for(lambda: len(read_all(topic)) == 2 * COUNT)
    assert sorted(read_all(topic)) == sorted(values() + values(COUNT))
    found: list[bytes] = []
    assert wait_for(lambda: len(found.__iadd__(drained(queue))) == COUNT)
    assert sorted(found) == values()


def test_a_topic_that_grew_unnoticed_gets_rows_where_they_belong(fabric) -> None:
    topic, other = fabric.topic("t", 2), fabric.topic("t")
    topic.publish_arrow(table())
    other.grow(5)
    topic.publish_arrow(table(COUNT))
    assert sorted(read_all(other)) == sorted(values() + values(COUNT))


def test_what_is_no_table_is_told(fabric) -> None:
    topic = fabric.topic("t", 2)
    with pytest.raises(InvalidError, match="not bytes"):
        topic.publish_arrow([b"x"])
    with pytest.raises(InvalidError, match="row 1"):
        topic.publish_arrow(pa.table({"value": [b"x", None]}))
    assert read_all(topic) == []
