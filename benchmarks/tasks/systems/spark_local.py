"""Spark in one process with Python workers: a task is a partition of one row."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from benchmarks.install import Needs, UnavailableError
from benchmarks.tasks.calls import nap, null
from benchmarks.tasks.system import BUNDLE, TaskClient, TaskSystem
from penstock.errors import NotFoundError
from penstock.spark.java import find_java
from penstock.spark.setup import cache_folder


class SparkLocal(TaskSystem):
    """PySpark of Penstock's own environment (extra: `spark`), and any Java that it can use."""

    module = "spark_local"
    library = "pyspark"
    bundles = True

    def installs(self) -> dict[str, Needs]:
        if find_spec("pyspark") is None:
            raise UnavailableError("pyspark is not installed (extra: spark)")
        try:
            find_java(cache_folder())
        except NotFoundError as error:
            raise UnavailableError("Spark needs Java, and none was found") from error
        return {}

    @property
    def durable(self) -> str:
        return "in memory of the client"

    @property
    def settings(self) -> str:
        return f"local[workers], no user interface; bundled: partitions of {BUNDLE} rows"

    def start(self, workers: int) -> None:
        return None

    def version(self) -> str:
        return f"Spark {metadata.version('pyspark')}"

    def client_version(self) -> str:
        return f"pyspark {metadata.version('pyspark')}"


class SparkClient(TaskClient):
    """`parallelize` and `collect`."""

    _context: Any = None

    def open(self) -> None:
        os.environ["JAVA_HOME"] = str(find_java(cache_folder()))
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers take that of the PATH
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setMaster(f"local[{self.workers}]").setAppName("benchmarks")
        conf = conf.set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1")
        self._context = SparkContext(conf=conf)

    def close(self) -> None:
        if self._context is not None:
            self._context.stop()

    def nulls(self, numbers: Sequence[int]) -> list[int]:
        return self._all(null, numbers, len(numbers))

    def bundled(self, numbers: Sequence[int]) -> list[int]:
        return self._all(null, numbers, -(-len(numbers) // BUNDLE))

    def naps(self, seconds: Sequence[float]) -> list[float]:
        return self._all(nap, seconds, len(seconds))

    def _all(self, function: Any, rows: Sequence[Any], partitions: int) -> list[Any]:
        return list(self._context.parallelize(rows, partitions).map(function).collect())

    def one(self, number: int) -> int:
        [result] = self.nulls([number])
        return result


SYSTEM = SparkLocal
CLIENT = SparkClient
