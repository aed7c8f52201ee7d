"""Sessions and other objects, assembled from rows by Spark: the same records as by a consumer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.consumers.sessions import Encoder, Fold, Sessionizer
from penstock.consumers.stateful import LatePolicy, Stateful
from penstock.errors import InvalidError
from penstock.spark.buckets import check_stateful
from penstock.spark.plans import Rows, assembled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SESSION_JSON = (
    "key string, start_us bigint, end_us bigint, count bigint, reason string, "
    "fragments array<array<string>>"
)
"""What `from_json` takes to read the values that `sessions` gives."""


def sessions(
    df: DataFrame,
    *,
    key: str = "key",
    value: str = "value",
    time: str = "timestamp",
    end: Callable[[bytes], bool] | Column | None = None,
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
    `buckets` are those of `stateful`. They are made column by column, without a call of Python for
    each key, unless there is a fold or an encoder. `end` may also be a condition of Spark, such as
    `endswith("value", lit(b":END"))`: then Python is not called for each value, either.
    """
    by_column = end is not None and not callable(end)
    rest = {} if encoder is None else {"encoder": encoder}
    sessionizer = Sessionizer(
        end=_told_by_column if by_column else end, timeout=timeout, delay=delay, late=late,
        idle_after=idle_after, fragment_id=fragment_id, fold=fold, initial=initial, **rest,
    )  # fmt: skip
    if not sessionizer.is_plain:
        if by_column:
            raise InvalidError(
                "an end that is a condition of Spark does not go with a fold or an encoder",
                advice="Give a function of the value.",
            )
        return stateful(df, sessionizer, key=key, value=value, time=time, buckets=buckets)
    from penstock.spark.engines import InColumns

    rows = Rows(df, key, value, time, buckets, end=end if by_column else None)
    return assembled(rows, partial(InColumns, sessionizer), idle_after)


def stateful(
    df: DataFrame,
    operator: Stateful[Any],
    *,
    key: str = "key",
    value: str = "value",
    time: str = "timestamp",
    buckets: int | None = None,
) -> DataFrame:
    """Objects of each key, assembled by a Stateful; `df` is a stream or a batch with columns for
    key and value (binary) and time (timestamp).

    The result has the columns key, value, reason, count, first and last (timestamps). Fragments
    that came too late are among the rows under the policy "side", with the reason "late".
    Rows are put together by their partition if `df` is a topic's, and each partition has its own
    time, as with a consumer. With `buckets`, keys are spread over so many instead, and a row is
    late by the latest of its bucket: use that where rows of a key may be in several partitions.
    `buckets` cannot change once a query has a checkpoint. A batch ends with silence for ever: what
    has a timeout is over then. In a batch with `buckets` rows are taken by time, and none is late.
    """
    from penstock.spark.engines import OneByOne

    check_stateful(operator)
    rows = Rows(df, key, value, time, buckets)
    return assembled(rows, partial(OneByOne, operator), operator.completion.idle_after)


def _told_by_column(value: bytes) -> bool:
    raise InvalidError("which values are ends is told by a column")
