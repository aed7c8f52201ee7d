"""The cache of payloads that were just written: bounded by the memory that they keep."""

from __future__ import annotations

from penstock.engine.cache import OVERHEAD_BYTES, RecentPayloads

ROOM = 10 * (1000 + OVERHEAD_BYTES)


def test_the_oldest_leave_when_there_is_no_room() -> None:
    recent = RecentPayloads(ROOM)
    for place in range(12):
        recent.add(place, bytes(1000))
    assert [recent.get(place) is None for place in range(12)] == [True] * 2 + [False] * 10


def test_memory_that_payloads_share_counts_once() -> None:
    recent = RecentPayloads(ROOM)
    block = memoryview(bytearray(4000))
    for place in range(4):
        recent.add(place, block[1000 * place : 1000 * place + 1000])
    for place in range(4, 10):
        recent.add(place, memoryview(bytearray(1000)))
    assert all(recent.get(place) is not None for place in range(10))
    recent.add(10, bytes(1000))
    assert recent.get(0) is None  # and its memory is kept by the others
    assert recent.get(1) is None
    assert recent.get(4) is not None


def test_a_small_part_counts_as_all_that_it_keeps() -> None:
    recent = RecentPayloads(ROOM)
    for place in range(4):
        recent.add(place, memoryview(bytearray(8000))[:100])
    assert [recent.get(place) is None for place in range(4)] == [True, True, False, False]


def test_what_does_not_fit_is_not_kept() -> None:
    recent = RecentPayloads(0)
    recent.add(1, bytes(10))
    assert recent.get(1) is None
