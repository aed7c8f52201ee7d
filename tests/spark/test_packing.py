"""Rows that are packed come out by place, for each partition, in pieces that are not too large."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from penstock.spark import packing
from penstock.spark.lineage import Lineage
from penstock.spark.packing import by_bucket, is_packed, pack, packed_row, unpack
from penstock.spark.spread import name_of


def rows(buckets: list[int], places: list[int]) -> pa.RecordBatch:
    count = len(places)
    return pa.RecordBatch.from_pydict(
        {
            "bucket": pa.array(buckets, pa.int32()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([b"%d" % place for place in places], pa.binary()),
            "time_us": np.arange(count),
            "place": places,
        }
    )


def test_rows_of_a_bucket_become_one() -> None:
    found = list(pack([rows([3, 300, 3, 3], [1, 7, 0, 9]), rows([], [])]))
    whole = pa.Table.from_batches(found).to_pylist()
    assert is_packed(found[0].schema.names)
    assert [(row["bucket"], row["place"]) for row in whole] == [(name_of(3), 1), (name_of(300), 7)]
    [lot] = unpack([whole[0]["rows"]])
    assert lot.line == Lineage.alone(3)
    assert lot.rows.column("value").to_pylist() == [b"0", b"1", b"9"]


def test_rows_of_several_partitions_stay_apart() -> None:
    parts = [
        packed_row(Lineage(number, 0), [rows([0] * 2, places).drop_columns(["bucket"])])
        for number, places in ((0, [5, 6]), (1, [0, 1]), (0, [2, 3]))
    ]
    lots = list(unpack(part.column("rows")[0].as_buffer() for part in parts))
    assert [lot.line.partition for lot in lots] == [0, 1]
    assert lots[0].rows.column("place").to_pylist() == [2, 3, 5, 6]


@pytest.mark.parametrize("shuffled", [False, True])
def test_pieces_have_a_bound(monkeypatch, shuffled: bool) -> None:
    monkeypatch.setattr(packing, "PIECE_ROWS", 10)
    places = np.random.default_rng(1).permutation(60) if shuffled else np.arange(60)
    batches = [rows([0] * 4, part.tolist()) for part in np.split(places, 15)]
    packed = [each.column("rows")[0].as_buffer() for each in pack(batches)]
    lots = list(unpack(packed))
    assert max(len(lot.rows) for lot in lots) < 20
    found = [place for lot in lots for place in lot.rows.column("place").to_pylist()]
    assert found == list(range(60))


def test_buckets_keep_the_order_of_their_rows() -> None:
    parts = dict(by_bucket(rows([2, 1, 2, 1], [4, 3, 2, 1])))
    assert {each: part.column("place").to_pylist() for each, part in parts.items()} == {
        1: [3, 1], 2: [4, 2],
    }  # fmt: skip
