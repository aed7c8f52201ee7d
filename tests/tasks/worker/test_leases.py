"""Leases are extended in time, and only as long as they are of use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.tasks.worker.leases import Leases

LEASE_US = 30_000_000


@given(st.lists(st.integers(0, LEASE_US // 6), max_size=40), st.integers(1, 9))
def test_no_lease_ends_while_somebody_looks_often_enough(pauses: list[int], rows: int):
    leases = Leases(LEASE_US)
    leases.add(1, rows, 0)
    now_us = ends_us = 0
    ends_us = LEASE_US
    for pause in pauses:
        now_us += pause
        assert now_us < ends_us, "it ran out"
        for delivery, due in leases.due(now_us):
            assert (delivery, due) == (1, list(range(rows)))
            ends_us = now_us + LEASE_US


def test_only_what_is_open_is_extended():
    leases = Leases(LEASE_US)
    leases.add(1, 3, 0)
    leases.add(2, 1, 0)
    assert not leases.settled(1, [1])
    assert leases.settled(2, [0])
    assert leases.due(LEASE_US // 2) == []
    assert leases.due(LEASE_US * 2 // 3) == [(1, [0, 2])]
    assert leases.due(LEASE_US * 2 // 3) == []
    assert leases.settled(1, [0, 2])
    assert not leases.settled(1, [0])
    assert len(leases) == 0


def test_one_that_may_not_be_extended_is_due_again():
    leases = Leases(LEASE_US)
    leases.add(1, 1, 0)
    assert leases.due(LEASE_US)
    leases.failed(1)
    leases.failed(7)
    assert leases.due(LEASE_US) == [(1, [0])]
