"""Batch programs for Spark: count words, sort, search; over files or topics.

All work is done in expressions of Spark: no row is seen by Python.
"""

from __future__ import annotations

from penstock.spark.apps.places import Fabric, read_lines, write_rows
from penstock.spark.apps.search import grep
from penstock.spark.apps.sorting import is_sorted, make_records, sort, survey
from penstock.spark.apps.words import wordcount

__all__ = [
    "Fabric",
    "grep",
    "is_sorted",
    "make_records",
    "read_lines",
    "sort",
    "survey",
    "wordcount",
    "write_rows",
]
