"""Layouts of topics that grow, against what they must be."""

from __future__ import annotations

from itertools import pairwise

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.growth import Layout, hash_of, parents_for

ALL = 1 << 32


def grown(initial: int, steps: list[int]) -> Layout:
    growths: list[list[int]] = []
    for more in steps:
        growths.append(parents_for(Layout(initial, growths), more))
    return Layout(initial, growths)


@given(st.integers(1, 4096), st.binary())
def test_a_topic_that_has_not_grown_places_keys_as_ever(partitions: int, key: bytes):
    placed = ((xxhash.xxh3_64_intdigest(key) >> 32) * partitions) >> 32
    layout = Layout(partitions, [])
    assert layout.partition_of(key) == layout.partition_at(key, 0) == placed
    low, high = layout.ranges[placed]
    assert low <= hash_of(key) < high


def test_parts_are_equal_where_they_can_be():
    layout = grown(4, [8])
    assert layout.parents[4:] == [0, 0, 1, 1, 2, 2, 3, 3]
    widths = {high - low for low, high in layout.ranges}
    assert max(widths) - min(widths) <= 1
    assert [birth.children for birth in layout.births[1]] == [[6, 7]]
    assert layout.counts == [4, 12]


def test_the_widest_is_split_first_and_of_those_the_first():
    assert grown(3, [1]).parents[3:] == [0]
    assert grown(2, [1, 1]).parents[2:] == [0, 1]
    assert grown(2, [1, 1, 2]).parents[4:] == [0, 1]


STEPS = st.lists(st.integers(1, 7), max_size=5)


@given(st.integers(1, 9), STEPS)
def test_ranges_have_no_gap_and_no_overlap(initial: int, steps: list[int]):
    layout = grown(initial, steps)
    rows = sorted(layout.ranges)
    assert rows[0][0] == 0
    assert rows[-1][1] == ALL
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    assert all(low < high for low, high in rows)


@given(st.integers(1, 9), STEPS, st.lists(st.binary(max_size=8), min_size=1))
def test_history_is_what_the_layouts_were(initial: int, steps: list[int], keys: list[bytes]):
    layout = grown(initial, steps)
    for generation in range(len(steps) + 1):
        then = grown(initial, steps[:generation])
        for key in keys:
            assert layout.partition_at(key, generation) == then.partition_of(key)


@given(st.integers(1, 9), STEPS, st.binary(max_size=8))
def test_a_key_comes_to_its_owner_from_any_partition_that_had_it(
    initial: int, steps: list[int], key: bytes
):
    layout = grown(initial, steps)
    for generation in range(len(steps) + 1):
        at = layout.partition_at(key, generation)
        while (following := layout.next_of(at, key)) != at:
            assert layout.parents[following] == at
            at = following
        assert at == layout.partition_of(key)


def test_a_key_that_never_was_a_partitions_own_stays():
    layout = grown(2, [2])
    strange = next(key for key in map(bytes, zip(range(256))) if layout.partition_of(key) == 3)
    assert layout.next_of(0, strange) == 0
