"""Batches of Arrow's columns are those that lists would give."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import arrow_rows as module
from penstock.client.arrow_rows import ArrowRows, arrow_rows
from penstock.client.rows import Rows
from penstock.errors import InvalidError, TooLargeError
from penstock.wire.batch import Batch
from penstock.wire.growth import Layout

NOW_US = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())
texts = st.binary(max_size=12)
lines = st.tuples(
    texts,
    st.none() | texts,
    st.none() | st.integers(0, 1 << 50),
    st.none() | st.dictionaries(st.text(max_size=3), texts, max_size=2),
)


def table_of(rows: list[Any], text: Any = None) -> Any:
    values, keys, times, headers = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "value": pa.array(values, text or pa.binary()),
            "key": pa.array(keys, text or pa.binary()),
            "timestamp": pa.array(times, TIME),
            "headers": pa.array([None if each is None else list(each.items()) for each in headers],
                                HEADERS),
        }
    )  # fmt: skip


def shown(rows: ArrowRows) -> list[tuple[Any, ...]]:
    batch = Batch.parse(rows.encode(NOW_US))
    times = batch.timestamps.tolist()
    return list(zip(batch.values, batch.keys, times, batch.headers, strict=True))


def expected(rows: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (value, key, NOW_US if time is None else time, headers or {})
        for value, key, time, headers in rows
    ]


@given(st.lists(lines, min_size=1), st.integers(0, 5), st.sampled_from([pa.binary(),
       pa.large_binary()]), st.sampled_from(["none", "zstd"]))  # fmt: skip
def test_a_batch_has_what_the_table_has(rows, skipped, text, compression) -> None:
    table = table_of(rows, text).slice(min(skipped, len(rows) - 1))
    (found,) = arrow_rows(table, NOW_US)
    left = rows[min(skipped, len(rows) - 1) :]
    assert found.messages == len(left)
    assert shown(found) == expected(left)
    packed = Batch.parse(found.encode(NOW_US, compression=compression))
    assert packed.values == [row[0] for row in left]


@given(st.lists(lines, min_size=1), st.integers(1, 9), st.lists(st.integers(0, 3), max_size=2))
def test_keys_go_where_lists_of_keys_go(rows, initial, parents) -> None:
    layout = Layout(initial, [[each % initial for each in parents]] if parents else [])
    table = table_of(rows)
    (found,) = arrow_rows(table, NOW_US)
    if not found.keyed:
        assert all(key is None for _, key, _, _ in rows)
        return
    plain = Rows([row[0] for row in rows], [row[1] for row in rows])
    chosen = found.partitions(layout, lambda: 7)
    assert chosen.tolist() == plain.partitions(layout, lambda: 7)
    parts = dict(found.grouped(chosen))
    assert {number: [row[:2] for row in shown(part)] for number, part in parts.items()} == {
        number: list(zip(part.values, part.keys or [], strict=True))
        for number, part in plain.grouped(chosen.tolist())
    }


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.integers(0, 9))
def test_pieces_are_small_and_nothing_is_missing(values, skipped) -> None:
    table = pa.record_batch({"value": pa.array([b"x" * 9] * skipped + values)})
    (rows,) = arrow_rows(table.slice(skipped), NOW_US)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", 50)
        patch.setattr(module, "PIECE_ROWS", 7)
        pieces = [Batch.parse(piece.encode(NOW_US)).values for piece in rows.pieces()]
    assert [value for piece in pieces for value in piece] == values
    assert all(len(piece) <= 7 for piece in pieces)
    assert all(sum(map(len, piece)) <= 50 or len(piece) == 1 for piece in pieces)


def test_text_and_dictionaries_are_taken() -> None:
    keys = pa.array(["a", "b", None, "a"]).dictionary_encode()
    table = pa.table({"value": pa.array(["1", "2", "3", "ä"], pa.large_string()), "key": keys})
    (rows,) = arrow_rows(table, NOW_US)
    assert [row[:2] for row in shown(rows)] == [
        (b"1", b"a"), (b"2", b"b"), (b"3", None), ("ä".encode(), b"a"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        ({"value": [b"a", None]}, InvalidError, "'value' is null in row 1,001"),
        ({"value": [1, 2]}, InvalidError, "column 'value' is int64"),
        ({"key": [b"a"]}, InvalidError, "`value` is missing"),
        ({"value": [b"a"], "topic": ["t"]}, InvalidError, "not topic"),
        ({"value": [b"a"], "timestamp": [5]}, InvalidError, "not a timestamp"),
        ({"value": [b"a"], "headers": [b"h"]}, InvalidError, "not a map"),
        ({"value": [b"a"], "key": [b"x" * 70_000]}, TooLargeError, "a key of 70,000 bytes"),
        ({"value": [b"a"], "headers": pa.array([[("h", None)]], HEADERS)}, InvalidError, "'h'"),
    ],
)
def test_what_is_wrong_is_told(table, error, said) -> None:
    with pytest.raises(error, match=said):
        list(arrow_rows(pa.table(table), NOW_US, first=1000))


def test_nothing_is_made_of_no_rows() -> None:
    assert list(arrow_rows(pa.table({"value": pa.array([], pa.binary())}), NOW_US)) == []
    table = pa.table({"value": [b"a"], "key": pa.nulls(1), "headers": pa.array([[]], HEADERS)})
    (rows,) = arrow_rows(table, NOW_US)
    assert shown(rows) == [(b"a", None, NOW_US, {})]
    assert Batch.parse(rows.encode(NOW_US)).header.columns == 0
