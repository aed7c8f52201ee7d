"""What Spark is asked to do so that the rows of a bucket come together, in a stream or a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InvalidError
from penstock.spark.spread import name_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.engines import Maker

MOST_BUCKETS = 10_000


@dataclass(frozen=True)
class Rows:
    """What is to be assembled. `end`: a condition that tells ends, if no function does."""

    df: DataFrame
    key: str
    value: str
    time: str
    buckets: int | None
    end: Column | None = None

    def packed(self) -> DataFrame:
        """The rows of each bucket, thousands as one, with the name of the bucket."""
        from penstock.spark.packing import PACKED, pack

        return self.df if self._is_packed() else self._selected().mapInArrow(pack, PACKED)

    def by_bucket(self) -> DataFrame:
        """Bucket by bucket, by place, of a batch: packed rows if they are so, else single ones."""
        from pyspark.sql import functions as call

        rows = self.df
        if not self._is_packed():
            named = name_column(call.col("bucket"))
            rows = self._selected().withColumn("bucket", named)
        return rows.repartition("bucket").sortWithinPartitions("bucket", "place")

    def _is_packed(self) -> bool:
        from penstock.spark.packing import is_packed

        found = is_packed(self.df.columns)
        if found and (self.buckets is not None or self.end is not None):
            raise InvalidError(
                "packed rows are put together by their partition, and a function tells ends",
                advice='Use format("penstock").',
            )
        return found

    def _selected(self) -> DataFrame:
        """The columns bucket, key, value, time_us, place and, if a condition tells it, end.

        The order of arrival is known within a partition only. Rows of several partitions that come
        together are taken by time, so that they do not make each other late.
        """
        from pyspark.sql import functions as call

        bucket = self._bucket()
        untimed = call.raise_error(call.lit(f"a row has no time: column {self.time!r} is null"))
        time_us = call.coalesce(call.unix_micros(self.time), untimed.cast("bigint"))
        nothing = call.lit(b"")
        columns = [
            bucket.alias("bucket"),
            call.coalesce(call.col(self.key).cast("binary"), nothing).alias("key"),
            call.coalesce(call.col(self.value).cast("binary"), nothing).alias("value"),
            time_us.alias("time_us"),
            (call.col("offset") if self.buckets is None else time_us).alias("place"),
        ]
        if self.end is not None:
            columns.append(call.coalesce(self.end, call.lit(False)).alias("end"))
        return self.df.select(*columns)

    def _bucket(self) -> Column:
        from pyspark.sql import functions as call

        if self.buckets is not None:
            if not 0 < self.buckets <= MOST_BUCKETS:
                raise InvalidError(f"{self.buckets} buckets: use 1 to {MOST_BUCKETS:,}")
            return call.pmod(call.xxhash64(self.key), call.lit(self.buckets)).cast("int")
        if not {"partition", "offset"} <= set(self.df.columns):
            raise InvalidError(
                "there are no columns `partition` and `offset` to go by", advice="Give `buckets`."
            )
        return call.col("partition")


def assembled(rows: Rows, make: Maker, idle_after: float | None) -> DataFrame:
    """The results: key, value, reason, count, first and last."""
    from pyspark.sql import functions as call

    from penstock.spark.processor import COLUMNS, BatchRunner, BucketProcessor

    if rows.df.isStreaming:
        results = rows.packed().groupBy("bucket").transformWithStateInPandas(
            statefulProcessor=BucketProcessor(make, idle_after),
            outputStructType=COLUMNS,
            outputMode="Append",
            timeMode="none" if idle_after is None else "processingTime",
        )
    else:
        results = rows.by_bucket().mapInArrow(BatchRunner(make), COLUMNS)
    times = [call.timestamp_micros(f"{name}_us").alias(name) for name in ("first", "last")]
    return results.select("key", "value", "reason", "count", *times)
