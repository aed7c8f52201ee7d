"""A Spark session that works at once: Java found, quiet, on this machine only unless told so."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import InvalidError
from penstock.spark import archive
from penstock.spark.java import find_java, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = re.compile(r"local(-cluster)?\b|spark://(127\.|localhost\b|\[::1\])")
_STATE = "org.apache.spark.sql.execution.streaming"
FILTERS = "spark.sql.python.filterPushdown.enabled"

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    FILTERS: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STATE}.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def session(
    master: str = "local[2]",
    memory: str = "1g",
    *,
    name: str = "penstock",
    fast_start: bool = True,
    ship: bool = False,
    **conf: str,
) -> SparkSession:
    """A Spark session in which `format("penstock")` is known.

    `memory`: of the driver. `fast_start`: an archive of Spark's classes is kept in the user's cache
    directory. `ship`: this package is sent to the workers (of a cluster where it is not installed).
    `conf`: settings of Spark with `_` for `.` where the name allows it, or by `**{"spark.x": "y"}`;
    they go before ours. InvalidError if a session is there already: use `register` with it.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidError(
            f"PySpark is not installed ({error})", advice="`pip install penstock[spark]`"
        ) from None
    if SparkSession.getActiveSession() is not None:
        raise InvalidError("a session is there already", advice="Use `register(spark)` with it.")
    cache = cache_folder()
    home = find_java(cache)
    os.environ["JAVA_HOME"] = str(home)
    # Otherwise workers take the first python3 on the PATH, which need not have what they need.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = settings_for(master, memory, conf)
    if fast_start:
        # An archive fits one Java and one place of Spark's files only.
        place = hashlib.sha256(f"{home}:{pyspark.__file__}".encode()).hexdigest()[:8]
        kind = f"spark-{pyspark.__version__}-java-{version_of(home) or 'other'}-{place}"
        settings[JAVA_OPTIONS] += " " + " ".join(archive.java_options(cache, kind))
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark, ship=ship)
    return spark


def register(spark: SparkSession, *, ship: bool = False) -> None:
    """Makes `format("penstock")` and `format("penstock-packed")` known to a session, and lets
    conditions reach the source."""
    from penstock.spark.packed_source import PackedSource
    from penstock.spark.source import PenstockSource

    if ship:
        from penstock.spark.shipping import package_file

        spark.sparkContext.addPyFile(str(package_file(Path(tempfile.mkdtemp()))))
    spark.conf.set(FILTERS, "true")
    spark.dataSource.register(PenstockSource)
    spark.dataSource.register(PackedSource)


def settings_for(master: str, memory: str, conf: dict[str, str]) -> dict[str, str]:
    """All settings of a session; the user's own count."""
    log = Path(__file__).with_name("log4j2.properties")
    settings = dict(DEFAULTS)
    settings["spark.driver.memory"] = memory
    settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    if _LOCAL.match(master):
        settings |= LOOPBACK
    given = {key if "." in key else key.replace("_", "."): str(conf[key]) for key in conf}
    settings |= given
    ours = f"-Dlog4j2.configurationFile={log.as_uri()} -XX:+UseSerialGC"
    settings[JAVA_OPTIONS] = f"{ours} {given.get(JAVA_OPTIONS, '')}".strip()
    return settings


def _cores(master: str) -> int:
    """How many tasks run at once, as far as the master says; stateful ones are as many."""
    found = re.match(r"local(?:-cluster)?\[(\d+)(?:,(\d+))?", master)
    if found is None:
        return os.cpu_count() or 1
    workers = int(found[1])
    return workers * int(found[2]) if "cluster" in master and found[2] else workers


def cache_folder() -> Path:
    """Where things are kept for the next session of this user; made if missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "penstock"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
