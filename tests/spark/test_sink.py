"""Topics and queues written and queues read by a real Spark session, on a real node."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tests.spark.test_source import batch_of, fill, numbers_of, stream_of
from tests.spark.test_writers import values

import penstock

pytest.importorskip("pyspark")

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_numbers = count(1)


@pytest.fixture
def queue(fabric: penstock.Fabric) -> penstock.Queue:
    return fabric.queue(f"spark-queue-{next(_numbers)}")


@pytest.fixture
def out(fabric: penstock.Fabric) -> penstock.Topic:
    return fabric.topic(f"out-{next(_numbers)}", partitions=3)


def saved(df: Any, url: str, **options: object) -> None:
    df.write.format("penstock").mode("append").option("servers", url).options(**options).save()


def run(df: Any, url: str, checkpoint: str, **options: object) -> Any:
    """One run up to where the source ends."""
    writer = df.writeStream.format("penstock").option("servers", url).options(**options)
    writer = writer.option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    return query


def popped(queue: penstock.Queue) -> list[int]:
    found = []
    while messages := queue.pop_many(1000):
        found += [int(message.value) for message in messages]
        queue.ack(messages, wait=True)
    return sorted(found)


def test_a_batch_is_written_and_read(spark, url, out) -> None:
    df = spark.range(20_000).selectExpr(
        "string(id % 100) key", "concat('value ', id) value", "timestamp_seconds(id) timestamp",
        "map('trace', binary(string(id))) headers",
    )  # fmt: skip
    saved(df, url, topic=out.name)
    found = batch_of(spark, url, out, includeHeaders="true")
    assert numbers_of(found) == list(range(20_000))
    row = found.where("string(value) = 'value 17'").first()
    assert (bytes(row.key), row.timestamp.timestamp()) == (b"17", 17)
    assert {name: bytes(value) for name, value in row.headers.items()} == {"trace": b"17"}
    keys = found.selectExpr("key", "partition").distinct().count()
    assert keys == 100  # each in one partition


def test_a_batch_of_a_job_is_written_once(spark, url, queue) -> None:
    df = spark.range(500).selectExpr("string(id) value")
    for _ in range(2):
        saved(df, url, queue=queue.name, jobId="nightly")
    assert popped(queue) == list(range(500))


def test_a_batch_that_fails_leaves_nothing(spark, url, out) -> None:
    df = spark.range(1000).selectExpr("if(id = 777, null, string(id)) value")
    with pytest.raises(Exception, match="column 'value' is null in row"):
        saved(df, url, topic=out.name)
    assert values(out) == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["id value"], {}, "not binary or string"),
        (["string(id) value", "id"], {}, "column 'id'"),
        (["string(id) value"], {"jobNumber": "2"}, "give that, too"),
        (["string(id) value"], {"tpic": "x"}, "did you mean 'topic'"),
        (["string(id) value"], {"namespace": "nowhere"}, "NotFoundError"),
    ],
)
def test_what_is_wrong_with_a_batch_is_told(spark, url, out, columns, options, said) -> None:
    with pytest.raises(Exception, match=said):
        saved(spark.range(5).selectExpr(*columns), url, topic=out.name, **options)
    assert values(out) == []


def test_a_stream_goes_on_where_it_was(spark, url, topic, out, checkpoint) -> None:
    fill(topic, 3000)
    rows = stream_of(spark, url, topic, maxRowsPerBatch="1000").select("key", "value", "timestamp")
    run(rows, url, checkpoint, topic=out.name)
    fill(topic, 500, first=3000)
    rows = stream_of(spark, url, topic).select("key", "value", "timestamp")
    run(rows, url, checkpoint, topic=out.name)
    run(rows, url, checkpoint, topic=out.name)
    found = batch_of(spark, url, out)
    assert numbers_of(found) == list(range(3500))
    before = batch_of(spark, url, topic).selectExpr("value", "key", "timestamp")
    assert before.exceptAll(found.selectExpr("value", "key", "timestamp")).count() == 0


def test_a_stream_that_would_begin_anew_is_refused(spark, url, topic, out, tmp_path) -> None:
    rows = stream_of(spark, url, topic).select("value")
    writer = rows.writeStream.format("penstock").option("servers", url).option("topic", out.name)
    writer = writer.trigger(availableNow=True)
    spark.conf.set(CHECKPOINTS, str(tmp_path))
    try:
        with pytest.raises(Exception, match="needs `checkpointLocation`"):
            writer.start().awaitTermination(100)
        fill(topic, 10)
        for _ in range(2):
            assert writer.queryName("named").start().awaitTermination(100)
    finally:
        spark.conf.unset(CHECKPOINTS)
    assert len(values_of(out)) == 10


def test_a_stream_that_fails_may_be_started_again(spark, url, topic, out, checkpoint) -> None:
    fill(topic, 100)
    topic.publish(b"value 100", key=b"bad")
    rows = stream_of(spark, url, topic)
    broken = rows.selectExpr("key", "if(string(key) = 'bad', null, value) value")
    with pytest.raises(Exception, match="is null in row"):
        run(broken, url, checkpoint, topic=out.name)
    assert values_of(out) == []
    run(rows.select("key", "value"), url, checkpoint, topic=out.name)
    assert sorted(values_of(out)) == sorted(b"value %d" % each for each in range(101))


def values_of(topic: penstock.Topic) -> list[bytes]:
    return [
        value
        for partition in range(topic.partitions)
        for batch in topic.read(partition)
        for value in batch.values
    ]


def test_each_batch_with_a_number(spark, url, topic, out, queue, checkpoint) -> None:
    """One stream, two outputs: a batch write for each, under the number of the micro-batch."""
    fill(topic, 2000)

    def write(df: Any, number: int) -> None:
        for _ in range(2):  # as after a crash between the two
            saved(df.select("key", "value"), url, topic=out.name, jobId="two", jobNumber=number)
        text = df.selectExpr("substr(string(value), 7) value")
        saved(text, url, queue=queue.name, jobId="two", jobNumber=number)

    writer = stream_of(spark, url, topic, maxRowsPerBatch="700").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    assert writer.start().awaitTermination(100)
    assert numbers_of(batch_of(spark, url, out)) == list(range(2000))
    assert popped(queue) == list(range(2000))


def test_a_queue_is_moved_to_another(spark, url, queue, fabric, checkpoint) -> None:
    other = fabric.queue(f"{queue.name}-other")
    for first in (0, 400):
        queue.push_many([b"%d" % each for each in range(first, first + 400)], batch=20)
        reader = spark.readStream.format("penstock").option("servers", url)
        rows = reader.option("queue", queue.name).option("maxRowsPerBatch", 150).load()
        query = run(rows, url, checkpoint, queue=other.name)
        sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert sum(sizes) == 400
        assert max(sizes) <= 150
    assert queue.stats()["messages"] == 0
    assert queue.reservations() == []
    assert popped(other) == list(range(800))


def test_a_batch_of_a_queue_is_refused(spark, url, queue) -> None:
    with pytest.raises(Exception, match="a queue is read by a stream"):
        spark.read.format("penstock").options(servers=url, queue=queue.name).load().count()


def test_a_path_gets_a_node_of_its_own(spark, tmp_path) -> None:
    data = str(tmp_path / "data")
    with penstock.open(data) as fabric:
        fabric.topic("inside", partitions=1)
    df = spark.range(30).selectExpr("string(id) value")
    df.write.format("penstock").mode("append").option("topic", "inside").save(data)
    assert spark.read.format("penstock").option("topic", "inside").load(data).count() == 30
