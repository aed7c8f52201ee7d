"""What travels, and how tasks and streams are named: stored bytes, so they must not change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidError, ProtocolError, TooLargeError
from penstock.tasks import names
from penstock.tasks.envelope import (
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    read_call,
    read_failure,
    read_outcome,
)

CALL = TaskCall(
    "m:f", b"\x92\x91\x07\x80", b"i" * 16, 3, 1_000_000, 2, 500, 100, 60_000, [b"p"], "b"
)


def test_calls_and_outcomes_come_back_the_same() -> None:
    outcome = TaskOutcome(Status.FAILED, b"x", 2, "worker", 1, 2, 3, "m:f")
    assert read_call(encode(CALL)) == CALL
    assert read_outcome(encode(outcome)) == outcome


def test_fields_that_an_older_release_did_not_send_get_their_defaults() -> None:
    assert read_call(b"\x93\xa3m:f\xc4\x00\xc4\x01i") == TaskCall("m:f", b"", b"i")
    assert read_outcome(b"\x92\x00\xc4\x00") == TaskOutcome(0, b"")


def test_known_calls_keep_their_bytes() -> None:
    fields = "a36d3a66c40492910780c410" + "69" * 16 + "03ce000f424002cd01f464cdea6091c40170a162"
    assert encode(CALL).hex() == f"9d{fields}c000"
    assert read_call(bytes.fromhex(f"9b{fields}")) == CALL  # before calls told of large arguments
    assert read_call(bytes.fromhex(f"9c{fields}c0")) == CALL  # and of their delay


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_hostile_bytes_raise_only_errors_of_the_protocol(data: bytes) -> None:
    for read in (read_call, read_outcome, read_failure):
        try:
            read(data)
        except ProtocolError:
            continue


def test_a_failure_tells_of_an_exception_without_being_one() -> None:
    failure = Failure.of(KeyError("x"), "trace")
    assert (failure.kind, failure.text, failure.traceback) == ("KeyError", "'x'", "trace")
    assert Failure.of(ProtocolError("y")).kind == "penstock.errors.ProtocolError"
    assert read_failure(encode(failure)) == failure


def test_streams_of_a_task_set() -> None:
    assert names.streams_of("nightly") == (
        "tasks.nightly",
        "tasks.nightly.replies",
        "tasks.nightly.results",
        "tasks.nightly.gangs",
        "tasks.nightly.control",
        "tasks.nightly.blobs",
    )
    with pytest.raises(TooLargeError):
        names.streams_of("x" * 190)
    with pytest.raises(InvalidError):
        names.streams_of("")


def test_ids_name_client_and_number() -> None:
    client = bytes(range(8))
    task = names.task_id_of(client, 258)
    assert task == client + b"\0\0\0\0\0\0\1\2"
    assert names.client_of(task) == client
    assert names.reply_partition(client) == 7
    with pytest.raises(InvalidError):
        names.reply_partition(b"short")


def test_a_name_is_always_the_same_task() -> None:
    assert names.named_task_id("nightly").hex() == "0830536a94dbc1a934dfe52c989fc222"
    assert names.named_task_id("nightly") != names.named_task_id("daily")
    assert len(names.named_task_id("nightly")) == names.TASK_BYTES
    with pytest.raises(InvalidError):
        names.named_task_id("")
