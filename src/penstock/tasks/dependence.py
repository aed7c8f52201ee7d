"""Tasks that depend on others: held in the queue until the outcomes of those are in the table."""

from __future__ import annotations

from penstock.client.aio import AsyncFabric, AsyncTransaction
from penstock.client.holding import Hold
from penstock.client.push import now_us
from penstock.errors import InvalidError
from penstock.tasks.calls import Form
from penstock.tasks.envelope import (
    MAX_PARENTS_TOLD,
    Failure,
    Status,
    TaskOutcome,
    encode,
    mark_of,
)
from penstock.tasks.names import NOBODY
from penstock.tasks.outbox import Dependence, Parcel
from penstock.tasks.streams import OpenStreams

_FAILURE = Failure("penstock.tasks.errors.TaskSkippedError", "a task that it depends on failed")
_FALLBACKS = {
    "fail": (Status.FAILED, encode(_FAILURE)),
    "skip": (Status.SKIPPED, b""),
    "run": (Status.SKIPPED, b""),  # only if its time runs out
}


def dependence_of(parents: list[bytes], on_failure: str, form: Form) -> Dependence:
    """What a task with these parents waits for; InvalidError if `on_failure` is none."""
    if on_failure not in _FALLBACKS:
        raise InvalidError(f"on_failure is fail, skip or run, not {on_failure!r}")
    status, result = _FALLBACKS[on_failure]
    outcome = TaskOutcome(
        status, result, attempt=0, function=form.function, submitted_us=now_us(),
        after=parents[:MAX_PARENTS_TOLD],
    )  # fmt: skip
    return Dependence(parents, on_failure, outcome, form.reply, form.keep_ms)


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
