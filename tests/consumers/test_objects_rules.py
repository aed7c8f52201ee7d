"""Completion, lateness, idle time, errors, limits: what is documented, as small scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.consumers.model import (
    BASE_US,
    SECOND_US,
    Part,
    Shows,
    assemble,
    fragments_of,
    is_end,
    shown,
)

from penstock.consumers.assembler import Assembler
from penstock.consumers.calls import ErrorPolicy, HandlerError
from penstock.consumers.fragments import Fragment, Fragments
from penstock.consumers.progress import Progress
from penstock.consumers.stateful import About, Completion, FunctionalStateful, Output
from penstock.consumers.steps import Limits, Step
from penstock.errors import ClosedError, InvalidError, LimitError
from penstock.wire.batch import Batch
from penstock.wire.encode import encode_batch


def values(steps: list[Step]) -> list[tuple[bytes, ...]]:
    return [each.values for each in shown(steps)]


# --- completion -------------------------------------------------------------------------------


def test_with_no_delay_an_end_counts_at_once():
    steps, _ = assemble(Completion(is_end), [Part(b"a", b"1", 0), Part(b"a", b"2*", 0)], [1])
    assert [len(step.results) for step in steps] == [0, 1]


def test_with_a_delay_an_end_waits_for_what_may_still_come():
    parts = [
        Part(b"a", b"9*", 9),
        Part(b"a", b"8", 8),
        Part(b"b", b"x", 18),
        Part(b"a", b"10", 10),  # after the end: of another object
        Part(b"b", b"y", 19),
    ]
    steps, assembler = assemble(Completion(is_end, delay=10), parts, [1])
    assert values(steps) == [(b"8", b"9*")]
    assert [bool(step.results) for step in steps] == [False, False, False, False, True]
    assert assembler.held_count == 3


def test_the_first_of_marker_timeout_and_count_decides():
    completion = Completion(is_end, timeout=10, count=3)
    parts = [
        *[Part(b"n", b"%d" % second, second) for second in range(4)],
        Part(b"m", b"5*", 5),
        Part(b"z", b"x", 30),
    ]
    steps, _ = assemble(completion, parts)
    assert [(each.key, each.reason) for each in shown(steps)] == [
        (b"n", "count"),
        (b"m", "end"),
        (b"n", "timeout"),
    ]


def test_equal_times_with_no_delay_are_taken_as_they_come():
    parts = [Part(b"a", b"1", 0), Part(b"a", b"2*", 0), Part(b"a", b"3", 0), Part(b"a", b"4*", 0)]
    steps, _ = assemble(Completion(is_end, timeout=5), parts)
    assert values(steps) == [(b"1", b"2*"), (b"3", b"4*")]


def test_the_timer_of_an_object_fires_between_the_fragments_where_it_belongs():
    parts = [Part(b"a", b"0", 0), Part(b"a", b"5", 5), Part(b"z", b"x", 60)]
    for delay in (0, 10):
        steps, _ = assemble(Completion(timeout=7, period=3.0, delay=delay), parts)
        assert values(steps) == [(b"0", b"tick", b"5", b"tick", b"tick")]


def test_by_arrival_nothing_is_late_even_if_the_clock_is_set_back():
    rows = [(b"a", b"1", 0), (b"a", b"2", 0), (b"b", b"3*", 0), (b"a", b"4*", 0)]
    arrived = [BASE_US + second * SECOND_US for second in (10, 4, 5, 6)]
    assembler = Assembler(Shows(Completion(is_end, timeout=60, time="arrival")))
    step = assembler.take(Fragments.of(rows, arrived_us=arrived), 0)
    assert [result.value for result in step.results] == [b"3*", b"1 2 4*"]
    assert step.late_count == 0


def test_by_arrival_the_clock_ends_objects_once_all_is_read():
    assembler = Assembler(Shows(Completion(timeout=60, time="arrival")))
    assembler.take(fragments_of([Part(b"a", b"1", 0)]), 0)
    later_us = BASE_US + 61 * SECOND_US
    assert assembler.tick(later_us, at_end=False).results == []
    assert [result.value for result in assembler.tick(later_us, at_end=True).results] == [b"1"]


# --- what is late -----------------------------------------------------------------------------

LATE = [Part(b"a", b"1", 0), Part(b"b", b"2", 30), Part(b"a", b"3", 1), Part(b"b", b"4", 29)]


def test_late_ones_are_ignored_and_counted():
    steps, _ = assemble(Completion(timeout=10), LATE)
    assert values(steps) == [(b"1",)]
    assert sum(step.late_count for step in steps) == 2
    assert not any(step.late for step in steps)


def test_late_ones_go_to_the_side_with_the_watermark():
    steps, _ = assemble(Completion(timeout=10, late="side"), LATE)
    late = [each for step in steps for each in step.late]
    assert [each.fragment.value for each in late] == [b"3", b"4"]
    assert {each.watermark_us for each in late} == {BASE_US + 30 * SECOND_US - 1}


def test_late_ones_open_an_object_again_or_reach_back():
    steps, assembler = assemble(Completion(timeout=10, late="reopen"), LATE)
    assert values(steps) == [(b"1",), (b"3",)]
    ((_, packed),) = assembler.snapshot(b"x").entries
    assert packed is not None
    assert b"4" in packed


def test_what_is_behind_the_watermark_is_not_late_while_its_object_is_open():
    parts = [Part(b"a", b"1", 0), Part(b"b", b"2", 8), Part(b"a", b"3*", 1)]
    steps, _ = assemble(Completion(is_end, timeout=10), parts)
    assert values(steps) == [(b"1", b"3*")]


def test_a_repeated_end_does_not_end_the_next_object():
    parts = [
        Part(b"a", b"1", 0),
        Part(b"a", b"2*", 2),
        Part(b"a", b"3", 5),
        Part(b"a", b"2*", 2),
        Part(b"a", b"4*", 6),
    ]
    steps, _ = assemble(Completion(is_end, timeout=100), parts)
    assert values(steps) == [(b"1", b"2*"), (b"3", b"4*")]


# --- silence ----------------------------------------------------------------------------------


def test_a_partition_without_traffic_goes_on_with_the_clock():
    assembler = Assembler(Shows(Completion(timeout=10, delay=5, idle_after=20)))
    assembler.take(fragments_of([Part(b"a", b"1", 0)]), now_us=7)
    assert assembler.tick(7 + 19 * SECOND_US, at_end=True).results == []
    assert assembler.tick(7 + 25 * SECOND_US, at_end=False).results == []
    assert len(assembler.tick(7 + 20 * SECOND_US, at_end=True).results) == 1
    assert assembler.watermark_us == BASE_US + 15 * SECOND_US


def test_without_the_setting_event_time_stands_still():
    assembler = Assembler(Shows(Completion(timeout=10)))
    assembler.take(fragments_of([Part(b"a", b"1", 0)]), now_us=0)
    assert assembler.tick(1 << 60, at_end=True).results == []


# --- errors -----------------------------------------------------------------------------------


class Fails(Shows):
    """Refuses the value `bad` so many times."""

    times = 1_000_000

    def on_message(self, state, fragment):
        if fragment.value == b"bad" and self.times:
            self.times -= 1
            raise ValueError("no")
        super().on_message(state, fragment)

    def finish(self, state, about):
        if b"worse" in state:
            raise KeyError("gone")
        return super().finish(state, about)


BAD = [Part(b"a", b"1", 0), Part(b"a", b"bad", 1), Part(b"a", b"3*", 2)]


def test_an_error_stops_by_default_and_names_the_fragment():
    assembler = Assembler(Fails(Completion(is_end)), partition=7)
    with pytest.raises(HandlerError, match=r"on_message.*b'a', partition 7, offset 1.*ValueError"):
        assembler.take(fragments_of(BAD), 0)
    with pytest.raises(ClosedError):
        assembler.take(fragments_of(BAD), 0)


def test_what_fails_can_be_skipped_to_the_dead_letters():
    assembler = Assembler(Fails(Completion(is_end)), on_error=ErrorPolicy("skip"))
    step = assembler.take(fragments_of(BAD), 0)
    assert [result.value for result in step.results] == [b"1 3*"]
    (letter,) = step.dead
    assert (letter.handler, letter.key, letter.offset) == ("on_message", b"a", 1)
    assert letter.fragment is not None
    assert letter.error == "ValueError: no"


def test_what_fails_can_be_tried_again():
    stateful = Fails(Completion(is_end))
    stateful.times = 3
    assembler = Assembler(stateful, on_error=ErrorPolicy(retries=3))
    step = assembler.take(fragments_of(BAD), 0)
    assert [result.value for result in step.results] == [b"1 bad 3*"]


def test_an_object_that_cannot_be_finished_goes_to_the_dead_letters():
    assembler = Assembler(Fails(Completion(is_end)), on_error=ErrorPolicy("skip"))
    parts = [Part(b"a", b"worse", 0), Part(b"a", b"2*", 1)]
    step = assembler.take(fragments_of(parts), 0)
    assert [(letter.handler, letter.offset) for letter in step.dead] == [("finish", 1)]
    assert assembler.progress().offset == 2


# --- bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "completion"),
    [
        (Limits(open_objects=2), Completion(is_end)),
        (Limits(held_fragments=2), Completion(is_end, delay=10)),
        (Limits(held_bytes=5), Completion(is_end, delay=10)),
        (Limits(state_bytes=10), Completion(is_end)),
    ],
)
def test_bounds_are_errors(limits, completion):
    parts = [Part(b"k%d" % n, b"xx", n) for n in range(3)]
    assembler = Assembler(Shows(completion), limits=limits)
    assembler.take(fragments_of(parts[:2]), 0)
    with pytest.raises(LimitError):
        assembler.take(fragments_of(parts[2:], 2), 0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"timeout": 0.0},
        {"timeout": 1.0, "delay": -1.0},
        {"count": 0},
        {"timeout": 5.0, "time": "arrival", "delay": 1.0},
        {"count": 3, "period": 1.0},
        {"timeout": 100.0, "period": 0.001},
    ],
)
def test_completions_that_make_no_sense_are_refused(settings):
    with pytest.raises(InvalidError):
        Completion(**settings)


def test_fragments_must_ascend():
    good = fragments_of([Part(b"a", b"1", 0), Part(b"a", b"2", 1)])
    for bad in (replace(good, offsets=good.offsets[::-1]), replace(good, keys=[b"a"])):
        with pytest.raises(InvalidError):
            Assembler(Shows(Completion(is_end))).take(bad, 0)


def test_what_was_taken_already_is_passed_over():
    parts = [Part(b"a", b"1", 0), Part(b"a", b"2", 1), Part(b"a", b"3*", 2)]
    assembler = Assembler(Shows(Completion(is_end)))
    assembler.take(fragments_of(parts[:2]), 0)
    assert [r.value for r in assembler.take(fragments_of(parts), 0).results] == [b"1 2 3*"]


# --- other forms ------------------------------------------------------------------------------


def test_functions_instead_of_a_class():
    def add(state: int, fragment: Fragment) -> int:
        return state + int(fragment.value)

    def told(state: int, about: About) -> list[Output | bytes]:
        return [b"%d" % state, Output(b"%d" % about.count, key=b"counts")]

    sums = FunctionalStateful(Completion(count=3), lambda key: 0, add, told)
    parts = [Part(b"a", b"%d" % n, n) for n in (1, 2, 3)]
    step = Assembler(sums).take(fragments_of(parts), 0)
    assert [(result.key, result.value) for result in step.results] == [
        (b"a", b"6"),
        (b"counts", b"3"),
    ]
    assert [result.id for result in step.results] == ["0-0-0", "0-0-1"]


def test_a_batch_from_the_wire_is_taken_as_it_is():
    raw = encode_batch([b"1", b"2*", b"3*"], keys=[b"a", b"a", None], timestamp_us=BASE_US)
    batch = Batch.parse(raw)
    batch.stamp(base=40, epoch=1, arrived_us=BASE_US + 5)
    fragments = Fragments.of_batch(batch)
    assert fragments.arrived_us.tolist() == [BASE_US + 5] * 3
    step = Assembler(Shows(Completion(is_end)), Progress.start(40)).take(fragments, 0)
    assert [(result.key, result.value) for result in step.results] == [
        (b"a", b"1 2*"),
        (b"", b"3*"),
    ]
    assert step.results[0].about.first_offset == 40
