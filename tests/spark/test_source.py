"""Topics read by a real Spark session from a real node."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock

pytest.importorskip("pyspark")

ROWS = 30_000


def batch_of(spark: Any, url: str, topic: penstock.Topic, **options: object) -> Any:
    reader = spark.read.format("penstock").option("servers", url).option("topic", topic.name)
    return reader.options(**options).load()


def stream_of(spark: Any, url: str, topic: penstock.Topic, **options: object) -> Any:
    reader = spark.readStream.format("penstock").option("servers", url).option("topic", topic.name)
    return reader.options(**{"startingOffsets": "earliest", **options}).load()


def run(df: Any, out: Path, checkpoint: str) -> Any:
    """One run up to where the topic ends; rows go to files, which are exact over restarts."""
    writer = df.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(100)
    return query


def fill(topic: penstock.Topic, rows: int, first: int = 0) -> None:
    numbers = range(first, first + rows)
    keys = [b"%d" % each for each in numbers]
    topic.publish_many([b"value " + key for key in keys], keys=keys)


def numbers_of(df: Any) -> list[int]:
    return sorted(int(bytes(value).split()[1]) for (value,) in df.select("value").collect())


def test_a_batch_has_every_row_once(spark, url, topic) -> None:
    fill(topic, ROWS)
    df = batch_of(spark, url, topic)
    assert numbers_of(df) == list(range(ROWS))
    found = df.selectExpr("partition", "offset", "key", "topic").collect()
    for partition, (first, end) in enumerate(topic.offsets()):
        offsets = sorted(row.offset for row in found if row.partition == partition)
        assert offsets == list(range(first, end))
    assert {row.topic for row in found} == {topic.name}
    assert df.rdd.getNumPartitions() >= 2


def test_a_topic_without_messages_has_no_rows(spark, url, topic) -> None:
    df = spark.read.format("penstock").option("servers", url).option("topic", topic.name).load()
    assert df.collect() == []
    assert df.where("offset > 7").count() == 0


def test_offsets_say_where_a_batch_begins_and_ends(spark, url, topic) -> None:
    fill(topic, 2000)
    ends = {each: end for each, (_, end) in enumerate(topic.offsets())}
    df = batch_of(spark, url, topic, startingOffsets=json.dumps({"0": 10, "1": ends[1] - 5}),
                  endingOffsets=json.dumps({"0": 20}))  # fmt: skip
    found = sorted((row.partition, row.offset) for row in df.collect())
    assert found == [(0, each) for each in range(10, 20)] + [
        (1, each) for each in range(ends[1] - 5, ends[1])
    ]


def test_times_of_arrival_say_where_a_batch_begins_and_ends(spark, url, topic) -> None:
    fill(topic, 100)
    time.sleep(0.01)
    border = datetime.now(UTC)
    time.sleep(0.01)
    fill(topic, 50, first=100)
    later = batch_of(spark, url, topic, startingTime=border.isoformat())
    sooner = batch_of(spark, url, topic, endingTime=border.isoformat())
    assert numbers_of(later) == list(range(100, 150))
    assert numbers_of(sooner) == list(range(100))


def test_conditions_are_met_by_the_source(spark, url, topic, capsys) -> None:
    fill(topic, 2000)
    df = batch_of(spark, url, topic)
    chosen = df.where("partition = 1 and offset >= 5 and offset < 8")
    assert [(row.partition, row.offset) for row in chosen.sort("offset").collect()] == [
        (1, 5), (1, 6), (1, 7),
    ]  # fmt: skip
    chosen.explain()
    assert "Filter (" not in capsys.readouterr().out
    future = datetime.now(UTC) + timedelta(days=1)
    df.where(df.timestamp > future).explain()
    assert "Filter (" not in capsys.readouterr().out
    assert df.where(df.timestamp > future).count() == 0
    assert df.where(df.timestamp < future).count() == 2000
    assert df.where("partition in (0, 1) and key = '7'").count() == 1


def test_headers_and_missing_keys(spark, url, topic) -> None:
    topic.publish(b"with", key=b"k", headers={"trace": b"7"})
    topic.publish(b"without")
    rows = batch_of(spark, url, topic, includeHeaders="true").collect()
    by_value = {bytes(row.value): row for row in rows}
    headers = by_value[b"with"].headers
    assert {name: bytes(value) for name, value in headers.items()} == {"trace": b"7"}
    assert by_value[b"without"].headers == {}
    assert by_value[b"without"].key is None


def test_a_stream_goes_on_where_it_was(spark, url, topic, checkpoint, tmp_path) -> None:
    fill(topic, 3000)
    query = run(stream_of(spark, url, topic, maxRowsPerBatch="1000"), tmp_path / "out", checkpoint)
    sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sizes == [1000, 1000, 1000]
    fill(topic, 500, first=3000)
    run(stream_of(spark, url, topic), tmp_path / "out", checkpoint)
    assert numbers_of(spark.read.parquet(str(tmp_path / "out"))) == list(range(3500))


def test_a_waiting_stream_gets_news(spark, url, topic) -> None:
    came = threading.Event()

    def seen(df: Any, _: int) -> None:
        if df.count():
            came.set()

    query = stream_of(spark, url, topic).writeStream.foreachBatch(seen).start()
    try:
        fill(topic, 10)
        assert came.wait(60)
        came.clear()
        fill(topic, 10)
        assert came.wait(60)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"namespace": "nowhere"}, "NotFoundError"),
        ({"maxRowPerBatch": "3"}, "did you mean 'maxRowsPerBatch'"),
        ({"startingOffsets": '{"7": 0}'}, "no partition 7"),
        ({"maxRowsPerBatch": "3"}, "for streams"),
    ],
)
def test_bad_options_are_told(spark, url, topic, options, said) -> None:
    with pytest.raises(Exception, match=said):
        batch_of(spark, url, topic, **options).collect()


def test_a_path_gets_a_node_of_its_own(spark, tmp_path) -> None:
    data = str(tmp_path / "data")
    with penstock.open(data) as fabric:
        fabric.topic("inside", partitions=1).publish_many([b"a", b"b"])
    reader = spark.read.format("penstock").option("topic", "inside")
    assert reader.load(data).count() == 2
    assert reader.option("path", data).load().count() == 2  # the same node


def test_a_path_in_use_is_told(spark, tmp_path) -> None:
    data = str(tmp_path / "data")
    with penstock.open(data) as fabric:
        fabric.topic("inside", partitions=1)
        with pytest.raises(Exception, match="no node could be started"):
            spark.read.format("penstock").option("topic", "inside").load(data).count()
