"""A Spark cluster of real processes: a master and two workers, to which the package is sent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import socket

import pytest

from penstock.errors import NotFoundError
from penstock.spark.java import find_java

pyspark = pytest.importorskip("pyspark")

DRIVER = """
import sys
from penstock.spark import session

master, url, topic, copy, checkpoint = sys.argv[1:]
spark = session(master, ship=True, spark_executor_memory="600m", spark_cores_max="2")
reader = spark.read.format("penstock").option("servers", url).option("topic", topic)
df = reader.option("minTasks", 4).load()
print("rows", df.count())

def writer_of(format, **more):
    return format("penstock").options(servers=url, topic=copy, **more)

writer_of(df.where("partition = 0").select("key", "value").write.format).mode("append").save()
stream = spark.readStream.format("penstock").options(servers=url, topic=topic, minTasks=4)
rows = stream.option("startingOffsets", "earliest").load().where("partition = 1")
query = writer_of(rows.select("key", "value").writeStream.format, checkpointLocation=checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
print("written")

def where(_):
    import os, penstock.spark.source
    yield os.environ["SPARK_EXECUTOR_DIRS"], penstock.spark.source.__file__

found = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect()
print("executors", len({each for each, _ in found}))
print("shipped", all("penstock.zip" in file for _, file in found))
spark.stop()
"""


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def begin(stack: ExitStack, log: Path, said: str, home: Path, *arguments: str) -> None:
    """Starts a process of the cluster; returns when it has said that it is ready."""
    command = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {
        **os.environ, "JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "300m",
    }  # fmt: skip
    out = stack.enter_context(log.open("wb"))
    process = subprocess.Popen([str(command), *arguments], stdout=out, stderr=out, env=environment)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    until = time.monotonic() + 90
    while not re.search(said, log.read_text()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


@pytest.fixture
def master(tmp_path) -> Iterator[str]:
    try:
        home = find_java(tmp_path)
    except NotFoundError as error:
        pytest.skip(str(error))
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        begin(stack, tmp_path / "master.log", "New state: ALIVE", home,
              "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
              "--port", str(port), "--webui-port", str(free_port()))  # fmt: skip
        for number in (1, 2):
            begin(stack, tmp_path / f"worker{number}.log", "Successfully registered", home,
                  "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g",
                  "--host", "127.0.0.1", "--webui-port", str(free_port()),
                  "--work-dir", str(tmp_path / f"work{number}"), address)  # fmt: skip
        yield address


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_workers_of_a_cluster_read_and_write_topics_with_the_package_that_was_sent(
    master, url, fabric, topic, checkpoint
) -> None:
    values = [b"%d" % each for each in range(60_000)]
    topic.publish_many(values, keys=values)
    copy = fabric.topic(f"{topic.name}-copy", partitions=2)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, master, url, topic.name, copy.name, checkpoint],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 60000" in done.stdout
    assert "executors 2" in done.stdout
    assert "shipped True" in done.stdout
    assert "written" in done.stdout
    found = [
        value
        for partition in range(2)
        for batch in copy.read(partition)
        for value in batch.values
    ]
    assert sorted(found) == sorted(values)
