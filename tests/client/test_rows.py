"""What callers pass to a bulk push, cut into batches and grouped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.rows import Rows, RowSource
from penstock.errors import InvalidError

VALUES = st.lists(st.binary(max_size=5), max_size=300)


@given(VALUES, st.integers(1, 100))
def test_batches_hold_all_values_in_order(values, most):
    batches = list(RowSource(iter(values), None, None, None).batches(most))
    assert [value for batch in batches for value in batch.values] == values
    assert all(len(batch.values) <= most for batch in batches)
    assert all(len(batch.values) == most for batch in batches[:-1])


def test_columns_go_along_with_the_values():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    source = RowSource(
        [b"a", b"b", b"c"], ["k", None, b"l"], [{"h": b"1"}, None, {}], [1, 2.5, moment]
    )
    first, second = source.batches(2)
    assert first[:4] == ([b"a", b"b"], [b"k", None], [{"h": b"1"}, None], [1_000_000, 2_500_000])
    assert second.timestamps_us == [int(moment.timestamp()) * 1_000_000]


def test_values_are_taken_lazily_and_large_ones_one_batch_at_a_time():
    taken = 0

    def large() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield bytes(1 << 20)

    batches = RowSource(large(), None, None, None).batches(1000)
    assert taken == 0
    next(batches)
    assert taken <= 64


@pytest.mark.parametrize("values", ["text", b"bytes", bytearray(b"x"), memoryview(b"x")])
def test_one_string_is_not_many_values(values):
    with pytest.raises(InvalidError, match="not one string"):
        RowSource(values, None, None, None)


def test_a_column_of_another_length_is_refused_before_anything_is_sent():
    with pytest.raises(InvalidError, match="1 keys for 2 values"):
        RowSource([b"a", b"b"], [b"k"], None, None)
    source = RowSource(iter([b"a", b"b"]), iter([b"k"]), None, None)
    with pytest.raises(InvalidError, match="fewer keys"):
        list(source.batches(10))


def test_numbers_are_not_values():
    with pytest.raises(InvalidError, match="must be bytes"):
        list(RowSource([1, 2], None, None, None).batches(10))  # type: ignore[list-item]


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 4)), min_size=1))
def test_grouping_keeps_the_order_inside_each_group(pairs):
    values = [value for value, _ in pairs]
    groups = [group for _, group in pairs]
    rows = Rows(values, list(values), [None] * len(values), list(range(len(values))))
    found = dict(rows.grouped(groups))
    assert set(found) == set(groups)
    for group, part in found.items():
        expected = [(row, value) for row, (value, own) in enumerate(pairs) if own == group]
        assert list(zip(part.timestamps_us or [], part.values, strict=True)) == expected
        assert list(part.keys or []) == list(part.values)
