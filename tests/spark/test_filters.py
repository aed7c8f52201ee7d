from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import datasource as kinds

from penstock.spark import arrow
from penstock.spark.filters import push
from penstock.testing import memory_fabric

PARTITION, OFFSET, TIME, KEY = ("partition",), ("offset",), ("timestamp",), ("key",)
START, END = {0: 0, 1: 10, 2: 0}, {0: 100, 1: 50, 2: 7}


def narrowed(*conditions: kinds.Filter) -> tuple[dict[int, int], dict[int, int]]:
    pushed, left = push(conditions)
    assert left == []
    return pushed.narrowed(START, END)


def test_partitions_are_chosen() -> None:
    assert narrowed(kinds.EqualTo(PARTITION, 1), kinds.IsNotNull(PARTITION)) == ({1: 10}, {1: 50})
    both = narrowed(kinds.In(PARTITION, (0, 2, None)))
    assert both == ({0: 0, 2: 0}, {0: 100, 2: 7})
    assert narrowed(kinds.In(PARTITION, (0, 2)), kinds.EqualTo(PARTITION, 1)) == ({}, {})


def test_offsets_are_chosen() -> None:
    assert narrowed(kinds.GreaterThan(OFFSET, 20))[0] == {0: 21, 1: 21, 2: 21}
    assert narrowed(kinds.GreaterThanOrEqual(OFFSET, 5))[0] == {0: 5, 1: 10, 2: 5}
    assert narrowed(kinds.LessThan(OFFSET, 20))[1] == {0: 20, 1: 20, 2: 7}
    assert narrowed(kinds.LessThanOrEqual(OFFSET, 20))[1] == {0: 21, 1: 21, 2: 7}
    start, end = narrowed(kinds.EqualTo(OFFSET, 3))
    assert (start[0], end[0]) == (3, 4)


@pytest.mark.parametrize(
    "condition",
    [
        kinds.EqualTo(KEY, b"x"),
        kinds.IsNotNull(KEY),
        kinds.GreaterThan(PARTITION, 1),
        kinds.In(OFFSET, (1, 2)),
        kinds.Not(kinds.EqualTo(OFFSET, 1)),
        kinds.EqualNullSafe(OFFSET, 1),
        kinds.LessThan(TIME, datetime(2030, 1, 1)),
        kinds.EqualTo(("a", "offset"), 1),
    ],
)
def test_the_rest_is_left_to_spark(condition) -> None:
    pushed, left = push([condition])
    assert left == [condition]
    assert pushed.narrowed(START, END) == (START, END)


def test_times_choose_among_rows() -> None:
    with memory_fabric() as fabric:
        topic = fabric.topic("t", partitions=1)
        topic.publish_many([b"x"] * 5, timestamps=[30, 10, 20, 40, 10])
        with topic.read(0) as batches:
            rows = arrow.record_batch([next(batches)], "t", 0, headers=False)
    after = kinds.GreaterThanOrEqual(TIME, datetime.fromtimestamp(20, UTC))
    before = kinds.LessThan(TIME, datetime.fromtimestamp(40, UTC))
    pushed, left = push([after, before])
    assert left == []
    assert pushed.chosen(rows).column("offset").to_pylist() == [0, 2]
