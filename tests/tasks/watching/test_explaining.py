"""Why a task is where it is: facts in, reasons out, as a person would read them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.tasks.envelope import Failure, Status, TaskCall, TaskOutcome, encode
from penstock.tasks.names import shown
from penstock.tasks.watching.explaining import explain
from penstock.tasks.watching.facts import Facts, Sighting
from penstock.tasks.watching.reports import MAX_NAMES_TOLD, Begun, WorkerReport

TASK, PARENT, OTHER = b"t" * 16, b"p" * 16, b"o" * 16
SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND


def call(**terms: Any) -> TaskCall:
    return TaskCall("shop:price", b"", TASK, submitted_us=NOW - 30 * SECOND, **terms)


def worker(**says: Any) -> WorkerReport:
    terms: dict[str, Any] = {"told_us": NOW - SECOND, "functions": ["shop:price"], "executors": 2}
    return WorkerReport("host:1", "process", 2, NOW - 100 * SECOND, **{**terms, **says})


def facts(**found: Any) -> Facts:
    return Facts(TASK, NOW, **found)


def seen(state: str, until_s: float = 0.0, deliveries: int = 0, **more: Any) -> Sighting:
    terms = more.pop("terms", {})
    until_us = int(NOW + until_s * SECOND)
    return Sighting(state, call(**terms), deliveries, until_us, **more)


BEGUN = Begun(TASK, "shop:price", 1, 2, NOW - 21 * SECOND)
BUSY = Begun(OTHER, "shop:price", 1, 1, NOW - SECOND)
FAILED = encode(Failure("ValueError", "no price", "Traceback"))
RATES = {"shop:price": (2.0, 1.0)}

CASES: list[tuple[str, Facts, str, str]] = [
    (
        "held by a parent that runs",
        facts(
            seen=seen("held"), waits_for=(PARENT,), waits=1, parents={PARENT: "running"}
        ),
        "it waits for the outcome of 1 task",
        f"Ask about those: {shown(PARENT)} is running.",
    ),
    (
        "held by a parent that nobody knows",
        facts(seen=seen("held"), waits_for=(PARENT,), waits=3, parents={PARENT: "unknown"}),
        f"it waits for the outcome of 3 tasks / nobody knows of {shown(PARENT)}",
        "submit it again under the same name",
    ),
    (
        "held by hand",
        facts(seen=seen("held")),
        "it is held until somebody releases it by hand",
        "",
    ),
    (
        "submitted with a delay",
        facts(seen=seen("delayed", 60, terms={"delay_ms": 90_000})),
        "it was submitted with a delay of 1 m 30 s; it comes back in 1 m",
        "",
    ),
    (
        "between two attempts",
        facts(seen=seen("delayed", 5, deliveries=2, terms={"retries": 3})),
        "2 attempts of 4 did not succeed; it comes back in 5 s",
        "stands in the log of its worker",
    ),
    (
        "given back because of its rate",
        facts(seen=seen("delayed", 5), workers=(worker(rates=RATES),), free_us=NOW + 4 * SECOND),
        "the rate of shop:price is used up; starts are free in 4 s; it comes back in 5 s",
        "Declare a higher rate",
    ),
    (
        "ready, but there is no worker",
        facts(seen=seen("ready", ahead=9)),
        "no worker is there",
        "penstock worker MODULE",
    ),
    (
        "ready, but all workers are silent",
        facts(seen=seen("ready"), workers=(worker(told_us=NOW - 20 * SECOND),)),
        "no worker is there",
        "penstock worker MODULE",
    ),
    (
        "ready, but nobody declares the function",
        facts(seen=seen("ready"), workers=(worker(functions=["shop:other"]),)),
        "none of 1 worker declares shop:price; the first to get it will fail it",
        "Start a worker with the module shop.",
    ),
    (
        "ready, but all workers are about to end",
        facts(seen=seen("ready"), workers=(worker(draining=True),)),
        "all workers are about to end",
        "Start another one.",
    ),
    (
        "ready, behind others",
        facts(
            seen=seen("ready", ahead=500),
            workers=(worker(running=[BUSY, BUSY], figures={"done": 990}),),
        ),
        "at least 500 tasks are before it, about 50 s of work at 10 tasks/s; "
        "2 of 2 executors are at work",
        "Start more workers, or submit it with a higher priority.",
    ),
    (
        "ready, and its rate is used up",
        facts(seen=seen("ready"), workers=(worker(rates=RATES),)),
        "the rate of shop:price is used up",
        "Declare a higher rate",
    ),
    (
        "ready, and next",
        facts(seen=seen("ready"), workers=(worker(),)),
        "nothing is before it: a worker should take it at any moment",
        "",
    ),
    (
        "a gang without enough places",
        facts(seen=seen("ready", gang=4), counts={"parked": 3}),
        "it is a gang of 4, and 3 workers wait for a gang",
        "penstock worker --gangs",
    ),
    (
        "leased by one that waits for an executor",
        facts(seen=seen("leased", 25), workers=(worker(waiting=[TASK]),)),
        "host:1 has leased it, and begins it as soon as an executor is free",
        "",
    ),
    (
        "leased by one that waits for its rate",
        facts(seen=seen("leased", 25), workers=(worker(waiting=[TASK], rates=RATES),)),
        "host:1 waits for a start: the rate of shop:price is used up",
        "Declare a higher rate",
    ),
    (
        "leased by nobody who says so",
        facts(seen=seen("leased", 25), workers=(worker(),)),
        "somebody has leased it who says nothing of it; "
        "the lease ends in 25 s unless it is extended",
        "others get the task when the lease is over",
    ),
    (
        "running",
        facts(seen=seen("leased", 25), workers=(worker(running=[BEGUN]),)),
        "host:1/2 has been running it for 21 s",
        "It has no time limit.",
    ),
    (
        "running, with a limit",
        facts(
            seen=seen("leased", 25, terms={"timeout_ms": 60_000}),
            workers=(worker(running=[BEGUN]),),
        ),
        "host:1/2 has been running it for 21 s; it is ended after 1 m",
        "",
    ),
    (
        "running on a worker that is silent",
        facts(
            seen=seen("leased", 4),
            workers=(worker(running=[BEGUN], told_us=NOW - 12 * SECOND),),
        ),
        "host:1 has it, and has said nothing for 12 s; "
        "the lease ends in 4 s unless it is extended",
        "another worker gets the task then",
    ),
    (
        "done",
        facts(outcome=TaskOutcome(Status.DONE, b"", ended_us=NOW - 3 * SECOND)),
        "done 3 s ago",
        "",
    ),
    (
        "failed, and dead",
        facts(
            outcome=TaskOutcome(Status.FAILED, FAILED, 2, "host:1/2", ended_us=NOW - 3 * SECOND),
            seen=seen("dead"),
        ),
        "failed 3 s ago in attempt 2 on host:1/2: ValueError: no price",
        "penstock queue redrive",
    ),
    (
        "failed upstream",
        facts(
            outcome=TaskOutcome(Status.FAILED, FAILED, 0, after=[PARENT]),
            parents={PARENT: "failed", OTHER: "done"},
        ),
        "failed: it never ran, as a task that it depends on did not succeed",
        f"Look at {shown(PARENT)}:",
    ),
    (
        "only the dead letter is left",
        facts(seen=seen("dead")),
        "it has failed, and only its dead letter is left",
        "penstock queue redrive",
    ),
    (
        "unknown",
        facts(),
        "no queue, worker or outcome knows of it",
        "of another task set",
    ),
    (
        "not seen in a long queue",
        facts(whole=False, counts={"messages": 1_000_000}),
        "it was not seen: the queue has 1,000,000 tasks, of which only the oldest are looked at",
        "Ask again later",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("found", "why", "advice"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_the_reasons_that_a_person_is_told(found: Facts, why: str, advice: str) -> None:
    reasons = explain(found).reasons
    assert " / ".join(reason.why for reason in reasons) == why
    assert advice in reasons[-1].advice
    assert bool(advice) == bool(reasons[-1].advice)


def test_the_state_is_told_with_the_reasons() -> None:
    states = [explain(found).state for _, found, _, _ in CASES]
    assert {"held", "delayed", "ready", "leased", "running", "done", "failed", "dead", "unknown"} \
        == set(states)  # fmt: skip


def test_who_asked_for_a_cancel_is_told_first() -> None:
    waiting = explain(facts(seen=seen("ready"), workers=(worker(),), cancelled=True)).reasons
    assert "cancelled" in waiting[0].why
    assert len(waiting) == 2
    over = facts(outcome=TaskOutcome(Status.DONE, b""), cancelled=True)
    assert [reason.why for reason in explain(over).reasons] == ["done"]


def test_a_task_that_was_sent_again_is_where_its_message_is() -> None:
    outcome = TaskOutcome(Status.FAILED, FAILED, 2)
    assert facts(outcome=outcome, seen=seen("dead")).state == "failed"
    assert facts(outcome=outcome, seen=seen("ready")).state == "ready"


def test_a_worker_with_very_many_functions_may_declare_any() -> None:
    many = worker(functions=[f"m:f{number}" for number in range(MAX_NAMES_TOLD)])
    assert many.declares("shop:price")
    assert not worker(functions=["m:f"]).declares("shop:price")
    assert worker(functions=[], allowed=["shop"]).declares("shop.sub:price")
