"""Cron expressions against a walk through all minutes, and what clocks do in spring and autumn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError
from penstock.tasks.schedules.cron import Cron

MINUTE = timedelta(minutes=1)
VIENNA = ZoneInfo("Europe/Vienna")


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    span = st.tuples(number, number).map(sorted).map(lambda each: f"{each[0]}-{each[1]}")
    steps = st.tuples(st.just("*") | span, st.integers(1, 9))
    step = steps.map(lambda each: f"{each[0]}/{each[1]}")
    part = number.map(str) | span | step
    return st.just("*") | st.lists(part, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6))


def allowed(text: str, least: int, most: int) -> set[int]:
    """What a field means, said plainly."""
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = ("*" if span == "*" else span).partition("-")
        begin = least if low == "*" else int(low)
        end = most if low == "*" or (step and not high) else int(high or low)
        found |= {each for each in range(begin, end + 1) if not (each - begin) % int(step or 1)}
    return found


@settings(deadline=None)
@given(EXPRESSIONS, st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_it_is_every_minute_that_fits(fields: tuple[str, ...], begin: datetime):
    begin = begin.replace(second=0, microsecond=0, tzinfo=UTC)
    minutes, hours, days, months = (
        allowed(text, *bounds)
        for text, bounds in zip(fields, ((0, 59), (0, 23), (1, 31), (1, 12)), strict=False)
    )
    weekdays = allowed(fields[4], 0, 6)
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    end = begin + timedelta(days=2)
    wanted: list[datetime] = []
    moment = begin + MINUTE
    while moment <= end:
        of_month, of_week = moment.day in days, moment.isoweekday() % 7 in weekdays
        day = (of_month or of_week) if either else (of_month and of_week)
        if day and moment.minute in minutes and moment.hour in hours and moment.month in months:
            wanted.append(moment)
        moment += MINUTE
    found = Cron.parse(" ".join(fields)).moments(begin)
    assert list(islice(found, len(wanted))) == wanted
    assert next(found) > end


def texts(cron: str, after: datetime, count: int, zone: ZoneInfo = VIENNA) -> list[str]:
    found = islice(Cron.parse(cron).moments(after, zone), count)
    return [f"{each.astimezone(zone):%d %H:%M%z}" for each in found]


def test_a_moment_that_the_clock_skips_does_not_come():
    spring = datetime(2025, 3, 29, 0, 0, tzinfo=UTC)
    assert texts("30 2 * * *", spring, 3) == ["29 02:30+0100", "31 02:30+0200", "01 02:30+0200"]


def test_a_moment_that_it_shows_twice_comes_once():
    autumn = datetime(2025, 10, 25, 22, 0, tzinfo=UTC)
    assert texts("30 2 * * *", autumn, 2) == ["26 02:30+0200", "27 02:30+0100"]


def test_names_and_nicknames():
    after = datetime(2025, 1, 1, tzinfo=UTC)
    assert Cron.parse("0 9 * jan-mar mon-fri") == Cron.parse("0 9 * 1-3 1-5")
    assert Cron.parse("0 0 * * 7") == Cron.parse("@weekly")
    assert texts("@monthly", after, 2, ZoneInfo("UTC")) == ["01 00:00+0000", "01 00:00+0000"]


def test_the_leap_day_is_found():
    (found,) = islice(Cron.parse("0 0 29 2 *").moments(datetime(2096, 3, 1, tzinfo=UTC)), 1)
    assert found == datetime(2104, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "5-1 * * * *",
     "*/0 * * * *", "x * * * *", "* * * * funday", "0 0 31 2 *", "1,,2 * * * *"],
)  # fmt: skip
def test_what_is_none_is_refused(wrong: str):
    with pytest.raises(InvalidError):
        Cron.parse(wrong)
