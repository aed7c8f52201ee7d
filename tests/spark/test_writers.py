"""The writers as Spark's workers and planner call them, without Spark's Java part."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.node.conftest import NodeProcess
from tests.node.test_cluster import Nodes, wait_for

import penstock
from penstock.errors import ConflictError, InvalidError, NotFoundError

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from penstock.spark.sink import BatchWriter, Staged, StreamWriter, check_schema, gathered
from penstock.spark.sink_options import check_batch_sink, check_stream_sink, parse_sink_options

SCHEMA = StructType().add("key", "string").add("value", "binary")
BASE = {"servers": "penstock://127.0.0.1:7411", "topic": "t"}


def writer_of(url: str, kind: type = StreamWriter, **options: str) -> Any:
    """As in a worker or in the process that commits: another copy each time."""
    given = {"servers": url, "timeout": "20"} | options
    if kind is StreamWriter:
        given.setdefault("queryId", "q")
    return pickle.loads(pickle.dumps(kind(parse_sink_options(given), SCHEMA, False)))


def rows(count: int, first: int = 0, keys: int = 5) -> Iterator[pa.RecordBatch]:
    numbers = range(first, first + count)
    yield pa.record_batch(
        {
            "key": pa.array([f"k{each % keys}" for each in numbers]),
            "value": pa.array([b"%d" % each for each in numbers]),
        }
    )


def values(topic: penstock.Topic) -> list[int]:
    return sorted(
        int(value)
        for partition in range(topic.partitions)
        for batch in topic.read(partition)
        for value in batch.values
    )


def test_rows_are_seen_when_they_are_committed(url, topic) -> None:
    tasks = [writer_of(url, topic=topic.name).write(rows(100, first)) for first in (0, 100)]
    assert values(topic) == []
    writer_of(url, topic=topic.name).commit(pickle.loads(pickle.dumps(tasks)), 0)
    assert values(topic) == list(range(200))


def test_an_attempt_that_lost_is_never_seen(url, topic) -> None:
    """A task that ran again after a failure, or at the same time as another copy of itself."""
    lost = writer_of(url, topic=topic.name).write(rows(100))
    won = writer_of(url, topic=topic.name).write(rows(100))
    writer = writer_of(url, topic=topic.name)
    writer.commit([won], 0)
    writer.commit([writer.write(rows(50, 100))], 1)
    assert values(topic) == list(range(150))
    writer.abort([lost], 2)
    assert values(topic) == list(range(150))


def test_a_batch_that_runs_again_after_its_commit_is_dropped(url, topic) -> None:
    """The driver died between the commit and its own note of it."""
    writer = writer_of(url, topic=topic.name)
    first = writer.write(rows(100))
    writer.commit([first], 0)
    writer.commit([first], 0)
    again = writer_of(url, topic=topic.name)
    again.commit([again.write(rows(60)), again.write(rows(40, 60))], 0)
    again.commit([again.write(rows(10, 100))], 1)
    assert values(topic) == list(range(110))


def test_an_older_checkpoint_is_told(url, topic) -> None:
    writer = writer_of(url, topic=topic.name)
    for number in range(3):
        writer.commit([writer.write(rows(10, 10 * number))], number)
    with pytest.raises(ConflictError, match="has published number 2") as caught:
        writer.commit([writer.write(rows(10))], 0)
    assert "checkpoint" in str(caught.value)
    assert values(topic) == list(range(30))
    other = writer_of(url, topic=topic.name, queryId="other")
    other.commit([other.write(rows(10, 30))], 0)
    assert values(topic) == list(range(40))


def test_two_sinks_may_have_the_same_name(url, fabric, topic) -> None:
    queue = fabric.queue("same-name")
    for options in ({"topic": topic.name}, {"queue": "same-name"}):
        writer = writer_of(url, **options)
        writer.commit([writer.write(rows(10))], 0)
    assert values(topic) == list(range(10))
    assert queue.stats()["ready"] == 10


def test_what_is_aborted_cannot_be_committed(url, topic) -> None:
    writer = writer_of(url, topic=topic.name)
    staged = writer.write(rows(10))
    writer.abort([staged, None], 0)
    with pytest.raises(NotFoundError, match="Nothing was published"):
        writer.commit([staged], 0)
    assert values(topic) == []


def test_a_stage_that_expired_is_told_and_can_be_staged_anew(url, topic) -> None:
    short = writer_of(url, topic=topic.name, stageExpires="0.05")
    staged = short.write(rows(10))
    assert wait_for(lambda: stage_is_gone(short, staged))
    with pytest.raises(NotFoundError, match="stageExpires"):
        short.commit([staged], 0)
    again = writer_of(url, topic=topic.name)
    again.commit([again.write(rows(10))], 0)
    assert values(topic) == list(range(10))


def stage_is_gone(writer: Any, staged: Staged) -> bool:
    """A publication that needs another stage, which nobody has, publishes nothing either way."""
    token = staged.read()
    missing = penstock.StageToken(b"\1" * 16, ((token.parts[0][0], 1),))
    try:
        writer._link.fabric().publish_staged("probe", 0, [token, missing])
    except NotFoundError as error:
        return token.stage.hex() in str(error)
    return False


def test_a_null_value_is_told_with_its_row(url, topic) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(7)
        yield pa.record_batch({"key": pa.array(["a", None]), "value": pa.array([b"x", None])})

    with pytest.raises(InvalidError, match="column 'value' is null in row 8"):
        writer_of(url, topic=topic.name).write(batches())
    assert values(topic) == []


def test_a_row_without_a_key_has_none(url, topic) -> None:
    table = pa.record_batch(
        {"key": pa.array([None, "k"], pa.large_string()), "value": pa.array(["1", "2"])}
    )
    writer = writer_of(url, topic=topic.name)
    writer.commit([writer.write(iter([table]))], 0)
    found = [
        (key, value)
        for partition in range(2)
        for batch in topic.read(partition)
        for key, value in zip(batch.keys, batch.values, strict=True)
    ]
    assert sorted(found, key=str) == [(None, b"1"), (b"k", b"2")]


def test_a_topic_may_grow_between_write_and_commit(url, fabric) -> None:
    fabric.topic("grown-sink", partitions=1)
    writer = writer_of(url, topic="grown-sink")
    before = writer.write(rows(400, keys=40))
    fabric.topic("grown-sink").grow(3)
    after = writer.write(rows(400, 400, keys=40))
    writer.commit([before], 0)
    writer.commit([after], 1)
    topic = fabric.topic("grown-sink")
    assert wait_for(lambda: len(values(topic)) == 800)
    assert values(topic) == list(range(800))
    homes: dict[bytes | None, set[int]] = {}
    for partition in range(3):
        for batch in topic.read(partition):
            for key in batch.keys:
                homes.setdefault(key, set()).add(partition)
    assert all(len(found) == 1 for found in homes.values())
    assert set().union(*homes.values()) == {0, 1, 2}


def test_a_task_that_fails_leaves_nothing(url, topic) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(40_000)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer_of(url, topic=topic.name).write(batches())
    assert values(topic) == []


def test_times_and_headers_arrive(url, topic) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    table = pa.record_batch(
        {
            "value": pa.array([b"1"]),
            "timestamp": pa.array([moment], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("trace", b"7")]], pa.map_(pa.string(), pa.binary())),
        }
    )
    writer = writer_of(url, topic=topic.name, compression="zstd")
    writer.commit([writer.write(iter([table]))], 0)
    (batch,) = [batch for partition in range(2) for batch in topic.read(partition)]
    assert batch.timestamps.tolist() == [int(moment.timestamp() * 1_000_000)]
    assert batch.headers == [{"trace": b"7"}]


def test_a_job_is_written_once(url, topic, fabric) -> None:
    for _ in range(2):
        writer = writer_of(url, BatchWriter, topic=topic.name, jobId="load")
        writer.commit([writer.write(rows(10)), writer.write(iter([]))])
    assert values(topic) == list(range(10))
    later = writer_of(url, BatchWriter, topic=topic.name, jobId="load", jobNumber="1")
    later.commit([later.write(rows(10, 10))])
    assert values(topic) == list(range(20))
    with pytest.raises(ConflictError):
        writer.commit([writer.write(rows(10))])


def test_a_job_without_a_name_is_written_each_time(url, topic, fabric) -> None:
    known = len(fabric.publications())
    for _ in range(2):
        writer = writer_of(url, BatchWriter, topic=topic.name)
        writer.abort([writer.write(rows(5, 500))])
        writer.commit([writer.write(rows(10))])
    assert values(topic) == sorted([*range(10), *range(10)])
    assert len(fabric.publications()) == known


def test_an_empty_micro_batch_is_committed(url, topic) -> None:
    writer = writer_of(url, topic=topic.name)
    writer.commit([], 0)
    writer.commit([writer.write(iter([]))], 1)
    writer.commit([writer.write(rows(5))], 2)
    assert values(topic) == list(range(5))


def test_a_node_that_is_killed_while_a_task_writes_is_waited_for(tmp_path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        with node.connect() as fabric:
            fabric.topic("t", partitions=2)

        def batches() -> Iterator[pa.RecordBatch]:
            yield from rows(40_000)
            node.end()
            node.start()
            yield from rows(40_000, 40_000)

        writer = writer_of(node.url, topic="t")
        staged = writer.write(batches())
        node.end()
        node.start()
        writer.commit([staged], 0)
        with node.connect() as fabric:
            assert values(fabric.topic("t")) == list(range(80_000))
    finally:
        node.end()


@pytest.mark.slow
def test_another_node_takes_over(tmp_path) -> None:
    nodes = Nodes(tmp_path)
    try:
        nodes.start(1, 2, 3)
        wait_for(lambda: nodes.whole(1, 2, 3))
        url = ",".join(process.listen for process in nodes.processes.values())
        with penstock.connect(url) as fabric:
            topic = fabric.topic("t", partitions=6)
            writer = writer_of(url, topic="t", timeout="60")
            first, second = writer.write(rows(1000)), writer.write(rows(1000, 1000))
            nodes.processes[2].end()
            writer.commit([first], 0)
            writer.commit([second], 1)
            again = writer_of(url, topic="t", timeout="60")
            again.commit([again.write(rows(1000, 1000))], 1)
            assert wait_for(lambda: len(values(topic)) >= 2000, 60)
            assert values(topic) == list(range(2000))
    finally:
        nodes.end()


def test_small_record_batches_are_gathered() -> None:
    small = [batch for first in range(0, 1000, 10) for batch in rows(10, first)]
    (found,) = gathered(small)
    assert found.num_rows == 1000
    large = [batch for _ in range(3) for batch in rows(40_000)]
    assert [each.num_rows for each in gathered(large)] == [40_000] * 3
    assert list(gathered([])) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"path": "data"}, "one of them"),
        ({"queue": "q"}, "`topic` or `queue`"),
        ({"startingOffsets": "earliest"}, "unknown option"),
        ({"jobId": "x"}, "for batch writes"),
        ({"checkpointLocation": ""}, "needs `checkpointLocation`"),
        ({"stageExpires": "soon"}, "seconds above 0"),
        ({"compression": "zip"}, "none, lz4, zstd"),
        ({"jobNumber": "-1"}, "0 or more"),
    ],
)
def test_options_of_streams(changed, said) -> None:
    with pytest.raises(InvalidError, match=said):
        check_stream_sink(parse_sink_options(BASE | {"checkpointLocation": "c"} | changed))


def test_a_named_query_needs_no_checkpoint_of_its_own() -> None:
    for option in ("queryName", "queryId", "checkpointLocation"):
        check_stream_sink(parse_sink_options(BASE | {option: "x"}))


def test_options_of_batches() -> None:
    with pytest.raises(InvalidError, match="for streams"):
        check_batch_sink(parse_sink_options(BASE | {"queryId": "x"}))
    with pytest.raises(InvalidError, match="give that, too"):
        check_batch_sink(parse_sink_options(BASE | {"jobNumber": "3"}))
    check_batch_sink(parse_sink_options(BASE | {"jobId": "j", "jobNumber": "3"}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": "string"}, "no column 'value'"),
        ({"value": "long"}, "'value' is bigint, not binary or string"),
        ({"value": "string", "offset": "long"}, "column 'offset'"),
        ({"value": "string", "timestamp": "string"}, "not timestamp"),
    ],
)
def test_columns(columns, said) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(InvalidError, match=said):
        check_schema(schema)


def test_nothing_is_overwritten() -> None:
    with pytest.raises(InvalidError, match="only added to"):
        StreamWriter(parse_sink_options(BASE), SCHEMA, True)
