"""Who steals what from whom, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.stealing import (
    AGAIN_US,
    FIRST_PAUSE_US,
    KEPT,
    LONGEST_PAUSE_US,
    LYING_US,
    MOST_BATCHES,
    MOST_BYTES,
    PATIENCE_US,
    STARVED_US,
    Hunger,
    Hungry,
    Lying,
    chosen,
    most_given,
)

NOW_US = 10_000_000
COUNTS = st.integers(0, 100_000)


@given(COUNTS, COUNTS, st.integers(0, 5))
def test_at_most_half_no_more_than_is_wanted_and_not_what_own_consumers_take(ready, wanted, own):
    given_away = most_given(ready, wanted, own)
    assert 0 <= given_away <= min((ready + 1) // 2, wanted)
    assert given_away == 0 or ready - given_away >= KEPT * own - (ready + 1) // 2
    if own == 0:
        assert given_away == min((ready + 1) // 2, wanted)
    elif ready <= KEPT * own:
        assert given_away == 0


@given(
    st.lists(st.builds(Lying, st.integers(1, 500), st.integers(1, 400_000), st.just(0))),
    st.integers(0, 2000),
)
def test_batches_leave_whole_and_within_bounds(lying, messages):
    count = chosen(lying, messages, NOW_US)
    taken = lying[:count]
    assert bool(count) == bool(lying and messages)
    assert count <= MOST_BATCHES
    assert count <= 1 or sum(each.messages for each in taken) <= messages
    assert count <= 1 or sum(each.size for each in taken) <= MOST_BYTES


def test_what_came_a_moment_ago_stays():
    old, young = Lying(1, 10, NOW_US - LYING_US), Lying(1, 10, NOW_US - LYING_US + 1)
    assert chosen([old, old, young, old], 10, NOW_US) == 2
    assert chosen([young], 10, NOW_US) == 0


def test_who_starves_says_so_asks_who_is_named_and_rests_if_that_was_in_vain():
    hunger = Hunger(NOW_US)
    assert hunger.due_us == NOW_US + STARVED_US
    hunger.next(NOW_US)
    assert hunger.due_us == NOW_US + AGAIN_US
    assert hunger.offered(7, NOW_US)
    assert not hunger.offered(8, NOW_US), "one at a time"
    assert hunger.due_us == NOW_US + PATIENCE_US
    hunger.given(8, 5, NOW_US)  # of another, long ago
    assert hunger.due_us == NOW_US + PATIENCE_US
    hunger.given(7, 5, NOW_US)
    assert hunger.due_us == NOW_US + STARVED_US
    pauses = []
    for _ in range(12):
        hunger.next(NOW_US)
        assert hunger.offered(7, NOW_US)
        hunger.given(7, 0, NOW_US)
        pauses.append(hunger.due_us - NOW_US)
    assert pauses[:3] == [FIRST_PAUSE_US, 2 * FIRST_PAUSE_US, 4 * FIRST_PAUSE_US]
    assert pauses[-1] == LONGEST_PAUSE_US
    hunger.next(NOW_US)
    assert hunger.offered(7, NOW_US)
    hunger.given(7, 1, NOW_US)
    assert hunger.due_us == NOW_US + STARVED_US


def test_an_answer_that_does_not_come_is_not_waited_for():
    hunger = Hunger(NOW_US)
    assert hunger.offered(7, NOW_US)
    hunger.next(NOW_US + PATIENCE_US)
    assert hunger.offered(8, NOW_US + PATIENCE_US)


def test_each_hungry_node_is_named_another_and_not_always_the_same():
    hungry = Hungry()
    for node in (1, 2, 3):
        hungry.add(node)
    assert list(hungry.match([1, 7, 8])) == [(1, 7), (2, 8)], "nobody takes from who starves"
    assert hungry
    assert list(hungry.match([7, 8])) == [(3, 8)]
    assert not hungry
    hungry.add(3)
    assert list(hungry.match([7, 8])) == [(3, 7)]
    hungry.add(4)
    hungry.keep([1, 2])
    assert list(hungry.match([7])) == []
