"""What users pass: converted, or refused with a text that helps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import inputs
from penstock.errors import ExistsError, InvalidError, TooLargeError
from penstock.testing import memory_fabric


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("penstock://10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("node.example", ("node.example", inputs.DEFAULT_PORT)),
        ("penstock://[::1]:80/", ("::1", 80)),
    ],
)
def test_addresses(url, address):
    assert inputs.address_of(url) == address


@pytest.mark.parametrize("url", ["", "http://host", "host:port", "penstock://", "host:1/path"])
def test_addresses_that_are_none(url):
    with pytest.raises(InvalidError, match="address"):
        inputs.address_of(url)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_survive_the_wire(moment):
    assert inputs.moment_of(inputs.moment_us(moment)) == moment


def test_times_may_be_seconds():
    assert inputs.moment_us(1.5) == 1_500_000


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "now", None, True])
def test_times_that_are_none(moment):
    with pytest.raises(InvalidError):
        inputs.moment_us(moment)


@given(st.floats(0, 1000))
def test_durations_are_rounded_up(seconds):
    value = inputs.milliseconds("delay", seconds)
    assert value >= seconds * 1000 > value - 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), "1", True, None, 1e12])
def test_durations_that_are_none(seconds):
    with pytest.raises(InvalidError, match="delay"):
        inputs.milliseconds("delay", seconds)


def test_when_a_message_is_due():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert inputs.due_us(0, None) == 0
    assert inputs.due_us(1.5, None) == -1_500_000
    assert inputs.due_us(0, moment + timedelta(microseconds=1)) == inputs.moment_us(moment) + 1
    with pytest.raises(InvalidError, match="exclude"):
        inputs.due_us(1, moment)


def test_keys_may_be_text():
    assert inputs.key_bytes("ä") == "ä".encode()
    assert inputs.key_column(["a", b"b", None]) == [b"a", b"b", None]
    plain = [b"a", b"b"]
    assert inputs.key_column(plain) is plain


def test_keys_and_ids_have_limits():
    with pytest.raises(TooLargeError):
        inputs.key_bytes(bytes(70_000))
    with pytest.raises(TooLargeError):
        inputs.key_column([bytes(70_000)])
    with pytest.raises(TooLargeError):
        inputs.id_bytes(bytes(300))
    with pytest.raises(InvalidError, match="empty"):
        inputs.id_bytes("")
    with pytest.raises(InvalidError, match="bytes or str"):
        inputs.key_bytes(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [{"a": "text"}, {1: b"x"}, [("a", b"b")]])
def test_headers_that_are_none(headers):
    with pytest.raises(InvalidError, match="header"):
        inputs.check_headers(headers)


@pytest.mark.parametrize("name", ["", 5, None, "x" * 201])
def test_names_that_are_none(name):
    with pytest.raises(InvalidError, match="name"):
        inputs.check_name(name)


def test_settings_in_seconds_become_milliseconds():
    given = {"lease": 1.5, "ordered": True, "max_messages": 7}
    assert inputs.stream_options("queue", given) == {
        "lease_ms": 1500,
        "ordered": "queue",
        "max_messages": 7,
    }
    assert inputs.stream_options("queue", {"ordered": "key"}) == {"ordered": "key"}
    assert inputs.stream_options("topic", {"retention": 60}) == {"retention_ms": 60_000}
    assert inputs.stream_options("table", {}) is None


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("queue", {"leese": 1}),
        ("queue", {"max_messages": "many"}),
        ("queue", {"lease": "long"}),
        ("queue", {"durability": "paper"}),
        ("table", {"partitions": 3}),
    ],
)
def test_settings_that_are_none(kind, given):
    with pytest.raises(InvalidError):
        inputs.stream_options(kind, given)
    with pytest.raises(InvalidError, match="there are durability, lease"):
        inputs.stream_options("queue", {"leese": 1})


def test_a_password_is_refused_and_not_shown():
    with pytest.raises(InvalidError, match="no users and passwords") as caught:
        inputs.address_of("penstock://me:secret@host:7411")
    assert "secret" not in str(caught.value)


def test_an_id_is_called_an_id():
    number: Any = 5
    with pytest.raises(InvalidError, match="an id must be bytes or str, not int"):
        inputs.id_bytes(number)
    with pytest.raises(TooLargeError, match=r"an id of 9"):
        inputs.id_bytes(b"x" * 999)


@pytest.mark.parametrize("version", ["x", -1, True, 1.0])
def test_versions_that_are_none(version):
    with pytest.raises(InvalidError, match="if_version"):
        inputs.check_version(version)


def test_what_is_wrong_is_told_before_anything_is_sent():
    with memory_fabric() as fabric:
        queue: Any = fabric.queue("q")
        table: Any = fabric.table("kv")
        for timeout in ("1", -1, float("nan")):
            with pytest.raises(InvalidError, match="timeout must be"):
                queue.pop(timeout=timeout)
        with pytest.raises(InvalidError, match="if_version"):
            table.put("a", b"1", if_version="x")
        transaction: Any
        with fabric.transaction() as transaction:
            with pytest.raises(InvalidError, match=r"fabric.queue\(...\).* not the name 'q'"):
                transaction.push("q", b"1")
            with pytest.raises(InvalidError, match="takes a topic"):
                transaction.publish(queue, b"1")
            with pytest.raises(InvalidError, match="takes a table"):
                transaction.put(None, "a", b"1")
        fabric.topic("t", partitions=2)
        with pytest.raises(ExistsError, match="partitions=2") as caught:
            fabric.topic("t", partitions=3)
        assert "grow()" in str(caught.value)
