"""What callers pass to a bulk push, cut into batches and grouped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.rows import BATCH_BYTES, Rows, RowSource
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
    first = next(batches)
    assert taken <= 8
    assert sum(map(len, first.values)) <= BATCH_BYTES


SIZES = st.sampled_from([0, 1, 10, 60, 99, 100, 101, 250])


@given(st.lists(SIZES, max_size=80), st.integers(1, 30))
def test_lists_and_iterators_are_cut_by_bytes_all_the_same(sizes, most):
    values = [bytes([row]) * size for row, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.client.rows.BATCH_BYTES", 100)
        of_list, of_iterator = (
            [rows.values for rows in RowSource(each, None, None, None).batches(most)]
            for each in (values, iter(values))
        )
    for batches in (of_list, of_iterator):
        assert [value for batch in batches for value in batch] == values
        assert all(len(batch) <= most for batch in batches)
        assert all(len(batch) == 1 or sum(map(len, batch)) <= 100 for batch in batches)


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
