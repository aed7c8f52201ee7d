"""Counting words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BETWEEN_WORDS = r"[^\p{L}\p{N}_]+"
"""What separates words, as a regular expression of Java: all that is no letter and no digit."""


def wordcount(
    lines: DataFrame,
    column: str = "value",
    *,
    ignore_case: bool = False,
    between: str = BETWEEN_WORDS,
) -> DataFrame:
    """How often each word is in the lines: columns `word` and `count`, in no order."""
    from pyspark.sql import functions as call

    text = call.lower(column) if ignore_case else call.col(column)
    words = lines.select(call.explode(call.split(text, between)).alias("word"))
    return words.where("word != ''").groupBy("word").count()
