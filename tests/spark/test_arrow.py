from __future__ import annotations

from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")

from penstock.spark import arrow  # noqa: E402
from penstock.testing import memory_fabric  # noqa: E402
from penstock.wire.batch import Batch  # noqa: E402


@pytest.fixture
def batch() -> Batch:
    with memory_fabric() as fabric:
        topic = fabric.topic("t", partitions=1)
        values = [b"%d" % each for each in range(100)]
        topic.publish_many(values, keys=[b"k"] * 100, timestamps=[1_700_000_000] * 100)
        with topic.read(0) as batches:
            return next(batches)


def test_columns_are_those_that_spark_is_told(batch: Batch) -> None:
    rows = arrow.record_batch([batch], "t", 3, headers=False)
    assert rows.schema == arrow.PLAIN
    assert rows.num_rows == 100
    first = rows.slice(0, 1).to_pylist()[0]
    assert (first["key"], first["value"]) == (b"k", b"0")
    assert (first["topic"], first["partition"], first["offset"]) == ("t", 3, 0)
    assert first["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_values_are_not_copied(batch: Batch) -> None:
    rows = arrow.record_batch([batch], "t", 0, headers=False)
    before = pa.total_allocated_bytes()
    again = arrow.record_batch([batch], "t", 0, headers=False)
    assert again.column("value").buffers()[2].address == rows.column("value").buffers()[2].address
    assert pa.total_allocated_bytes() - before < 100 * 64


def test_headers_are_a_map() -> None:
    with memory_fabric() as fabric:
        topic = fabric.topic("t", partitions=1)
        topic.publish(b"x", headers={"a": b"1", "b": b"2"})
        with topic.read(0) as batches:
            rows = arrow.record_batch([next(batches)], "t", 0, headers=True)
    assert rows.schema == arrow.WITH_HEADERS
    assert rows.column("headers").to_pylist() == [[("a", b"1"), ("b", b"2")]]


def test_rows_before_an_offset(batch: Batch) -> None:
    rows = arrow.record_batch([batch], "t", 0, headers=False)
    assert arrow.before(rows, 1000) is rows
    assert arrow.before(rows, 40).column("offset").to_pylist() == list(range(40))
    assert arrow.before(rows, 0).num_rows == 0


def test_small_batches_are_put_together(batch: Batch) -> None:
    groups = list(arrow.gathered([batch] * 200))
    assert [len(each) for each in groups] == [82, 82, 36]
    joined = arrow.record_batch(groups[0], "t", 0, headers=False)
    assert joined.num_rows == 8200
    one = arrow.record_batch([batch], "t", 0, headers=False)
    assert joined.slice(100, 100).equals(one)
    assert list(arrow.gathered([])) == []
