"""A run as lanes over time, and as a picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tasks.envelope import Status, TaskOutcome
from penstock.tasks.watching.svg import LEFT, MAX_NAMED, WIDTH, drawn
from penstock.tasks.watching.timeline import MAX_LANES, OTHERS, Timeline, laid_out

T0 = 1_800_000_000_000_000


def ran(worker: str, begin: int, end: int, status: Status = Status.DONE) -> TaskOutcome:
    return TaskOutcome(status, b"", 1, worker, T0, T0 + begin, T0 + end, "m:f")


def test_lanes_are_executors_in_the_order_of_their_numbers() -> None:
    found = laid_out([ran("w:1/10", 0, 10), ran("w:1/2", 0, 10), ran("v:1/3", 5, 10)])
    assert [lane.worker for lane in found.lanes] == ["v:1/3", "w:1/2", "w:1/10"]


def test_how_busy_executors_were() -> None:
    found = laid_out(
        [ran("w/1", 0, 40), ran("w/1", 40, 100), ran("w/2", 25, 75, Status.FAILED)]
    )
    assert [lane.busy for lane in found.lanes] == [pytest.approx(1.0), pytest.approx(0.5)]
    assert found.utilisation == pytest.approx(0.75)
    assert found.lanes[1].columns(4).tolist() == pytest.approx([0, 1, 1, 0])
    assert found.lanes[1].columns(2).tolist() == pytest.approx([0.5, 0.5])
    assert (found.tasks, found.failed, found.longest_us) == (3, 1, 60)
    assert found.seconds == pytest.approx(100e-6)


def test_what_never_ran_or_is_too_old_is_left_out() -> None:
    never = TaskOutcome(Status.SKIPPED, b"", 0)
    assert laid_out([never]) == Timeline()
    late = laid_out([never, ran("w/1", 0, 10), ran("w/1", 20, 30)], since_us=T0 + 15)
    assert (late.tasks, late.begin_us) == (1, T0 + 20)


def test_lanes_are_bounded() -> None:
    found = laid_out([ran(f"w/{number}", 0, 5) for number in range(MAX_LANES + 50)])
    assert len(found.lanes) == MAX_LANES + 1
    assert found.lanes[-1].worker == OTHERS
    assert len(found.lanes[-1].bars) == 50


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(1, 30))
def test_columns_hold_the_time_that_the_bars_take(lengths: list[int], count: int) -> None:
    """Tasks one after the other, with a pause as long as each of them."""
    begins = [2 * sum(lengths[:number]) for number in range(len(lengths))]
    outcomes = [ran("w/1", at, at + took) for at, took in zip(begins, lengths, strict=True)]
    (lane,) = laid_out(outcomes).lanes
    whole = begins[-1] + lengths[-1]
    assert lane.columns(count).mean() == pytest.approx(sum(lengths) / whole)
    for column, share in enumerate(lane.columns(count)):
        low, high = whole * column / count, whole * (column + 1) / count
        inside = [
            max(min(high, at + took) - max(low, at), 0)
            for at, took in zip(begins, lengths, strict=True)
        ]
        assert share == pytest.approx(sum(inside) * count / whole, abs=1e-9)


def test_a_picture_has_a_bar_for_each_task_that_can_be_seen() -> None:
    outcomes = [ran("w/1", 0, 400), ran("w/1", 400, 1000, Status.FAILED), ran("<&>/2", 0, 1000)]
    picture = ElementTree.fromstring(drawn(laid_out(outcomes), 'tasks of "<x>"'))
    titles = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(map(str, titles)) == ["m:f 1.0 ms", "m:f 400 µs", "m:f 600 µs"]
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert 'tasks of "<x>"' in texts
    assert {"w/1", "<&>/2", "100.0%"} <= set(texts)


def test_a_picture_says_what_its_colours_mean() -> None:
    functions = [f"m:f{number:02}" for number in range(MAX_NAMED + 3)]
    outcomes = [
        TaskOutcome(Status.DONE, b"", 1, "w/1", T0, T0 + at, T0 + at + 1, name)
        for at, name in enumerate(functions)
    ]
    picture = ElementTree.fromstring(drawn(laid_out(outcomes), "named"))
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    legend = texts[2 : 2 + MAX_NAMED + 3]
    assert legend == [
        *functions[:MAX_NAMED], "failed", "many short tasks", "and 3 more functions"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.000_3, ["0", "50 µs", "100 µs", "150 µs", "200 µs", "250 µs", "300 µs"]),
        (0.35, ["0", "50 ms", "100 ms", "150 ms", "200 ms", "250 ms", "300 ms", "350 ms"]),
        (38, ["0", "5 s", "10 s", "15 s", "20 s", "25 s", "30 s", "35 s"]),
        (500, ["0", "1 m", "2 m", "3 m", "4 m", "5 m", "6 m", "7 m", "8 m"]),
        (3600, ["0", "10 m", "20 m", "30 m", "40 m", "50 m", "1 h"]),
        (86400 * 40, None),
    ],
)
def test_times_stand_at_round_moments(seconds: float, ticks: list[str] | None) -> None:
    picture = ElementTree.fromstring(drawn(laid_out([ran("w/1", 0, round(seconds * 1e6))]), "t"))
    shown = [
        each.text
        for each in picture.iter("{http://www.w3.org/2000/svg}text")
        if each.get("text-anchor") == "middle"
    ]
    if ticks is None:
        assert len(shown) < 50
    else:
        assert shown == ticks


def test_short_tasks_that_failed_are_seen() -> None:
    outcomes = [ran("w/1", at, at + 1, Status.FAILED if at == 500 else Status.DONE)
                for at in range(1_000)]
    picture = ElementTree.fromstring(drawn(laid_out(outcomes), "short"))
    marks = [
        float(each.get("x", "0"))
        for each in picture.iter("{http://www.w3.org/2000/svg}rect")
        if each.get("fill") == "#e45756" and each.get("width") == "1.5"
    ]
    assert marks == [pytest.approx(LEFT + WIDTH / 2, abs=2)]


def test_tasks_that_are_too_short_to_be_seen_are_shown_as_how_busy_it_was() -> None:
    many = [ran("w/1", number * 10, number * 10 + 5) for number in range(50_000)]
    text = drawn(laid_out(many), "many")
    picture = ElementTree.fromstring(text)
    columns = [
        each
        for each in picture.iter("{http://www.w3.org/2000/svg}rect")
        if each.get("fill-opacity") == "0.5"
    ]
    assert sum(int(each.get("width", "0")) for each in columns) >= WIDTH * 0.9
    assert len(text) < 20_000
