"""One task: its state, and when it went through which stage. No I/O here."""

from __future__ import annotations

from typing import NamedTuple

from penstock.tasks.envelope import Failure, Status, TaskOutcome, read_failure
from penstock.tasks.watching.facts import Facts


class Stage(NamedTuple):
    """A step on a task's way: when it was reached, and how long after the one before."""

    name: str
    at_us: int
    after_us: int


class TaskStatus(NamedTuple):
    """What is known of one task. Times are microseconds since 1970."""

    id: bytes
    state: str
    """"held", "delayed", "ready", "leased", "running", "done", "failed", "skipped", "cancelled";
    "dead" if only the dead letter is left of it; "unknown"."""
    function: str
    stages: list[Stage]
    attempt: int
    retries: int | None
    """Further attempts that it has after the first; None: not known any more."""
    worker: str
    error: Failure | None
    dead: bool
    """Whether it is among the dead letters, from where it can be sent again."""
    parents: list[bytes]
    children: list[bytes]


def stages_of(outcome: TaskOutcome) -> list[Stage]:
    """The stages that a task went through, as its outcome tells."""
    return _timed(
        ("submitted", outcome.submitted_us),
        ("ready", outcome.ready_us or outcome.submitted_us),
        ("leased", outcome.popped_us),
        ("begun", outcome.started_us),
        ("ended", outcome.ended_us),
        ("settled", outcome.settled_us),
    )


def _timed(*reached: tuple[str, int]) -> list[Stage]:
    stages: list[Stage] = []
    for name, at_us in reached:
        if at_us:
            # Clocks of several machines tell these times: none may seem to run backwards.
            after_us = max(at_us - stages[-1].at_us, 0) if stages else 0
            stages.append(Stage(name, at_us, after_us))
    return stages


def failure_of(outcome: TaskOutcome | None) -> Failure | None:
    """Why a task has no result."""
    if outcome is None or outcome.status == Status.DONE or not outcome.result:
        return None
    return read_failure(outcome.result)


def _stages_so_far(facts: Facts) -> list[Stage]:
    seen, holder = facts.seen, facts.holder
    begun = None if holder is None else holder.begun
    call = None if seen is None else seen.call
    submitted_us = 0 if call is None else call.submitted_us
    ready_us = 0
    if facts.state == "delayed" and seen is not None:
        ready_us = seen.until_us
    elif call is not None and not call.after and not facts.waits:
        ready_us = submitted_us + call.delay_ms * 1000
    leased_us, began_us = (0, 0) if begun is None else (begun.popped_us, begun.began_us)
    return _timed(
        ("submitted", submitted_us), ("ready", ready_us), ("leased", leased_us),
        ("begun", began_us),
    )  # fmt: skip


def status_of(facts: Facts) -> TaskStatus:
    """What there is to tell."""
    outcome, seen, holder = facts.outcome, facts.seen, facts.holder
    if facts.over and outcome is not None:
        attempt, worker, stages = outcome.attempt, outcome.worker, stages_of(outcome)
    else:
        attempt = 0 if seen is None else seen.deliveries
        worker = "" if holder is None else holder.report.worker
        if holder is not None and holder.begun is not None:
            attempt, worker = holder.begun.attempt, f"{worker}/{holder.begun.executor}"
        stages = _stages_so_far(facts)
    return TaskStatus(
        facts.task,
        facts.state,
        facts.function,
        stages,
        attempt,
        None if seen is None else seen.call.retries,
        worker,
        failure_of(outcome),
        seen is not None and seen.state == "dead",
        facts.after,
        list(facts.children),
    )
