"""The reader of a queue as Spark's planner and workers call it, without Spark's Java part."""

from __future__ import annotations

import pickle
import threading
from itertools import count
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidError, NotFoundError
from penstock.wire.messages import ReservedPart

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.spark.options import parse_options, refuse_stream_options
from penstock.spark.queues import QueueStreamReader, QueueTask, shared
from penstock.spark.source import PenstockSource

ALL = ReadAllAvailable()
_numbers = count(1)


@pytest.fixture
def queue(fabric: penstock.Fabric) -> penstock.Queue:
    return fabric.queue(f"queue-{next(_numbers)}")


def reader_of(url: str, queue: penstock.Queue, **options: str) -> QueueStreamReader:
    given = {"servers": url, "queue": queue.name, "timeout": "20"}
    return QueueStreamReader(parse_options(given | options))


def begun(reader: QueueStreamReader) -> dict[str, Any]:
    """The end of the first micro-batch, which is empty."""
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert first["key"]
    assert first["number"] == 0
    assert reader.partitions(start, first) == []
    return first


def values_between(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """As in a worker: from another copy of the reader."""
    worker = pickle.loads(pickle.dumps(reader))
    return sorted(
        int(row["value"])
        for task in pickle.loads(pickle.dumps(reader.partitions(start, end)))
        for batch in worker.read(task)
        for row in batch.to_pylist()
    )


def fill(queue: penstock.Queue, rows: int, first: int = 0) -> None:
    queue.push_many([b"%d" % each for each in range(first, first + rows)], batch=10)


def test_a_micro_batch_is_acknowledged_when_the_next_is_asked_for(url, queue) -> None:
    reader = reader_of(url, queue)
    first = begun(reader)
    fill(queue, 300)
    end = reader.latestOffset(first, ALL)
    assert end == {"key": first["key"], "number": 1}
    assert queue.pop() is None  # nobody else gets them
    for _ in range(2):
        assert values_between(reader, first, end) == list(range(300))
    fill(queue, 20, 300)
    later = reader.latestOffset(end, ALL)
    assert later["number"] == 2
    assert values_between(reader, end, later) == list(range(300, 320))
    assert queue.stats()["messages"] == 20
    with pytest.raises(NotFoundError):
        values_between(reader, first, end)


def test_nothing_is_reserved_before_spark_has_the_key(url, queue) -> None:
    """A driver that dies before it noted the key leaves nothing behind."""
    fill(queue, 10)
    keys = {begun(reader_of(url, queue))["key"] for _ in range(3)}
    assert len(keys) == 3
    assert queue.reservations() == []
    assert queue.stats()["ready"] == 10


def test_a_driver_that_died_finds_the_same_messages(url, queue) -> None:
    fill(queue, 100)
    reader = reader_of(url, queue, maxRowsPerBatch="30")
    first = begun(reader)
    end = reader.latestOffset(first, ReadMaxRows(30))
    found = values_between(reader, first, end)
    for _ in range(2):  # before it noted the end, and after that
        again = reader_of(url, queue)
        assert again.latestOffset(first, ALL) == end
        assert values_between(again, first, end) == found
    restarted = reader_of(url, queue)
    assert values_between(restarted, first, end) == found
    rest = restarted.latestOffset(end, ALL)
    assert sorted(found + values_between(restarted, end, rest)) == list(range(100))


def test_limits_of_rows_and_bytes(url, queue) -> None:
    queue.push_many([b"%0100d" % each for each in range(1000)], batch=10)
    rows = reader_of(url, queue, maxRowsPerBatch="70")
    assert rows.getDefaultReadLimit() == ReadMaxRows(70)
    first = begun(rows)
    end = rows.latestOffset(first, ReadMaxRows(70))
    assert len(values_between(rows, first, end)) == 70
    size = reader_of(url, queue, maxBytesPerBatch="20000")
    assert size.getDefaultReadLimit() == ReadMaxBytes(20000)
    first = begun(size)
    end = size.latestOffset(first, ReadMaxBytes(20000))
    assert 0 < len(values_between(size, first, end)) <= 200
    assert isinstance(reader_of(url, queue).getDefaultReadLimit(), ReadAllAvailable)


def test_a_run_that_ends_takes_what_is_there_when_it_begins(url, queue) -> None:
    fill(queue, 100)
    reader = reader_of(url, queue)
    reader.prepareForTriggerAvailableNow()
    fill(queue, 50, 100)
    place = begun(reader)
    sizes = []
    while (end := reader.latestOffset(place, ReadMaxRows(60))) != place:
        sizes.append(len(values_between(reader, place, end)))
        place = end
    assert sizes == [60, 40]
    assert queue.stats()["messages"] == 50


def test_news_end_the_wait(url, queue) -> None:
    reader = reader_of(url, queue)
    first = begun(reader)
    assert reader.latestOffset(first, ALL) == first
    pusher = threading.Timer(0.1, lambda: queue.push(b"1"))
    pusher.start()
    end = reader.latestOffset(first, ALL)
    pusher.join()
    assert values_between(reader, first, end) == [1]


def test_what_an_operator_released_is_told(url, queue) -> None:
    fill(queue, 10)
    reader = reader_of(url, queue)
    first = begun(reader)
    end = reader.latestOffset(first, ALL)
    queue.unreserve(first["key"])
    with pytest.raises(NotFoundError, match="has no reservation 1"):
        reader_of(url, queue).partitions(first, end)
    assert queue.stats()["ready"] == 10


def test_times_keys_and_headers_are_read(url, queue) -> None:
    queue.push(b"1", key=b"k", headers={"trace": b"7"}, timestamp=5.0)
    reader = reader_of(url, queue, includeHeaders="true")
    first = begun(reader)
    end = reader.latestOffset(first, ALL)
    (task,) = reader.partitions(first, end)
    (batch,) = reader.read(task)
    (row,) = batch.to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"1", [("trace", b"7")])
    assert row["timestamp"].timestamp() == 5.0
    declared = PenstockSource({"servers": url, "queue": "q", "includeHeaders": "true"}).schema()
    assert [each.split()[0] for each in declared.split(", ", 3)] == batch.schema.names


def test_parts_are_shared_evenly() -> None:
    parts = [ReservedPart(shard, messages, 0) for shard, messages in enumerate([5, 9, 1, 4, 4, 1])]
    groups = shared(parts, 2)
    assert sorted(part.shard for group in groups for part in group) == list(range(6))
    assert [sum(part.messages for part in group) for group in groups] == [13, 11]
    assert len(shared(parts[:1], 4)) == 1
    assert shared([], 4) == []
    assert isinstance(pickle.loads(pickle.dumps(QueueTask("k", 1, parts))), QueueTask)


@pytest.mark.parametrize("name", ["startingOffsets", "failOnDataLoss", "rowsPerTask"])
def test_options_of_topics_are_refused(name) -> None:
    with pytest.raises(InvalidError, match="is for topics"):
        parse_options({"servers": "s", "queue": "q", name: "1"})


def test_a_batch_of_a_queue_is_refused() -> None:
    with pytest.raises(InvalidError, match="availableNow"):
        refuse_stream_options(parse_options({"servers": "s", "queue": "q"}))
    with pytest.raises(InvalidError, match="`topic` or `queue`"):
        parse_options({"servers": "s", "queue": "q", "topic": "t"})
