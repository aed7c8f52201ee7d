"""Sorting as TeraSort does it: ranges of keys from a sample, each range sorted by itself.

Records are lines, or those of the sort benchmark: 100 bytes, of which the first 10 are the key and
the last is a newline.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.errors import InvalidError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Records = Literal["lines", "tera"]

KEY_BYTES = 10
RECORD_BYTES = 99  # and the newline, which is no part of a row
SAMPLE = "spark.sql.execution.rangeExchange.sampleSizePerPartition"
_GAP = "  "
_NUMBER_DIGITS = 32
_FILLER = RECORD_BYTES - KEY_BYTES - _NUMBER_DIGITS - 2 * len(_GAP)


def sort(
    lines: DataFrame,
    column: str = "value",
    *,
    records: Records = "lines",
    partitions: int | None = None,
) -> DataFrame:
    """The lines in the order of their bytes, in `partitions` ranges: one follows the other.

    The borders of the ranges come from a sample, for which the input is read once more. Records of
    "tera" go by their first 10 bytes, and one that is not 100 bytes long ends the job.
    """
    if partitions is not None and partitions < 1:
        raise InvalidError(f"{partitions} partitions: use 1 or more")
    ranges = [] if partitions is None else [partitions]
    rows = lines.select(_checked(column, records).alias(column))
    key = sort_key(column, records)
    return rows.repartitionByRange(*ranges, key).sortWithinPartitions(key)


def sort_key(column: str, records: Records) -> Column:
    """What the order goes by."""
    from pyspark.sql import functions as call

    text = call.col(column)
    return call.substring(text.cast("binary"), 1, KEY_BYTES) if records == "tera" else text


def _checked(column: str, records: Records) -> Column:
    from pyspark.sql import functions as call

    text = call.col(column)
    if records == "lines":
        return text
    length = call.octet_length(text)
    wrong = call.concat(
        call.lit("a record has "), length + 1, call.lit(f" bytes instead of {RECORD_BYTES + 1}")
    )
    return call.when(length == RECORD_BYTES, text).otherwise(call.raise_error(wrong))


def make_records(spark: SparkSession, count: int, seed: int = 0, tasks: int = 2) -> DataFrame:
    """Records of the sort benchmark (column `value`, without the newline), the same for a seed.

    A key has 60 bits of chance, as 10 letters, digits, `+` and `/`; then come the number of the
    record and a filler.
    """
    from pyspark.sql import functions as call

    number = call.col("id")
    chance = call.lpad(call.hex(call.xxhash64(number, call.lit(seed))), 16, "0")
    letter = call.char(call.lit(65) + call.pmod(number, call.lit(26)))
    value = call.concat(
        call.substring(call.base64(call.unhex(chance)), 1, KEY_BYTES),
        call.lit(_GAP),
        call.lpad(call.hex(number), _NUMBER_DIGITS, "0"),
        call.lit(_GAP),
        call.repeat(letter, call.lit(_FILLER)),
    )
    return spark.range(0, count, 1, tasks).select(value.alias("value"))


class Survey(NamedTuple):
    """What is known of some rows. `checksum` depends on all of them, but not on their order."""

    rows: int
    checksum: int
    misplaced: int

    def same_rows(self, other: Survey) -> bool:
        """Whether it is, as far as the checksum tells, the same rows in some order."""
        return (self.rows, self.checksum) == (other.rows, other.checksum)


def survey(lines: DataFrame, column: str = "value") -> Survey:
    """Counts rows, in whatever order."""
    from pyspark.sql import functions as call

    [row] = lines.agg(call.count("*"), _checksum(column)).collect()
    return Survey(row[0], int(row[1] or 0), 0)


def is_sorted(
    lines: DataFrame,
    parts: Sequence[str | Column],
    order: Column,
    column: str = "value",
    records: Records = "lines",
) -> Survey:
    """How many rows are smaller than the one before them.

    `parts`: the columns that name a part; parts follow each other in the order of these. `order`:
    what the rows of a part follow each other by.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as call

    named = [f"part_{number}" for number in range(len(parts))]
    columns = [
        (call.col(part) if isinstance(part, str) else part).alias(name)
        for part, name in zip(parts, named, strict=True)
    ]
    rows = lines.select(
        *columns, order.alias("place"), call.col(column), sort_key(column, records).alias("key")
    )
    before = call.lag("key").over(Window.partitionBy(*named).orderBy("place"))
    smaller = call.when(call.col("key") < before, 1).otherwise(0)
    of_part = rows.withColumn("smaller", smaller).groupBy(*named).agg(
        call.count("*").alias("rows"),
        _checksum(column).alias("checksum"),
        call.sum("smaller").alias("smaller"),
        call.min("key").cast("binary").alias("least"),
        call.max("key").cast("binary").alias("greatest"),
    )
    return _joined(of_part.orderBy(*named).collect())


def _joined(parts: list[Any]) -> Survey:
    overlaps = sum(
        bytes(one["greatest"]) > bytes(other["least"]) for one, other in pairwise(parts)
    )
    return Survey(
        sum(part["rows"] for part in parts),
        sum(int(part["checksum"]) for part in parts),
        sum(part["smaller"] for part in parts) + overlaps,
    )


def _checksum(column: str) -> Column:
    from pyspark.sql import functions as call

    # As a decimal: a sum of many 64-bit numbers would not fit into one.
    return call.sum(call.xxhash64(column).cast("decimal(38, 0)"))
