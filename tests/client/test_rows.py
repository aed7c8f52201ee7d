"""What callers pass to a bulk push, cut into batches and grouped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.rows import BATCH_BYTES, PackedRows, Rows, RowSource
from penstock.errors import InvalidError
from penstock.wire.batch import Batch

VALUES = st.lists(st.binary(max_size=5), max_size=300)


def values_of(rows: Rows | PackedRows) -> list[bytes]:
    """What a batch of these rows holds."""
    return Batch.parse(rows.encode(0)).values


def as_lists(batches: Iterable[Rows | PackedRows]) -> list[Rows]:
    """Batches that are kept as lists."""
    found = []
    for each in batches:
        assert isinstance(each, Rows)
        found.append(each)
    return found


@given(VALUES, st.integers(1, 100))
def test_batches_hold_all_values_in_order(values, most):
    batches = as_lists(RowSource(iter(values), None, None, None).batches(most))
    assert [value for batch in batches for value in batch.values] == values
    assert all(len(batch.values) <= most for batch in batches)
    assert all(len(batch.values) == most for batch in batches[:-1])


def test_columns_go_along_with_the_values():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    source = RowSource(
        [b"a", b"b", b"c"], ["k", None, b"l"], [{"h": b"1"}, None, {}], [1, 2.5, moment]
    )
    first, second = as_lists(source.batches(2))
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
    assert sum(map(len, values_of(first))) <= BATCH_BYTES


SIZES = st.sampled_from([0, 1, 10, 60, 99, 100, 101, 250])


@given(st.lists(SIZES, max_size=80), st.integers(1, 30))
def test_lists_and_iterators_are_cut_by_bytes_all_the_same(sizes, most):
    values = [bytes([row]) * size for row, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.client.rows.BATCH_BYTES", 100)
        of_list, of_iterator = (
            [values_of(rows) for rows in RowSource(each, None, None, None).batches(most)]
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


@given(VALUES, st.integers(1, 100))
def test_a_list_of_values_alone_is_packed_in_batches_of_the_same_bytes(values, most):
    batches = list(RowSource(values, None, None, None).batches(most))
    sliced = list(RowSource(iter(values), None, None, None).batches(most))
    assert [each.messages for each in batches] == [each.messages for each in sliced]
    settings = {"producer": 7, "sequence": 3, "priority": 2}
    assert [each.encode(5, **settings) for each in batches] == [
        each.encode(5, **settings) for each in sliced
    ]


def test_packed_rows_are_sealed_anew_without_a_change_to_what_was_sent():
    (rows,) = RowSource([b"a", b"b"], None, None, None).batches(10)
    first = rows.encode(5, producer=7, sequence=0)
    sent = bytes(first)
    again = rows.encode(5, producer=8, sequence=4)
    assert bytes(first) == sent
    batch = Batch.parse(again)
    assert (batch.values, batch.header.producer, batch.header.sequence) == ([b"a", b"b"], 8, 4)


def test_packed_rows_have_the_bounds_of_all_batches():
    (rows,) = RowSource([b"a"], None, None, None).batches(10)
    with pytest.raises(InvalidError, match="priority"):
        rows.encode(5, priority=16)
    quarter = bytes(BATCH_BYTES // 4)
    large = [3 * quarter, quarter, quarter, 9 * quarter, b""]
    batches = RowSource(large, None, None, None).batches(10)
    assert [each.messages for each in batches] == [2, 1, 1, 1]
