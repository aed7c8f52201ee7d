"""Sessions by Spark are those of the consumer, also when the query is stopped and started."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.consumers.assembler import Assembler
from penstock.consumers.fragments import Fragments
from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.sessions import Sessionizer, SessionRecord, decode_session, session_order
from penstock.consumers.stateful import Completion, FunctionalStateful
from penstock.errors import InvalidError

pytest.importorskip("pyspark")

from pyspark.sql.functions import endswith, lit

from penstock.spark import SESSION_JSON, sessions, stateful

CLICKS = Clicks(seed=11, blocks=2, chains=150)


def publish(topic: penstock.Topic, clicks: Clicks) -> None:
    """All fragments; the last of all goes to every partition, so that all sessions are over."""
    *all_but_last, (keys, values, times_us) = clicks.columns()
    for names, texts, times in all_but_last:
        topic.publish_many(texts, keys=names, timestamps=(times / 1e6).tolist())
    for partition in range(topic.partitions):
        times = (times_us / 1e6).tolist()
        topic.publish_many(values, keys=keys, timestamps=times, partition=partition)


def by_consumer(topic: penstock.Topic, stateful: Any) -> list[bytes]:
    """What the consumer's assembler makes of the topic."""
    found = []
    for partition in range(topic.partitions):
        assembler = Assembler(stateful, partition=partition)
        with topic.read(partition) as batches:
            for batch in batches:
                step = assembler.take(Fragments.of_batch(batch), 0)
                found += [each.value for each in step.results]
    return found


def stream_of(
    spark: Any, url: str, topic: penstock.Topic, rows: int, source: str = "penstock"
) -> Any:
    reader = spark.readStream.format(source).option("servers", url).option("topic", topic.name)
    return reader.options(startingOffsets="earliest", maxRowsPerBatch=rows).load()


def run(df: Any, out: Path, checkpoint: str) -> None:
    writer = df.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(100)


def values_in(spark: Any, out: Path) -> list[bytes]:
    return [bytes(value) for (value,) in spark.read.parquet(str(out)).select("value").collect()]


def records(values: list[bytes]) -> list[SessionRecord]:
    return sorted(map(decode_session, values), key=session_order)


SETTINGS: dict[str, Any] = {
    "end": is_end, "timeout": CLICKS.timeout, "delay": CLICKS.delay, "fragment_id": bytes,
}  # fmt: skip


@pytest.mark.parametrize("source", ["penstock", "penstock-packed"])
def test_sessions_are_those_of_the_consumer(
    source, spark, url, topic, checkpoint, tmp_path
) -> None:
    publish(topic, CLICKS)
    out = tmp_path / "out"
    run(sessions(stream_of(spark, url, topic, 1500, source), **SETTINGS), out, checkpoint)
    found = values_in(spark, out)
    assert sorted(found) == sorted(by_consumer(topic, Sessionizer(**SETTINGS)))
    assert records(found) == sorted(CLICKS.answer(), key=session_order)

    from pyspark.sql.functions import col, from_json

    parsed = spark.read.parquet(str(out)).select(
        from_json(col("value").cast("string"), SESSION_JSON).alias("session"), "first", "count"
    )
    row = parsed.where("session.count > 3").first()
    assert len(row.session.fragments) == row.session["count"]
    assert row.session.start_us == round(row["first"].timestamp() * 1e6)


@pytest.mark.parametrize("source", ["penstock", "penstock-packed"])
def test_a_batch_gives_all_sessions_of_it(source, spark, url, topic) -> None:
    publish(topic, CLICKS)
    reader = spark.read.format(source).option("servers", url).option("topic", topic.name)
    found = [bytes(row.value) for row in sessions(reader.load(), **SETTINGS).collect()]
    known = [each for each in found if b"~closing" not in each]
    assert sorted(known) == sorted(by_consumer(topic, Sessionizer(**SETTINGS)))
    assert len(found) == len(known) + topic.partitions, "what is open in the end is over, too"


def test_buckets_and_a_condition_for_ends(spark, url, topic, checkpoint, tmp_path) -> None:
    publish(topic, CLICKS)
    # At once: partitions are not read in step, and a row is late by the latest of its bucket.
    stream = stream_of(spark, url, topic, 100_000)
    settings = SETTINGS | {"end": endswith("value", lit(b":END"))}
    run(sessions(stream, **settings, buckets=3), tmp_path / "out", checkpoint)
    found = [each for each in values_in(spark, tmp_path / "out") if b"~closing" not in each]
    # The last fragment of all is of one bucket: what is open in the others is not over.
    assert set(found) <= set(by_consumer(topic, Sessionizer(**SETTINGS)))
    batch = spark.read.format("penstock").option("servers", url).option("topic", topic.name)
    whole = sessions(batch.load(), **settings, buckets=3).where("reason != 'late'").collect()
    values = [bytes(row.value) for row in whole if bytes(row.key) != b"~closing"]
    assert records(values) == sorted(CLICKS.answer(), key=session_order)
    assert len(set(values) - set(found)) < len(values) / 10


def test_sessions_go_on_where_a_topic_has_grown(
    spark, url, fabric, topic, checkpoint, tmp_path
) -> None:
    df = sessions(stream_of(spark, url, topic, 1200, "penstock-packed"), **SETTINGS)
    *parts, (keys, values, times_us) = CLICKS.columns()
    for number, (names, texts, times) in enumerate(parts):
        topic.publish_many(texts, keys=names, timestamps=(times / 1e6).tolist())
        topic.grow(partitions=3 + 2 * number)
        if number == 1:
            run(df, tmp_path / "out", checkpoint)  # some of it before the last growth
    for partition in range(7):
        times = (times_us / 1e6).tolist()
        topic.publish_many(values, keys=keys, timestamps=times, partition=partition)
    run(df, tmp_path / "out", checkpoint)
    found = [each for each in values_in(spark, tmp_path / "out") if b"~closing" not in each]
    assert records(found) == sorted(CLICKS.answer(), key=session_order)


def test_late_fragments_can_be_had(spark, url, fabric, checkpoint, tmp_path) -> None:
    topic = fabric.topic("with-late-ones", partitions=1)
    publish(topic, Clicks(seed=12, blocks=2, chains=150, late=0.05))
    df = sessions(
        stream_of(spark, url, topic, 100_000),
        end=is_end, timeout=CLICKS.timeout, delay=CLICKS.delay, late="side",
    )  # fmt: skip
    run(df.where("reason = 'late'"), tmp_path / "out", checkpoint)
    found = values_in(spark, tmp_path / "out")
    assert found
    assert all(value.endswith(b":late") for value in found)


def test_any_stateful_runs_in_spark(spark, url, topic, checkpoint, tmp_path) -> None:
    publish(topic, CLICKS)

    def counting() -> Any:
        return FunctionalStateful(
            Completion(timeout=CLICKS.timeout, delay=CLICKS.delay),
            lambda key: 0,
            lambda state, fragment: state + 1,
            lambda state, about: [b"%s %d" % (about.key, state)],
        )

    run(stateful(stream_of(spark, url, topic, 2000), counting()), tmp_path / "out", checkpoint)
    found = values_in(spark, tmp_path / "out")
    assert sorted(found) == sorted(by_consumer(topic, counting()))


def test_what_cannot_be_done_is_told(spark, url, topic) -> None:
    stream = stream_of(spark, url, topic, 10)
    with pytest.raises(InvalidError, match="Give `buckets`"):
        sessions(stream.drop("offset"), timeout=5.0)
    with pytest.raises(InvalidError, match="use 1 to"):
        sessions(stream, timeout=5.0, buckets=0)
    with pytest.raises(Exception, match="only the messages of a topic"):
        spark.readStream.format("penstock-packed").options(servers=url, queue="q").load()
    packed = stream_of(spark, url, topic, 10, "penstock-packed")
    with pytest.raises(InvalidError, match="by their partition"):
        sessions(packed, timeout=5.0, buckets=4)
    with pytest.raises(InvalidError, match="a fold or an encoder"):
        sessions(stream, end=endswith("value", lit(b":END")), encoder=lambda record: b"")


@pytest.mark.slow
def test_silence_ends_sessions_by_the_clock(spark, url, topic, checkpoint) -> None:
    topic.publish(b"only", key=b"k")
    df = sessions(stream_of(spark, url, topic, 100), timeout=1.0, delay=0.5, idle_after=0.5)
    writer = df.writeStream.format("memory").queryName("silence")
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        until = time.monotonic() + 90
        while not (found := spark.sql("select value, reason from silence").collect()):
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        query.stop()
    [row] = found
    assert row.reason == "timeout"
    assert decode_session(bytes(row.value)).key == "k"
