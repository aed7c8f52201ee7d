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

    @property
    def of_topic(self) -> bool:
        """Whether rows say where in a topic they are from."""
        return {"partition", "offset"} <= set(self.df.columns)

    def selected(self) -> DataFrame:
        """The columns bucket, key, value, time_us, place and, if a condition tells it, end."""
        from pyspark.sql import functions as call

        untimed = call.raise_error(call.lit(f"a row has no time: column {self.time!r} is null"))
        nothing = call.lit(b"")
        place = call.col("offset") if self.of_topic else call.lit(0).cast("bigint")
        columns = [
            self._bucket().alias("bucket"),
            call.coalesce(call.col(self.key).cast("binary"), nothing).alias("key"),
            call.coalesce(call.col(self.value).cast("binary"), nothing).alias("value"),
            call.coalesce(call.unix_micros(self.time), untimed.cast("bigint")).alias("time_us"),
            place.alias("place"),
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
        if not self.of_topic:
            raise InvalidError(
                "there are no columns `partition` and `offset` to go by", advice="Give `buckets`."
            )
        return call.col("partition")


def assembled(rows: Rows, make: Maker, idle_after: float | None) -> DataFrame:
    """The results: key, value, reason, count, first and last."""
    from pyspark.sql import functions as call

    from penstock.spark.packing import PACKED, pack
    from penstock.spark.processor import COLUMNS, BatchRunner, BucketProcessor

    selected = rows.selected()
    if rows.df.isStreaming:
        packed = selected.mapInArrow(pack, PACKED)
        results = packed.groupBy("bucket").transformWithStateInPandas(
            statefulProcessor=BucketProcessor(make, idle_after),
            outputStructType=COLUMNS,
            outputMode="Append",
            timeMode="none" if idle_after is None else "processingTime",
        )
    else:
        # Rows of several partitions have no order of arrival that could be told afterwards.
        order = ["place"] if rows.buckets is None else ["time_us", "place"]
        named = selected.withColumn("bucket", name_column(call.col("bucket")))
        sorted_rows = named.repartition("bucket").sortWithinPartitions("bucket", *order)
        results = sorted_rows.mapInArrow(BatchRunner(make), COLUMNS)
    times = [call.timestamp_micros(f"{name}_us").alias(name) for name in ("first", "last")]
    return results.select("key", "value", "reason", "count", *times)
