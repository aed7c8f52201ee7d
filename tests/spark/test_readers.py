"""The readers as Spark's planner and workers call them, without Spark's Java part."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.node.conftest import NodeProcess
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock.errors import ConflictError, NotFoundError

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.spark.options import parse_options
from penstock.spark.source import PenstockSource, TopicStreamReader

ALL = ReadAllAvailable()


def reader_of(url: str, topic: str, **options: str) -> TopicStreamReader:
    given = {"servers": url, "topic": topic, "startingOffsets": "earliest", "timeout": "20"}
    return TopicStreamReader(parse_options(given | options))


def rows_between(reader: Any, start: dict[str, int], end: dict[str, int]) -> list[tuple[int, int]]:
    """As in a worker: from another copy of the reader."""
    worker = pickle.loads(pickle.dumps(reader))
    return [
        (row["partition"], row["offset"])
        for task in reader.partitions(start, end)
        for batch in worker.read(task)
        for row in batch.to_pylist()
    ]


def test_partitions_that_appear_are_read_from_their_beginning(url, topic) -> None:
    topic.publish_many([b"x"] * 10, partition=0)
    topic.publish_many([b"y"] * 5, partition=1)
    reader = reader_of(url, topic.name)
    start = {"0": 4}  # of a time when there was one partition
    end = reader.latestOffset(start, ALL)
    assert end == {"0": 10, "1": 5}
    assert rows_between(reader, start, end) == [(0, each) for each in range(4, 10)] + [
        (1, each) for each in range(5)
    ]
    assert reader.latestOffset(start, ReadMaxRows(3)) in ({"0": 5, "1": 2}, {"0": 6, "1": 1})


def test_limits_of_rows_and_bytes(url, topic) -> None:
    topic.publish_many([b"x" * 1000] * 400, partition=0, batch=10)
    assert isinstance(reader_of(url, topic.name).getDefaultReadLimit(), ReadAllAvailable)
    by_rows = reader_of(url, topic.name, maxRowsPerBatch="7")
    start = by_rows.initialOffset()
    assert by_rows.getDefaultReadLimit() == ReadMaxRows(7)
    assert by_rows.latestOffset(start, ReadMaxRows(7)) == {"0": 7, "1": 0}
    by_bytes = reader_of(url, topic.name, maxBytesPerBatch="20000")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(20000)
    end = by_bytes.latestOffset(start, ReadMaxBytes(20000))
    assert 15 <= end["0"] <= 20
    assert by_bytes.latestOffset(start, ALL) == {"0": 400, "1": 0}


def test_what_comes_after_available_now_is_left_for_the_next_run(url, topic) -> None:
    topic.publish_many([b"x"] * 10, partition=0)
    reader = reader_of(url, topic.name)
    reader.prepareForTriggerAvailableNow()
    topic.publish_many([b"x"] * 10, partition=0)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end == {"0": 10, "1": 0}
    assert reader.latestOffset(end, ALL) == end
    assert reader.reportLatestOffset() == {"0": 20, "1": 0}


def test_no_news_are_waited_for_and_news_end_the_wait(url, topic) -> None:
    reader = reader_of(url, topic.name, startingOffsets="latest")
    start = reader.initialOffset()
    begun = time.monotonic()
    assert reader.latestOffset(start, ALL) == start
    waited = time.monotonic() - begun
    assert waited > 0.9
    publisher = threading.Timer(0.1, lambda: topic.publish(b"x", partition=1))
    publisher.start()
    assert reader.latestOffset(start, ALL) == {"0": 0, "1": 1}
    publisher.join()


def test_a_topic_that_was_made_anew_is_told(url, fabric) -> None:
    fabric.topic("made-anew", partitions=1).publish_many([b"x"] * 10)
    reader = reader_of(url, "made-anew")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    fabric.delete_topic("made-anew")
    fabric.topic("made-anew", partitions=1)
    again = reader_of(url, "made-anew")
    with pytest.raises(ConflictError, match="another topic"):
        again.latestOffset(end, ALL)
    lenient = reader_of(url, "made-anew", failOnDataLoss="false")
    assert lenient.latestOffset(end, ALL) == end


def test_messages_that_are_gone_are_told(url, fabric) -> None:
    topic = fabric.topic("short", partitions=1, retention_bytes=20_000)
    topic.publish_many([b"x" * 1000] * 200, batch=5)
    wait_for(lambda: topic.offsets()[0][0] > 0)
    reader = reader_of(url, "short")
    with pytest.raises(NotFoundError, match="set failOnDataLoss to false"):
        rows_between(reader, {"0": 0}, {"0": 200})
    first = topic.offsets()[0][0]
    lenient = reader_of(url, "short", failOnDataLoss="false")
    assert rows_between(lenient, {"0": 0}, {"0": 200}) == [(0, each) for each in range(first, 200)]


def test_compressed_batches_are_read(url, topic) -> None:
    topic.publish_many([b"x" * 100] * 1000, partition=0, compression="zstd")
    reader = reader_of(url, topic.name)
    assert len(rows_between(reader, {"0": 250}, {"0": 750})) == 500


@pytest.fixture
def node(tmp_path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path / "data")
    process.start()
    yield process
    process.end()


def test_a_killed_node_is_waited_for(node) -> None:
    with node.connect() as fabric:
        fabric.topic("t", partitions=1).publish_many([b"x"] * 10)
    reader = reader_of(node.url, "t")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    node.end()
    threading.Timer(0.3, node.start).start()
    assert rows_between(reader, start, end) == [(0, each) for each in range(10)]
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.slow
def test_another_node_takes_over(tmp_path) -> None:
    nodes = Nodes(tmp_path)
    try:
        nodes.start(1, 2, 3)
        wait_for(lambda: nodes.whole(1, 2, 3))
        url = ",".join(process.listen for process in nodes.processes.values())
        with penstock.connect(url) as fabric:
            topic = fabric.topic("t", partitions=6)
            for partition in range(6):
                topic.publish_many([b"x"] * 10, partition=partition)
        reader = reader_of(url, "t", timeout="60")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        nodes.processes[2].end()
        found = rows_between(reader, start, end)
        assert found == [(partition, each) for partition in range(6) for each in range(10)]
    finally:
        nodes.end()


def test_the_schema_follows_the_options() -> None:
    given = {"servers": "x", "topic": "t"}
    assert "headers" not in PenstockSource(given).schema()
    assert PenstockSource(given | {"includeHeaders": "true"}).schema().endswith("binary>")


def test_a_topic_that_grows_is_read_whole(url, fabric) -> None:
    topic = fabric.topic("growing", partitions=1)
    keys = [b"%d" % each for each in range(40)]
    topic.publish_many([b"before"] * 40, keys=keys)
    reader = reader_of(url, "growing")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    topic.grow(3)
    topic.publish_many([b"after"] * 40, keys=keys)
    wait_for(lambda: reader.latestOffset(first, ALL).keys() == {"0", "1", "2"})
    end = reader.latestOffset(first, ALL)
    assert len(rows_between(reader, start, first)) == 40
    found = rows_between(reader, first, end)
    assert len(found) == 40
    assert {partition for partition, _ in found} == {0, 1, 2}
    assert min(offset for _, offset in found) == 40  # children start where their parent was split
    assert reader.latestOffset(end, ReadMaxRows(1)) == end
