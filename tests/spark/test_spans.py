from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.spark.spans import (
    SMALL_TASK_ROWS,
    Span,
    from_json,
    limited,
    split,
    to_json,
)

positions = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(0, 10**6)))


def test_offsets_are_json_by_partition() -> None:
    assert to_json({10: 4, 2: 7}) == {"2": 7, "10": 4}
    assert from_json({"2": 7, "10": 4}) == {2: 7, 10: 4}
    with pytest.raises(InvalidError, match="another source"):
        from_json({"index": {"x": 1}})  # type: ignore[dict-item]


@given(positions, st.integers(1, 2000))
def test_a_limit_holds_and_leaves_nobody_behind(found, most) -> None:
    start = {each: first for each, (first, _) in found.items()}
    end = {each: first + rows for each, (first, rows) in found.items()}
    taken = limited(start, end, most)
    rows = {each: taken[each] - start[each] for each in taken}
    waiting = {each: end[each] - start[each] for each in end}
    assert sum(rows.values()) == min(most, sum(waiting.values()))
    assert all(0 <= rows[each] <= waiting[each] for each in rows)
    if most >= len(rows):
        assert all(rows[each] for each in rows if waiting[each])


def test_a_limit_is_shared_in_proportion() -> None:
    assert limited({}, {0: 1001, 1: 3001}, 402) == {0: 101, 1: 301}


@given(positions, st.integers(1, 10**6), st.integers(1, 8))
def test_tasks_cover_everything_once(found, rows_per_task, min_tasks) -> None:
    start = {each: first for each, (first, _) in found.items()}
    end = {each: first + rows for each, (first, rows) in found.items()}
    spans = split(start, end, max(rows_per_task, 1000), min_tasks)
    at = dict(start)
    for span in spans:
        assert at[span.partition] == span.start < span.end
        assert span.end - span.start <= max(rows_per_task, 1000)
        at[span.partition] = span.end
    assert at == end


def test_one_large_partition_is_work_for_all_cores() -> None:
    halves = [Span(0, 10, 50_010), Span(0, 50_010, 100_010)]
    assert split({0: 10}, {0: 100_010}, 500_000, 2) == halves
    few = SMALL_TASK_ROWS - 1
    assert split({}, {0: few}, 500_000, 2) == [Span(0, 0, few)]


def test_a_partition_that_got_shorter_is_no_work() -> None:
    assert split({0: 10}, {0: 5}, 100, 2) == []
