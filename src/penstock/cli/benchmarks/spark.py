"""Spark on a topic: reading, and sessions; against what else Spark could do in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Fabric, Topic, connect
from penstock.cli.benchmarks.figures import COUNT, RATE, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.settings import Settings
from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.sessions import Sessionizer
from penstock.spark.setup import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSIONS = "sessions/s"
_PARTITIONS = 4
_TASKS = 4
_BATCH_ROWS = 500_000
_FRAGMENTS = 10  # of a session, about, with those that come twice


class SparkRuns:
    """A session of Spark, a node, a topic of messages, one of clicks; all else is compared."""

    def __init__(self, settings: Settings, directory: Path, stack: ExitStack) -> None:
        from penstock.cli.benchmarks.spark_sources import ReadySource, RowSource

        self._settings = settings
        self._directory = directory
        node = stack.enter_context(NodeProcess(directory / "spark"))
        fabric = stack.enter_context(connect(node.url))
        self._url = node.url
        self._spark = session()
        stack.callback(self._spark.stop)
        self._spark.dataSource.register(ReadySource)
        self._spark.dataSource.register(RowSource)
        self._rows = settings.messages
        self._fill(fabric.topic("messages", partitions=_PARTITIONS))
        self._many = Clicks(
            7, settings.scaled(32, 2), settings.scaled(5000, 500), mean_fragments=_FRAGMENTS
        )
        self._few = Clicks(8, 2, settings.scaled(2000, 100), mean_fragments=_FRAGMENTS)
        self._sessions = {
            name: _publish(fabric, name, clicks)
            for name, clicks in (("many", self._many), ("few", self._few))
        }
        self._run = 0
        self._read_parquet_of(self._topic("penstock"))
        for warm in (self.read, self.read_ready, self.sessions):
            warm()

    def _fill(self, topic: Topic) -> None:
        values = self._settings.values(self._rows)
        keys = (b"%d" % (number % 1000) for number in range(self._rows))
        topic.publish_many(values, keys=keys, batch=10_000)

    def _read_parquet_of(self, df: DataFrame) -> None:
        self._parquet = str(self._directory / "parquet")
        df.write.parquet(self._parquet)

    # --- reading ---------------------------------------------------------------------------

    def _topic(self, source: str) -> DataFrame:
        reader = self._spark.read.format(source).option("servers", self._url)
        return reader.option("topic", "messages").option("minTasks", _TASKS).load()

    def read(self) -> Figures:
        """The source."""
        return self._timed("spark, topic", lambda: self._topic("penstock"))

    def read_rows(self) -> Figures:
        """The same, but rows go to Spark one by one."""
        return self._timed("spark, rows", lambda: self._topic("bench-rows"))

    def read_ready(self) -> Figures:
        """Arrow buffers that are ready."""
        options = {"rows": self._rows, "bytes": self._settings.size, "tasks": _TASKS}
        ready = self._spark.read.format("bench-ready").options(**options)
        return self._timed("spark, ready Arrow", ready.load)

    def read_parquet(self) -> Figures:
        """The same rows from files, read by Spark itself."""
        return self._timed("spark, Parquet", lambda: self._spark.read.parquet(self._parquet))

    def _timed(self, name: str, made: Callable[[], DataFrame]) -> Figures:
        started = time.perf_counter()
        made().write.format("noop").mode("overwrite").save()
        return {name: Figure(self._rows / (time.perf_counter() - started), RATE)}

    # --- sessions --------------------------------------------------------------------------

    def sessions(self) -> Figures:
        """Sessions by our operator, from the source that is meant for it."""
        return self._streamed("spark sessions", "many", self._by_operator(), "penstock-packed")

    def sessions_of_rows(self) -> Figures:
        """The same from rows, as any source gives them."""
        return self._streamed("spark sessions, of rows", "many", self._by_operator())

    def _by_operator(self) -> Callable[[DataFrame], DataFrame]:
        from penstock.spark.operators import sessions

        return partial(sessions, end=is_end, timeout=self._many.timeout, delay=self._many.delay)

    def sessions_general(self) -> Figures:
        """Sessions by the operator that runs any class."""
        from penstock.spark.operators import stateful

        many = self._many
        sessionizer = Sessionizer(end=is_end, timeout=many.timeout, delay=many.delay)
        made = partial(stateful, operator=sessionizer)
        return self._streamed("spark sessions, general", "many", made, "penstock-packed")

    def sessions_per_key(self) -> Figures:
        """Sessions with a state for each key; fewer, as they take long."""
        from penstock.cli.benchmarks.spark_per_key import per_key

        made = partial(per_key, clicks=self._few)
        return self._streamed("spark sessions, per key", "few", made)

    def _streamed(
        self, name: str, topic: str, made: Callable[[DataFrame], DataFrame],
        source: str = "penstock",
    ) -> Figures:  # fmt: skip
        self._run += 1
        reader = self._spark.readStream.format(source).option("servers", self._url)
        options = {"startingOffsets": "earliest", "maxRowsPerBatch": _BATCH_ROWS}
        df = reader.options(topic=topic, **options).load()
        writer = made(df).writeStream.format("noop")
        checkpoint = self._directory / f"checkpoint-{self._run}"
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        # Without the start of the query, which counts for more where there is less to do.
        batches = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        seconds = sum(batches) / 1000
        sessions, fragments = self._sessions[topic]
        return {
            name: Figure(sessions / seconds, SESSIONS),
            f"{name}/fragments": Figure(fragments / seconds, RATE),
            f"{name}/sessions": Figure(sessions, COUNT),
        }


def _publish(fabric: Fabric, name: str, clicks: Clicks) -> tuple[int, int]:
    """Puts all fragments into a topic: how many sessions, and fragments, they are."""
    topic = fabric.topic(name, partitions=_PARTITIONS)
    count = 0
    for keys, values, times_us in clicks.columns():
        count += len(keys)
        times = (times_us / 1e6).tolist()
        every = range(_PARTITIONS) if len(keys) == 1 else [None]  # the last ends all sessions
        for partition in every:
            topic.publish_many(values, keys=keys, timestamps=times, partition=partition)
    return sum(1 for _ in clicks.answer()), count
