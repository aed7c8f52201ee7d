"""`python -m penstock.cli.sparking.job SETTINGS`: the Spark program that is killed.

A topic is made into sessions, or a queue is read, and the rows go to another topic. Some tasks fail
at their first attempts, after they have handed rows on.
"""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.sparking.lingering import LingeringSource
from penstock.consumers.generator import is_end
from penstock.spark import session, sessions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Rows = Iterator[pa.RecordBatch]

MASTER = "local[2,4]"  # two tasks at once, four attempts each
BATCH = "streaming.sql.batchId"  # a property of Spark's tasks


class Job(msgspec.Struct, frozen=True):
    """What to do, as JSON on the command line. `kind`: sessions or queue. `failing`: of 1.
    `careless`: the sink gets another name each time, which breaks its promise."""

    kind: str
    url: str
    source: str
    target: str
    checkpoint: str
    rows: int  # of a micro-batch
    seed: int
    failing: float
    failures: str  # a file with a line for each that was forced
    timeout: float = 0.0
    delay: float = 0.0
    careless: bool = False


def main(settings: str) -> None:
    """Runs the job to the end of its input, going on where its checkpoint says."""
    job = msgspec.json.decode(settings, type=Job)
    spark = session(MASTER, memory="700m", name="proof", spark_sql_shuffle_partitions="2")
    spark.dataSource.register(LingeringSource)
    failing = failing_at_first(job.seed, job.failing, job.failures)
    rows = rows_of(spark, job).mapInArrow(failing, "key binary, value binary")
    writer = rows.writeStream.format("penstock").option("servers", job.url)
    writer = writer.option("topic", job.target).option("checkpointLocation", job.checkpoint)
    if job.careless:
        writer = writer.option("queryId", secrets.token_hex(8))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def rows_of(spark: SparkSession, job: Job) -> DataFrame:
    """What is written: sessions, or the messages of the queue."""
    reader = spark.readStream.format("penstock").option("servers", job.url)
    reader = reader.option("maxRowsPerBatch", job.rows)
    if job.kind == "queue":
        return reader.option("queue", job.source).load().select("key", "value")
    stream = reader.option("topic", job.source).option("startingOffsets", "earliest").load()
    found = sessions(stream, end=is_end, timeout=job.timeout, delay=job.delay, fragment_id=bytes)
    return found.select("key", "value")


def failing_at_first(seed: int, share: float, note: str) -> Callable[[Rows], Rows]:
    """Hands rows on; of some tasks the first or the first two attempts fail after that."""

    def handed_on(batches: Rows) -> Rows:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        place = f"{context.getLocalProperty(BATCH)}/{context.partitionId()}"
        chance = random.Random(f"{seed}/{place}")
        times = chance.randint(1, 2) if chance.random() < share else 0
        yield from batches
        if context.attemptNumber() < times:
            with Path(note).open("a") as lines:
                lines.write(f"{place} {context.attemptNumber()}\n")
            raise RuntimeError(f"task {place} was meant to fail")

    return handed_on


if __name__ == "__main__":
    main(sys.argv[1])
