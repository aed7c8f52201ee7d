"""Tasks that depend on others: held in the queue until the outcomes of those are in the table."""

from __future__ import annotations

from penstock.client.aio import AsyncFabric, AsyncTransaction
from penstock.client.holding import Hold
from penstock.client.push import now_us
from penstock.errors import InvalidError
from penstock.tasks.calls import Form
from penstock.tasks.envelope import (
    MAX_PARENTS_TOLD,
    NOT_RUN,
    Failure,
    Status,
    TaskOutcome,
    encode,
    mark_of,
)
from penstock.tasks.names import NOBODY, shown
from penstock.tasks.outbox import Dependence, Parcel
from penstock.tasks.streams import OpenStreams

_POLICIES = ("fail", "skip", "run")
_PARENTS_TOLD = 3


def dependence_of(parents: list[bytes], on_failure: str, form: Form) -> Dependence:
    """What a task with these parents waits for; InvalidError if `on_failure` is none."""
    check_policy(on_failure)
    if on_failure == "fail":
        status, result = Status.FAILED, encode(_failure(parents))
    else:  # of those that run all the same, only if their time runs out
        status, result = Status.SKIPPED, b""
    outcome = TaskOutcome(
        status, result, attempt=0, function=form.function, submitted_us=now_us(),
        after=parents[:MAX_PARENTS_TOLD],
    )  # fmt: skip
    return Dependence(parents, on_failure, outcome, form.reply, form.keep_ms)


def check_policy(on_failure: str) -> None:
    """InvalidError if it is none."""
    if on_failure not in _POLICIES:
        raise InvalidError(f"on_failure is fail, skip or run, not {on_failure!r}")


def _failure(parents: list[bytes]) -> Failure:
    told = ", ".join(map(shown, parents[:_PARENTS_TOLD]))
    more = len(parents) - _PARENTS_TOLD
    others = f" and {more:,} more" if more > 0 else ""
    which = "a task" if len(parents) == 1 else "one of the tasks"
    return Failure(NOT_RUN, f"{which} that it depends on failed: {told}{others}")


def hold_of(parcel: Parcel, streams: OpenStreams, fabric: AsyncFabric) -> Hold:
    """The task as the queue holds it. If it never runs, its outcome is written and published by the
    queue itself, so that failure reaches its own children, and whoever waits for it."""
    dependence = parcel.dependence
    assert dependence is not None
    (task,), (value,) = parcel.tasks, parcel.values
    return Hold(
        value,
        task,
        [(streams.results, parent) for parent in dependence.parents],
        dependence.on_failure,
        fallback=_fallback(task, dependence, streams, fabric),
        priority=parcel.terms.priority,
    )


def _fallback(
    task: bytes, dependence: Dependence, streams: OpenStreams, fabric: AsyncFabric
) -> AsyncTransaction:
    fallback = fabric.transaction()
    outcome = encode(dependence.fallback)
    if dependence.keep_ms:
        mark, ttl = mark_of(dependence.fallback.status), dependence.keep_ms / 1000
        fallback.put(streams.results, task, outcome, ttl=ttl, mark=mark)
    if dependence.reply != NOBODY:
        fallback.publish(streams.replies, outcome, key=task, partition=dependence.reply)
    return fallback
