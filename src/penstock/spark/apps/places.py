"""Where lines come from and where rows go: files, folders, topics, queues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, get_args

from penstock.errors import ExistsError, InvalidError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FileFormat = Literal["text", "parquet", "json", "csv"]
STREAMS = ("topic", "queue")


@dataclass(frozen=True, slots=True)
class Fabric:
    """Where topics and queues are: `servers`, or `path` of a data directory on this machine."""

    servers: str = ""
    path: str = ""
    namespace: str = "default"

    def options(self, kind: str, name: str) -> dict[str, str]:
        """What `format("penstock")` needs for one of its topics or queues."""
        if bool(self.servers) == bool(self.path):
            raise InvalidError(
                f"{kind}:{name} is in a fabric, and it is not said where that is",
                advice="Give `servers` or `path`, one of them.",
            )
        place = {"servers": self.servers} if self.servers else {"path": self.path}
        return {**place, "namespace": self.namespace, kind: name}


def stream_of(place: str) -> tuple[str, str] | None:
    """(kind, name) of `topic:NAME` and `queue:NAME`; None if it is a path."""
    kind, colon, name = place.partition(":")
    return (kind, name) if colon and name and kind in STREAMS else None


def read_lines(
    spark: SparkSession, places: Sequence[str], fabric: Fabric | None = None
) -> DataFrame:
    """The lines of files, and the values of a topic's messages: columns `value` and `place`.

    Places are files, folders, patterns as `logs/*.txt`, URLs of Spark, or `topic:NAME`. Bytes that
    are no UTF-8 stay as they are. NotFoundError if a path of this machine is not there.
    """
    if not places:
        raise InvalidError("there is nothing to read", advice="Name files, folders or topic:NAME.")
    paths = [each for each in places if stream_of(each) is None]
    streams = [stream for each in places if (stream := stream_of(each)) is not None]
    parts = [_files(spark, paths)] if paths else []
    parts += [_topic(spark, *stream, fabric or Fabric()) for stream in streams]
    return reduce(lambda one, other: one.unionByName(other), parts)


def _files(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as call

    for path in paths:
        plain = not any(character in path for character in "*?[{:")
        if plain and not os.path.exists(path):
            raise NotFoundError(f"there is no file or folder {path}", advice="Check the path.")
    # Only this ends a line: a carriage return belongs to it, and is written out again with it.
    reader = spark.read.option("lineSep", "\n").option("recursiveFileLookup", "true")
    return reader.text(list(paths)).select(
        "value", call.col("_metadata.file_path").alias("place")
    )


def _topic(spark: SparkSession, kind: str, name: str, fabric: Fabric) -> DataFrame:
    from pyspark.sql import functions as call

    if kind != "topic":
        raise InvalidError(
            f"{kind}:{name} cannot be read as a batch", advice="Only streams read queues."
        )
    rows = spark.read.format("penstock").options(**fabric.options(kind, name)).load()
    return rows.select(
        call.col("value").cast("string").alias("value"),
        call.concat_ws("/", "topic", "partition", "offset").alias("place"),
    )


def write_rows(
    df: DataFrame,
    to: str,
    fabric: Fabric | None = None,
    *,
    form: FileFormat = "text",
    key: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes rows to a folder, or as messages to `topic:NAME` or `queue:NAME`.

    As text, the columns of a row are separated by tabs. A message has the only column as its value,
    or all of them as JSON, and the column `key` as its key. ExistsError if the folder is there,
    unless it may be replaced. Messages are visible, all of them, when it returns.
    """
    if form not in get_args(FileFormat):
        raise InvalidError(f"unknown format {form!r}", advice=f"Use {_formats()}.")
    if (stream := stream_of(to)) is not None:
        options = (fabric or Fabric()).options(*stream)
        messages(df, key).write.format("penstock").mode("append").options(**options).save()
        return
    if not overwrite and "://" not in to and os.path.exists(to):
        raise ExistsError(f"{to} is there already", advice="Name another folder, or overwrite it.")
    writer = (_text(df) if form == "text" else df).write.format(form)
    writer.mode("overwrite" if overwrite else "errorifexists").save(to)


def _formats() -> str:
    return ", ".join(get_args(FileFormat))


def _text(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as call

    if len(df.columns) == 1:
        return df.select(call.col(df.columns[0]).cast("string"))
    return df.select(call.concat_ws("\t", *(call.col(name).cast("string") for name in df.columns)))


def messages(df: DataFrame, key: str | None) -> DataFrame:
    """What a topic or queue is given: the only column as the value, or all of them as JSON."""
    from pyspark.sql import functions as call

    keys = [] if key is None else [as_bytes(df, key).alias("key")]
    if len(df.columns) == 1:
        return df.select(*keys, as_bytes(df, df.columns[0]).alias("value"))
    return df.select(*keys, call.to_json(call.struct("*")).cast("binary").alias("value"))


def as_bytes(df: DataFrame, column: str) -> Column:
    """A column as keys and values are: what is no text becomes one, as 17 or 2030-01-31."""
    from pyspark.sql import functions as call

    kind = dict(df.dtypes)[column]
    found = call.col(f"`{column}`")
    return (found if kind in ("binary", "string") else found.cast("string")).cast("binary")
