from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.output import json_field, readable
from penstock.cli.units import due, duration, duration_text, moment, size, size_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("7d", 604_800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("250ms", 0.25),
        ("1.5", 1.5),
        ("2w", 1_209_600),
        ("0", 0),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-5s", "5mm", "s"])
def test_what_is_no_duration(text):
    with pytest.raises(typer.BadParameter, match="no duration"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512", 512),
        ("64MiB", 64 << 20),
        ("64m", 64 << 20),
        ("10MB", 10_000_000),
        ("1.5 GiB", 3 << 29),
        ("2kb", 2000),
        ("7B", 7),
    ],
)
def test_sizes(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "big", "5 MiBs", "-1"])
def test_what_is_no_size(text):
    with pytest.raises(typer.BadParameter, match="no size"):
        size(text)


def test_times():
    assert moment("2026-01-31T12:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment("2026-01-31T12:00").tzinfo is not None
    assert abs(moment("5m") - (datetime.now(UTC) - timedelta(minutes=5))) < timedelta(minutes=1)
    with pytest.raises(typer.BadParameter, match="no time"):
        moment("yesterday")
    with pytest.raises(typer.BadParameter, match="--delay 5m"):
        due("5m")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB")]
)
def test_sizes_for_people(count, text):
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (1.5, "1.5 s"), (30, "30 s"), (5400, "1 h 30 m"), (604_800, "7 d")],
)
def test_durations_for_people(seconds, text):
    assert duration_text(seconds) == text


@given(st.integers(0, 10**9))
def test_a_shown_duration_can_be_given_again(seconds):
    shown = duration(duration_text(seconds).replace(" ", "")) if seconds else 0
    assert shown <= seconds + 0.5
    assert shown >= seconds * 0.95 - 1


@given(st.binary(max_size=50))
def test_bytes_are_shown_on_one_line(data):
    text = readable(data)
    assert text.isprintable()


@given(st.text(max_size=50).filter(lambda text: text.isprintable()))
def test_text_is_shown_as_it_is(text):
    assert readable(text.encode()) == text


def test_bytes_in_json():
    assert json_field("value", "grün".encode()) == {"value": "grün"}
    assert json_field("value", b"\xff") == {"value_base64": "/w=="}
    assert json_field("key", None) == {"key": None}
