"""Which runs are due: against a plain list of all moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidError, ProtocolError
from penstock.tasks.schedules import schedule as module
from penstock.tasks.schedules.schedule import (
    Missed,
    Schedule,
    due,
    new_schedule,
    pack_schedule,
    read_schedule,
    run_id,
    upcoming,
)

S = 1_000_000
LATE_US = 60 * S


@given(
    every_s=st.integers(1, 500),
    begins_s=st.integers(0, 1_000),
    last_s=st.integers(0, 20_000),
    now_s=st.integers(0, 20_000),
    ends_s=st.none() | st.integers(1, 20_000),
    missed=st.sampled_from(Missed),
)
def test_runs_that_are_due(
    every_s: int, begins_s: int, last_s: int, now_s: int, ends_s: int | None, missed: Missed
):
    schedule = Schedule(b"", "", every_s * 1000, "", missed, begins_s * S, (ends_s or 0) * S)
    last_us, now_us = last_s * S, now_s * S
    all_runs = [
        each * S
        for each in range(begins_s, 25_000, every_s)
        if each * S > last_us and (ends_s is None or each <= ends_s)
    ]
    on_time = [each for each in all_runs if now_us - LATE_US < each <= now_us]
    late = [each for each in all_runs if each <= now_us - LATE_US]
    if missed is Missed.SKIP:
        late = []
    elif missed is Missed.ONCE:
        late = late[-1:] if not on_time else []
    else:
        late = late[-module.MAX_MISSED :]
    found = due(schedule, last_us, now_us, LATE_US)
    assert found.runs_us == [*late, *on_time]
    assert found.next_us == next((each for each in all_runs if each > now_us), None)


def test_years_of_missed_minutes_are_not_counted():
    schedule = new_schedule(b"", 0, cron="* * * * *", missed="all")
    now_us = 5 * 365 * 86_400 * S
    found = due(schedule, 0, now_us, LATE_US)
    assert len(found.runs_us) == module.MAX_MISSED + 1
    assert found.runs_us[-1] == now_us
    assert upcoming(schedule, now_us, 2) == [now_us + 60 * S, now_us + 120 * S]


def test_a_run_has_one_id_whoever_submits_it():
    assert run_id("nightly", 5 * S) == run_id("nightly", 5 * S)
    assert len({run_id("a", 0), run_id("b", 0), run_id("a", S)}) == 3


def test_it_travels():
    schedule = new_schedule(b"call", 7, cron="@daily", zone="Europe/Vienna", missed="skip")
    assert read_schedule(pack_schedule(schedule)) == schedule
    with pytest.raises(ProtocolError):
        read_schedule(b"\xc1")


@pytest.mark.parametrize(
    "wrong",
    [{}, {"cron": "@daily", "every": 1}, {"every": 0.01}, {"every": -1}, {"cron": "nonsense"},
     {"every": 1, "missed": "maybe"}, {"cron": "@daily", "zone": "Middle/Earth"}],
)  # fmt: skip
def test_what_is_wrong_is_said(wrong: dict[str, object]):
    with pytest.raises(InvalidError):
        new_schedule(b"", 0, **wrong)  # type: ignore[arg-type]
