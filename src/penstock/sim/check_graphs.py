"""Promises of held messages: ready once, after all that they wait for, or else they fall back."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.graphs import ENTRIES, fallen, tasks_of
from penstock.sim.history import Delivery, GraphTask, History

SETTLED_US = 5_000_000  # by then all is told that was written


def check_graph(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with the tasks of a queue."""
    by_value = history.by_value(queue.name)
    final = history.final_tables.get(ENTRIES.name) if history.drained else None
    entries = set() if final is None else set(final.entries)
    found: list[str] = []
    for task in tasks_of(history, queue.name):
        deliveries = by_value.get(task.name, [])
        fell = fallen(task.name) in entries
        found += _check_early(history, task, deliveries, entries)
        found += _check_stuck(history, task)
        if final is not None:
            found += _check_end(task, deliveries, fell)
            if fell:
                found += _check_cause(history, task, entries)
    return found


def _check_early(
    history: History, task: GraphTask, deliveries: list[Delivery], entries: set[bytes]
) -> Iterator[str]:
    """It is not delivered before every entry may have been written that it waits for; with a mark
    that lets it go, unless it does not care."""
    if not deliveries:
        return
    got_us = min(each.got_us for each in deliveries)
    for name in task.after:
        parent = history.graph[name]
        marks = [mark for sent_us, mark in parent.writes if sent_us <= got_us]
        fell = fallen(name) in entries or not history.drained
        if not marks and not fell:
            yield f"too early: {task.name!r} came at {got_us} and {name!r} was not written"
        elif task.policy != "run" and 0 not in marks:
            yield f"not let go: {task.name!r} came although {name!r} failed, or was skipped"


def _check_stuck(history: History, task: GraphTask) -> Iterator[str]:
    """When all is quiet, nobody waits for an entry that is there."""
    for name in task.left:
        done_us = history.graph[name].done_us
        if 0 < done_us < task.left_us - SETTLED_US:
            yield f"stuck: {task.name!r} waits for {name!r}, which was written by {done_us}"


def _check_end(task: GraphTask, deliveries: list[Delivery], fell: bool) -> Iterator[str]:
    """What was stored is ready, or falls back, and not both."""
    if fell and deliveries:
        yield f"both: {task.name!r} fell back, and came at {deliveries[0].got_us}"
    if task.stored and not (fell or deliveries or task.ttl_us):
        yield f"lost: {task.name!r} was held, and neither came nor fell back"


def _check_cause(history: History, task: GraphTask, entries: set[bytes]) -> Iterator[str]:
    """It falls back only because of an entry, or because its time was over."""
    parents = [history.graph[name] for name in task.after]
    failed = any(mark for parent in parents for _, mark in parent.writes)
    failed = failed or any(fallen(parent.name) in entries for parent in parents)
    if not task.ttl_us and (not failed or task.policy == "run"):
        yield f"fell back without a cause: {task.name!r} ({task.policy})"
