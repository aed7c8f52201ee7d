"""Searching lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import InvalidError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def grep(
    lines: DataFrame,
    pattern: str,
    column: str = "value",
    *,
    fixed: bool = False,
    ignore_case: bool = False,
    invert: bool = False,
) -> DataFrame:
    """The lines in which a pattern is found, with all their columns.

    `pattern` is a regular expression of Java, or with `fixed` what is to be found as it is.
    `invert`: the lines in which it is not. InvalidError if it is no regular expression.
    """
    from pyspark.sql import functions as call

    text = call.col(column)
    if fixed:
        sought = pattern.lower() if ignore_case else pattern
        found = (call.lower(text) if ignore_case else text).contains(sought)
    else:
        _check(lines.sparkSession, pattern)
        found = text.rlike(f"(?iu){pattern}" if ignore_case else pattern)
    return lines.where(~found if invert else found)


def _check(spark: SparkSession, pattern: str) -> None:
    """Tells here what tasks would otherwise fail with."""
    from pyspark.errors import PySparkException

    try:
        spark._jvm.java.util.regex.Pattern.compile(pattern)
    except PySparkException as error:
        told = str(error).splitlines()[0]
        raise InvalidError(f"{pattern!r} is no regular expression: {told}") from None
