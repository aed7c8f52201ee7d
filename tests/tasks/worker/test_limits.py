"""Rates that workers share: any number of them, claiming at random, never start too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.tasks.options import Rate
from penstock.tasks.worker.limits import (
    HORIZON_US,
    MAX_CLAIM,
    MAX_DELAY_US,
    claim,
    delays_ms,
    pack_free,
    read_free,
)

RATES = st.builds(Rate, st.floats(0.5, 500), st.floats(0.5, 10))
STEPS = st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 50)), max_size=60)


@given(RATES, STEPS)
def test_no_window_has_more_starts_than_the_rate_and_one(rate: Rate, steps: list[tuple[int, int]]):
    now_us, free_us = 1_000_000, 0
    starts: list[int] = []
    for pause_us, wanted in steps:
        now_us += pause_us
        got = claim(rate, free_us, now_us, wanted)
        assert len(got.starts_us) <= min(wanted, MAX_CLAIM)
        assert all(now_us <= each <= now_us + HORIZON_US + 1 for each in got.starts_us)
        if got.starts_us:
            free_us = read_free(pack_free(got.free_us))
        starts += got.starts_us
    assert starts == sorted(starts)
    window_us = rate.seconds * 1e6
    for at, first in enumerate(starts):
        inside = sum(each < first + window_us for each in starts[at:])
        assert inside <= int(rate.starts) + 2


def test_a_claim_begins_now_if_nobody_was_before():
    got = claim(Rate(10, 1), 0, 5_000_000, 3)
    assert got.starts_us == [5_000_000, 5_100_000, 5_200_000]
    assert claim(Rate(10, 1), got.free_us, 5_000_000, 1).starts_us == [5_300_000]


def test_no_more_is_claimed_than_the_next_second_has():
    assert len(claim(Rate(10, 1), 0, 0, 100).starts_us) == 11
    assert claim(Rate(10, 1), 2_000_000, 0, 100) == ([], 2_000_000)


def test_those_without_a_start_come_back_one_after_the_other():
    assert delays_ms(Rate(10, 1), 2_000_000, 1_000_000, 3) == [1_000, 1_100, 1_200]
    assert delays_ms(Rate(10, 1), 0, 1_000_000, 1) == [1]
    assert delays_ms(Rate(1, 86_400), 0, 0, 2)[1] == MAX_DELAY_US // 1000


def test_an_entry_that_is_none():
    with pytest.raises(ProtocolError):
        read_free(b"\xc0")
