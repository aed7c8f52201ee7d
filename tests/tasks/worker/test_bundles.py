"""How tasks are bundled: short ones together, long ones alone; and how many are held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.worker.making import job

from penstock.tasks.worker.bundles import BUNDLE_US, MAX_BUNDLE, MAX_READY, bundle_size, wanted
from penstock.tasks.worker.times import Times

TIMES_US = {"null": 10, "ms": 1_000, "third": 4_000, "long": 500_000}
FUNCTIONS = st.sampled_from([*TIMES_US, "unknown"])


def size(functions: list[str], share: int = 1_000, idle: bool = True) -> int:
    return bundle_size([job(each) for each in functions], share, TIMES_US.get, idle)


def test_ten_milliseconds_of_work():
    assert size(["ms"] * 50) == 10
    assert size(["third"] * 50) == 2
    assert size(["null"] * 5_000) == MAX_BUNDLE


def test_a_long_or_unknown_one_alone():
    assert size(["long", "ms"]) == 1
    assert size(["unknown", "null"]) == 1
    assert size(["ms", "ms", "long", "ms"]) == 2


def test_an_executor_that_is_not_idle_gets_only_what_is_known():
    assert size(["long", "ms"], idle=False) == 1
    assert size(["unknown"], idle=False) == 0
    assert size(["ms"] * 3, idle=False) == 3


def test_all_executors_get_some():
    assert size(["null"] * 8, share=1) == 1


@given(st.lists(FUNCTIONS, min_size=1, max_size=60), st.integers(1, 50), st.booleans())
def test_any_bundle_is_short_or_single(functions: list[str], share: int, idle: bool):
    count = size(functions, share, idle)
    assert 0 <= count <= len(functions)
    assert count or not idle, "an idle executor gets something"
    if count > 1:
        assert count <= share
        assert sum(TIMES_US[each] for each in functions[:count]) <= BUNDLE_US


def test_what_is_leased_ahead():
    idle, busy = [0] * 8, [500_000] * 8
    assert wanted(idle, 0, None, True) == 8, "at first one for each"
    assert wanted(busy, 0, None, True) == 0
    assert wanted(busy, 0, 1_000_000, True) == 0, "somebody else's until one is nearly done"
    assert wanted([25_000, 0, *busy], 0, 1_000_000, True) == 2
    assert wanted([25_000, 0, *busy], 2, 1_000_000, True) == 0
    assert wanted(busy, 0, 128_000, True) == 1, "nobody knows whose, but one will be done soon"
    assert wanted(busy, 0, 128_000, False) == 0
    assert wanted(idle, 0, 1_000, True) == 240
    assert wanted([15_000] * 8, 0, 1_000, True) == 120
    assert wanted([15_000] * 8, 100, 1_000, True) == 0, "not worth a request yet"
    assert wanted([0, 0], 0, 5, True) == MAX_READY


def test_times_follow_what_is_measured():
    times = Times()
    assert times.expected_us("f") is None
    assert times.typical_us() is None
    for _ in range(100):
        times.took("f", 1_000)
    expected = times.expected_us("f")
    assert expected is not None
    assert 1_000 <= expected < 1_100
    for _ in range(5):
        times.took("f", 50_000)
    expected = times.expected_us("f")
    assert expected is not None
    assert expected > BUNDLE_US, "believed after a few times"


def test_times_that_vary_count_as_long():
    times = Times()
    for turn in range(200):
        times.took("mixed", 1_000 if turn % 4 else 100_000)
    expected = times.expected_us("mixed")
    assert expected is not None
    assert expected > BUNDLE_US
