"""Sessions and other objects, assembled from rows by Spark: the same records as by a consumer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from penstock.consumers.sessions import Encoder, Fold, Sessionizer
from penstock.consumers.stateful import LatePolicy, Stateful
from penstock.errors import InvalidError
from penstock.spark.buckets import check_stateful
from penstock.spark.spread import name_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SESSION_JSON = (
    "key string, start_us bigint, end_us bigint, count bigint, reason string, "
    "fragments array<array<string>>"
)
"""What `from_json` takes to read the values that `sessions` gives."""

MOST_BUCKETS = 10_000


def sessions(
    df: DataFrame,
    *,
    key: str = "key",
    value: str = "value",
    time: str = "timestamp",
    end: Callable[[bytes], bool] | None = None,
    timeout: float | None = None,
    delay: float = 0.0,
    late: LatePolicy = "ignore",
    idle_after: float | None = None,
    fragment_id: Callable[[bytes], Hashable] | None = None,
    fold: Fold | None = None,
    initial: Any = None,
    encoder: Encoder | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """Sessions of each key: as `consumers.sessions.Sessionizer` makes them, with the same settings.

    The values are the same records, byte for byte, for all input within the delay. Columns and
    `buckets` are those of `stateful`.
    """
    rest = {} if encoder is None else {"encoder": encoder}
    sessionizer = Sessionizer(
        end=end, timeout=timeout, delay=delay, late=late, idle_after=idle_after,
        fragment_id=fragment_id, fold=fold, initial=initial, **rest,
    )  # fmt: skip
    return stateful(df, sessionizer, key=key, value=value, time=time, buckets=buckets)


def stateful(
    df: DataFrame,
    operator: Stateful[Any],
    *,
    key: str = "key",
    value: str = "value",
    time: str = "timestamp",
    buckets: int | None = None,
) -> DataFrame:
    """Objects of each key, assembled by a Stateful; `df` is a stream with columns for key and value
    (binary) and time (timestamp).

    The result has the columns key, value, reason, count, first and last (timestamps). Fragments
    that came too late are among the rows under the policy "side", with the reason "late".
    Rows are put together by their partition if `df` is a topic's, and each partition has its own
    time, as with a consumer. With `buckets`, keys are spread over so many instead, and a row is
    late by the latest of its bucket: use that where rows of a key may be in several partitions.
    `buckets` cannot change once a query has a checkpoint.
    """
    from pyspark.sql import functions as call

    from penstock.spark.processor import OUTPUT, BucketProcessor

    check_stateful(operator)
    if not df.isStreaming:
        raise InvalidError(
            "objects are assembled from a stream, and this is a batch",
            advice="Use readStream; with trigger(availableNow=True) it ends like a batch.",
        )
    bucket, place = _bucket(df, key, buckets)
    untimed = call.raise_error(call.lit(f"a row has no time: column {time!r} is null"))
    rows = df.select(
        name_column(bucket).alias("bucket"),
        call.coalesce(call.col(key), call.lit(b"")).alias("key"),
        call.coalesce(call.col(value), call.lit(b"")).alias("value"),
        call.coalesce(call.unix_micros(time), untimed.cast("bigint")).alias("time_us"),
        place.alias("place"),
    )
    idle = operator.completion.idle_after is not None
    results = rows.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=BucketProcessor(operator),
        outputStructType=OUTPUT,
        outputMode="Append",
        timeMode="processingTime" if idle else "none",
    )
    times = [call.timestamp_micros(f"{name}_us").alias(name) for name in ("first", "last")]
    return results.select("key", "value", "reason", "count", *times)


def _bucket(df: DataFrame, key: str, buckets: int | None) -> tuple[Column, Column]:
    """Which rows are put together, and the column that their order goes by."""
    from pyspark.sql import functions as call

    of_topic = {"partition", "offset"} <= set(df.columns)
    place = call.col("offset") if of_topic else call.lit(0).cast("bigint")
    if buckets is not None:
        if not 0 < buckets <= MOST_BUCKETS:
            raise InvalidError(f"{buckets} buckets: use 1 to {MOST_BUCKETS:,}")
        return call.pmod(call.xxhash64(key), call.lit(buckets)).cast("int"), place
    if not of_topic:
        raise InvalidError(
            "there are no columns `partition` and `offset` to go by", advice="Give `buckets`."
        )
    return call.col("partition"), place
