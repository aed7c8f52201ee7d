"""What nodes and streams did, minute by minute: from the records of `penstock metrics export`.

Works on batches and on streams; in a stream, a minute comes out when it is over by the watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

METRICS = (
    "kind string, time_us bigint, name string, up boolean, seconds double, "
    "records bigint, written_bytes bigint, syncs bigint, connections bigint, messages bigint, "
    "bytes bigint, disk_bytes bigint, live_bytes bigint, unwritten_bytes bigint, "
    "outstanding bigint, damaged bigint, refusing string, answer_us array<bigint>, "
    "came bigint, left bigint, ready bigint, leased bigint, dead bigint, oldest_ms bigint"
)
"""The columns of a record, as `from_json` takes them."""

MINUTE = "1 minute"


def read_metrics(df: DataFrame, watermark: str = "10 seconds") -> DataFrame:
    """The records of a topic, with their time in `time`; `watermark`: how late they may come."""
    from pyspark.sql import functions as call

    told = df.select(call.from_json(call.col("value").cast("string"), METRICS).alias("told"))
    rows = told.select("told.*").withColumn("time", call.timestamp_micros("time_us"))
    return rows.withWatermark("time", watermark) if df.isStreaming else rows


def nodes_by_minute(metrics: DataFrame, length: str = MINUTE) -> DataFrame:
    """Each node in each minute: rates, percentiles of its answers, and its share of the load.

    `share` is of the bytes that all nodes wrote; `imbalance` is that of the busiest node against an
    even share: 1.0 is perfect balance.
    """
    from pyspark.sql import functions as call

    answers = call.array_sort(call.flatten(call.collect_list("answer_us")))
    nodes = metrics.where("kind = 'node'").groupBy(
        call.window("time", length), call.col("name").alias("node")
    ).agg(
        *(_rate(each) for each in ("records", "written_bytes", "syncs")),
        answers.alias("answers"),
        call.sum("written_bytes").alias("written"),
        call.max("connections").alias("connections"),
        call.max("messages").alias("messages"),
        call.max("unwritten_bytes").alias("unwritten_bytes"),
        call.avg(call.col("up").cast("double")).alias("up"),
    )  # fmt: skip
    row = call.struct(*(name for name in nodes.columns if name != "window"))
    minutes = nodes.groupBy("window").agg(
        call.collect_list(row).alias("nodes"),
        call.sum("written").alias("total"),
        (call.max("written") / call.avg("written")).alias("imbalance"),
    )
    each = minutes.select("window", "total", "imbalance", call.explode("nodes").alias("node"))
    return each.select(
        call.col("window.start").alias("minute"),
        "node.node",
        *(f"node.{name}_per_s" for name in ("records", "written_bytes", "syncs")),
        _percentile(0.5).alias("answer_p50_us"),
        _percentile(0.99).alias("answer_p99_us"),
        _percentile(1.0).alias("answer_max_us"),
        *(f"node.{name}" for name in ("connections", "messages", "unwritten_bytes", "up")),
        call.try_divide("node.written", "total").alias("share"),
        "imbalance",
    )


def streams_by_minute(metrics: DataFrame, length: str = MINUTE) -> DataFrame:
    """Each queue and topic in each minute: what came and left a second, and what waits."""
    from pyspark.sql import functions as call

    streams = metrics.where("kind != 'node'").groupBy(
        call.window("time", length), call.col("name").alias("stream")
    ).agg(
        _rate("came"), _rate("left"),
        *(call.max(name).alias(name) for name in ("messages", "bytes", "dead", "oldest_ms")),
    )  # fmt: skip
    return streams.select(
        call.col("window.start").alias("minute"), *(c for c in streams.columns if c != "window")
    )


def _rate(name: str) -> Column:
    """Per second, over the time that the samples tell of."""
    from pyspark.sql import functions as call

    known = call.when(call.col("seconds") > 0, call.col(name))
    return call.try_divide(call.sum(known), call.sum("seconds")).alias(f"{name}_per_s")


def _percentile(share: float) -> Column:
    """Of the sorted answers of a node: the smallest that so many do not exceed; null if none."""
    from pyspark.sql import functions as call

    answers = call.col("node.answers")
    at = call.greatest(call.ceil(call.size(answers) * share), call.lit(1)).cast("int")
    return call.try_element_at(answers, at)
