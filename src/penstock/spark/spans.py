"""Which offsets a micro-batch takes, and which tasks read them. Pure: no data is touched."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from penstock.errors import InvalidError

Positions = dict[int, int]
"""The next offset of each partition."""

SMALL_TASK_ROWS = 10_000  # below that, a task costs more than it reads


class Span(NamedTuple):
    """Offsets `start` to `end` (not included) of a partition: the work of one task."""

    partition: int
    start: int
    end: int


def to_json(positions: Positions) -> dict[str, int]:
    """As Spark keeps it in its checkpoint."""
    return {str(partition): positions[partition] for partition in sorted(positions)}


def from_json(offset: Mapping[str, int]) -> Positions:
    """What `to_json` made; InvalidError if it is another source's."""
    try:
        return {int(partition): int(position) for partition, position in offset.items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidError(
            f"{offset!r} is not an offset of a topic",
            advice="The checkpoint belongs to another source: use a new directory.",
        ) from None


def limited(start: Positions, end: Positions, max_rows: int) -> Positions:
    """An end that is at most `max_rows` rows after the start.

    Every partition goes on in proportion to what it has, and by one row at least if there are
    enough for all: none is left behind, so that event times of partitions stay close.
    """
    waiting = {each: end[each] - start.get(each, 0) for each in end}
    most_first = sorted(waiting, key=lambda each: -waiting[each])
    behind = [each for each in most_first if waiting[each] > 0]
    total = sum(waiting[each] for each in behind)
    if total <= max_rows:
        return dict(end)
    chosen = behind[:max_rows]
    spare, rest = max_rows - len(chosen), sum(waiting[each] - 1 for each in chosen)
    taken, passed = {each: start.get(each, 0) for each in end}, 0
    for each in chosen:
        before = spare * passed // rest if rest else 0
        passed += waiting[each] - 1
        taken[each] += 1 + (spare * passed // rest if rest else 0) - before
    return taken


def split(
    start: Positions, end: Positions, rows_per_task: int, min_tasks: int
) -> list[Span]:
    """The tasks that read from start to end, in the order of partitions and offsets.

    None has more than `rows_per_task` rows. There are at least `min_tasks` of them, unless they
    would be small.
    """
    rows = {each: end[each] - start.get(each, 0) for each in sorted(end)}
    total = sum(max(0, count) for count in rows.values())
    most = min(rows_per_task, max(SMALL_TASK_ROWS, -(-total // min_tasks)))
    spans: list[Span] = []
    for partition, count in rows.items():
        first, tasks = start.get(partition, 0), -(-count // most)
        cuts = [first + count * number // max(1, tasks) for number in range(tasks + 1)]
        spans += [Span(partition, *pair) for pair in pairwise(cuts)]
    return spans
