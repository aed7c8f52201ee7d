"""Failure detection: silence, suspicion, pauses of one's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import liveness
from penstock.cluster.liveness import Detector
from penstock.errors import InvalidError, LimitError

TIMEOUT = 1000


def run(detector: Detector, until_us: int, from_us: int = 0) -> list[tuple[int, int, str]]:
    """Ticks whenever it is due, from a time on; what it said, and when."""
    said: list[tuple[int, int, str]] = []
    while (due_us := detector.next_due()) is not None and due_us <= until_us:
        now_us = max(due_us, from_us)
        said += [(now_us, node, verdict) for node, verdict in detector.tick(now_us)]
    said += [(until_us, node, verdict) for node, verdict in detector.tick(until_us)]
    return said


def test_a_silent_node_is_down_after_the_time_out():
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 1, 0)
    detector.heard(2, 1, 0)
    assert run(detector, 600) == []
    detector.heard(2, 1, 600)
    assert run(detector, 1599) == [(1000, 1, "down")]
    assert run(detector, 5000) == [(1600, 2, "down")]
    assert detector.next_due() is None


def test_a_node_that_is_heard_again_is_up():
    detector = Detector(TIMEOUT, 0)
    detector.watch(1, 3, 0, down=True)
    assert detector.next_due() is None
    detector.heard(1, 2, 5000)
    assert detector.next_due() is None
    detector.heard(1, 3, 5000)
    assert detector.next_due() == 0
    assert detector.tick(5001) == [(1, "up")]
    assert run(detector, 7000) == [(6001, 1, "down")]  # nobody ticked for long: a pause


def test_an_older_incarnation_says_nothing():
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 5, 0)
    detector.heard(1, 4, 900)
    assert run(detector, 1000) == [(1000, 1, "down")]
    detector.heard(1, 6, 1100)
    assert detector.tick(1100) == [(1, "up")]
    assert detector.incarnation_of(1) == 6
    assert detector.incarnation_of(2) is None


@pytest.mark.parametrize(("reporters", "down_us"), [(0, 1000), (1, 750), (2, 500), (9, 400)])
def test_suspicion_shortens_the_time_out(reporters, down_us):
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 1, 0)
    assert run(detector, 400) == []
    for reporter in range(10, 10 + reporters):
        detector.suspect(1, reporter, 400)
        detector.suspect(1, reporter, 400)
    assert run(detector, 2000, from_us=400) == [(down_us, 1, "down")]


def test_a_heartbeat_clears_suspicion():
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 1, 0)
    for reporter in range(3):
        detector.suspect(1, 10 + reporter, 100)
    detector.heard(1, 1, 200)
    assert run(detector, 2000) == [(1200, 1, "down")]


def test_old_suspicion_counts_no_more_and_nobody_suspects_himself():
    detector = Detector(TIMEOUT, 0)
    detector.suspect(1, 2, 0)
    detector.heard(1, 1, 0)
    detector.suspect(1, 1, 0)
    assert run(detector, 999) == []


def test_after_a_pause_of_its_own_it_listens_for_a_full_time_out():
    detector = Detector(TIMEOUT, 0)
    for node in (1, 2):
        detector.heard(node, 1, 0)
        detector.suspect(node, 9, 0)
    assert detector.tick(60_000) == []
    detector.heard(2, 1, 60_500)
    assert run(detector, 60_999) == []
    assert run(detector, 61_400) == [(61_000, 1, "down")]


def test_a_late_tick_is_no_pause():
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 1, 0)
    now_us = 0
    for _ in range(10):
        due_us = detector.next_due()
        assert due_us is not None
        now_us = due_us + 300  # a busy loop
        if detector.tick(now_us):
            break
    assert now_us <= TIMEOUT + 600


def test_a_clock_that_stands_or_goes_back_harms_nothing():
    detector = Detector(TIMEOUT, 500)
    detector.heard(1, 1, 500)
    detector.heard(1, 1, 100)
    assert detector.tick(100) == []
    assert run(detector, 1600) == [(1500, 1, "down")]


def test_a_forgotten_node_is_not_spoken_of():
    detector = Detector(TIMEOUT, 0)
    detector.heard(1, 1, 0)
    detector.forget(1)
    detector.suspect(1, 2, 0)
    assert run(detector, 3000) == []


def test_the_number_of_nodes_and_of_entries_is_bounded(monkeypatch):
    monkeypatch.setattr(liveness, "MAX_NODES", 2)
    detector = Detector(TIMEOUT, 0)
    for now_us in range(100):
        detector.watch(1, 1, now_us)
        detector.watch(2, 1, now_us)
    assert len(detector._heap) <= 16
    with pytest.raises(LimitError):
        detector.heard(3, 1, 0)
    with pytest.raises(InvalidError):
        Detector(3, 0)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["heard", "suspect", "tick"]), st.integers(1, 3), st.integers(0, 700))
)


@given(EVENTS)
def test_nobody_is_down_sooner_or_much_later_than_promised(events):
    detector, now_us = Detector(TIMEOUT, 0), 0
    heard: dict[int, int] = {}
    down: set[int] = set()
    for what, node, span_us in events:
        said = run(detector, now_us + span_us, now_us)
        now_us += span_us
        for at_us, number, verdict in said:
            assert (verdict == "up") == (number in down)
            down ^= {number}
            assert verdict == "up" or at_us - heard[number] >= TIMEOUT - 3 * (TIMEOUT // 4)
        if what == "heard":
            detector.heard(node, 1, now_us)
            heard[node] = now_us
        elif what == "suspect":
            detector.suspect(node, 9, now_us)
        silent = {number for number, at_us in heard.items() if now_us - at_us > TIMEOUT}
        assert silent <= down
