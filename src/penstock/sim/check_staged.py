"""Promises of stages and reservations: all or nothing, once, and what is held never changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.attempts import Attempt
from penstock.sim.history import History


def check_staged(history: History, stream: Stream) -> list[str]:
    """Everything that is wrong with what was published together."""
    found = list(history.surprises)
    if history.drained:
        seen = _seen(history, stream)
        attempts = [each for each in history.attempts if each.stream == stream.name]
        found += [*_check_whole(attempts, seen), *_check_once(attempts, seen)]
    return found


def _seen(history: History, stream: Stream) -> set[bytes]:
    if stream.kind == "queue":
        return set(history.by_value(stream.name))
    rows = (final.rows for (name, _), final in history.final_topics.items() if name == stream.name)
    return {value for each in rows for _, value in each}


def _check_whole(attempts: list[Attempt], seen: set[bytes]) -> Iterator[str]:
    for attempt in attempts:
        there = [value for value in attempt.values if value in seen]
        if there and len(there) < len(attempt.values):
            missing = next(value for value in attempt.values if value not in seen)
            yield (
                f"half published: of number {attempt.number} {there[0]!r} is there, and "
                f"{missing!r} is not"
            )


def _check_once(attempts: list[Attempt], seen: set[bytes]) -> Iterator[str]:
    numbers: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if any(value in seen for value in attempt.values):
            numbers[attempt.number].append(attempt)
    for number, found in numbers.items():
        if len(found) > 1:
            yield (
                f"published twice: {found[0].values[0]!r} and {found[1].values[0]!r} are both "
                f"there under number {number}"
            )


def check_holds(history: History, queue: Stream) -> list[str]:
    """Everything that is wrong with what reservations held."""
    return [
        f"reservation {hold.number} changed: {change}"
        for (name, _), hold in history.holds.items()
        if name == queue.name
        for change in hold.changed
    ]
