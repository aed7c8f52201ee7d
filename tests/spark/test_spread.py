from __future__ import annotations

import numpy as np
import pytest

from penstock.spark.spread import CHOSEN, hashes, name_column, names, number_of


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 6, 8, 16, 24, 48, 64])
def test_buckets_take_turns_with_the_tasks(tasks) -> None:
    found = hashes(np.array(names(), np.int32)).astype(np.int64) % tasks
    assert found.tolist() == [number % tasks for number in range(CHOSEN)]


def test_names_lead_back_to_numbers() -> None:
    assert len(set(names())) == CHOSEN
    assert [number_of(name) for name in names()] == list(range(CHOSEN))


def test_spark_hashes_and_names_alike(spark) -> None:
    from pyspark.sql.functions import col

    numbers = spark.range(0, 600, 37).selectExpr("int(id) as number", "hash(int(id)) as hashed")
    rows = numbers.select("number", "hashed", name_column(col("number")).alias("name")).collect()
    expected = hashes(np.array([row.number for row in rows], np.int32)).tolist()
    assert [row.hashed for row in rows] == expected
    assert [number_of(row.name) for row in rows] == [row.number for row in rows]
