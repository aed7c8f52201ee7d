"""The stages of a task's way, and what travels for them."""

from __future__ import annotations

from penstock.tasks.envelope import (
    MAX_STAMPED_BYTES,
    Failure,
    Status,
    TaskCall,
    TaskOutcome,
    encode,
    read_outcome,
    settled_of,
    stamp_of,
    stamped,
)
from penstock.tasks.watching.facts import Facts, Sighting
from penstock.tasks.watching.reports import Begun, WorkerReport
from penstock.tasks.watching.status import failure_of, stages_of, status_of

TASK = b"t" * 16
T0 = 1_800_000_000_000_000


def outcome(ready_us: int = 0, settled_us: int = T0 + 100) -> TaskOutcome:
    return TaskOutcome(
        Status.DONE, b"\x07", 2, "host:1/2", T0 + 50, T0 + 60, T0 + 100, "m:f", [], T0, ready_us,
        [], settled_us,
    )  # fmt: skip


def test_an_outcome_tells_of_every_stage() -> None:
    stages = stages_of(outcome(ready_us=T0 + 30, settled_us=T0 + 101))
    assert [(stage.name, stage.at_us - T0, stage.after_us) for stage in stages] == [
        ("submitted", 0, 0),
        ("ready", 30, 30),
        ("leased", 50, 20),
        ("begun", 60, 10),
        ("ended", 100, 40),
        ("settled", 101, 1),
    ]


def test_what_could_be_leased_at_once_was_ready_when_it_was_submitted() -> None:
    assert [stage.at_us - T0 for stage in stages_of(outcome())][:2] == [0, 0]


def test_outcomes_of_older_releases_have_fewer_stages() -> None:
    old = TaskOutcome(Status.DONE, b"", 1, "w", T0, T0 + 5, T0 + 9)
    assert [stage.name for stage in stages_of(old)] == ["leased", "begun", "ended"]


def test_a_clock_that_is_behind_makes_no_negative_times() -> None:
    behind = outcome(ready_us=T0 + 55)
    assert all(stage.after_us >= 0 for stage in stages_of(behind))


def test_the_time_of_settling_is_written_into_the_packed_outcome() -> None:
    packed = encode(outcome())
    assert read_outcome(stamped(packed, stamp_of(T0 + 777))) == outcome(settled_us=T0 + 777)
    assert len(stamped(packed, stamp_of(T0 + 777))) == len(packed)
    assert settled_of(stamped(packed, stamp_of(T0 + 777))) == T0 + 777
    assert [settled_of(each) for each in (b"", b"\xc1", encode(TaskOutcome(0, b"")))] == [0, 0, 0]


def test_large_or_foreign_outcomes_are_left_as_they_are() -> None:
    large = outcome()
    large.result = b"x" * MAX_STAMPED_BYTES
    for packed in (encode(large), encode(TaskOutcome(0, b"")), b""):
        assert stamped(packed, stamp_of(T0)) is packed


def test_a_task_that_runs_has_the_stages_so_far() -> None:
    begun = Begun(TASK, "m:f", 3, 2, T0 + 40, T0 + 30)
    report = WorkerReport("host:1", "thread", 2, T0, T0 + 50, running=[begun])
    call = TaskCall("m:f", b"", TASK, submitted_us=T0, retries=4)
    facts = Facts(TASK, T0 + 60, seen=Sighting("leased", call, 3), workers=(report,))
    status = status_of(facts)
    assert (status.state, status.worker, status.attempt, status.retries) == (
        "running", "host:1/2", 3, 4,
    )  # fmt: skip
    assert [(stage.name, stage.at_us - T0) for stage in status.stages] == [
        ("submitted", 0), ("ready", 0), ("leased", 30), ("begun", 40),
    ]  # fmt: skip


def test_a_failure_is_told_and_a_dead_letter_too() -> None:
    failed = outcome()
    failed.status, failed.result = Status.FAILED, encode(Failure("E", "why", "trace"))
    call = TaskCall("m:f", b"", TASK, retries=1)
    status = status_of(Facts(TASK, T0, failed, Sighting("dead", call, 2)))
    assert (status.state, status.dead, status.attempt, status.retries) == ("failed", True, 2, 1)
    assert status.error == Failure("E", "why", "trace")
    assert failure_of(outcome()) is None
    assert failure_of(None) is None
