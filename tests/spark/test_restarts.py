"""Queries that are killed with everything that Spark runs, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_sessions import publish, records

from penstock.consumers.generator import Clicks
from penstock.consumers.sessions import session_order

pytest.importorskip("pyspark")

CLICKS = Clicks(seed=21, blocks=3, chains=400)

DRIVER = """
import sys
from penstock.consumers.generator import is_end
from penstock.spark import session, sessions

url, topic, out, checkpoint, timeout, delay, source = sys.argv[1:]
spark = session(memory="700m", spark_sql_shuffle_partitions="2")
reader = spark.readStream.format(source).option("servers", url).option("topic", topic)
df = reader.options(startingOffsets="earliest", maxRowsPerBatch=1000).load()
found = sessions(df, end=is_end, timeout=float(timeout), delay=float(delay), fragment_id=bytes)
writer = found.writeStream.format("parquet").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start(out).awaitTermination()
spark.stop()
"""


def started(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments], start_new_session=True
    )


def committed(checkpoint: Path) -> int:
    folder = checkpoint / "commits"
    return sum(each.name.isdigit() for each in folder.iterdir()) if folder.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", ["penstock", "penstock-packed"])
def test_sessions_are_exact_over_kills(source, spark, url, topic, tmp_path) -> None:
    publish(topic, CLICKS)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    times = [str(CLICKS.timeout), str(CLICKS.delay)]
    arguments = [url, topic.name, str(out), str(checkpoint), *times, source]
    for batches in (2, 6):
        driver = started(*arguments)
        until = time.monotonic() + 180
        while committed(checkpoint) < batches and driver.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert driver.poll() is None, "it was to be killed in the middle"
        os.killpg(driver.pid, signal.SIGKILL)  # the driver, its Java and all workers
        driver.wait(30)
    assert started(*arguments).wait(300) == 0
    found: Any = spark.read.parquet(str(out)).select("value").collect()
    assert records([bytes(value) for (value,) in found]) == sorted(
        CLICKS.answer(), key=session_order
    )
