"""Promises of topics: offsets, order, nothing lost, nothing twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History

Place = tuple[int, int]


def check_topic(history: History, topic: Stream) -> list[str]:
    """Everything that is wrong with one topic. What is only written may go with the power."""
    if topic.level != "synced" and history.power_losses:
        return list(_check_origin(history, topic))
    found = [*_check_origin(history, topic), *_check_stable(history, topic)]
    found += _check_readers(history, topic)
    if history.drained:
        found += _check_final(history, topic)
    return found


def _check_origin(history: History, topic: Stream) -> Iterator[str]:
    for read in history.reads:
        if read.topic != topic.name:
            continue
        push = history.pushes.get(read.value)
        if push is None or push.stream != topic.name:
            yield f"ghost: {read.value!r} was read from {topic.name} and never published there"
        elif push.stored is False:
            yield f"ghost: {read.value!r} was refused and read"


def _check_stable(history: History, topic: Stream) -> Iterator[str]:
    """An offset has one message for ever, and a message has one offset."""
    values: dict[Place, bytes] = {}
    places: dict[bytes, Place] = {}
    for push in history.pushes.values():
        if push.stream == topic.name and push.place is not None:
            values[push.place], places[push.value] = push.value, push.place
    for read in history.reads:
        if read.topic != topic.name:
            continue
        place = (read.partition, read.offset)
        if values.setdefault(place, read.value) != read.value:
            yield f"offset used twice: {place} is {values[place]!r} and {read.value!r}"
        if places.setdefault(read.value, place) != place:
            yield f"stored twice: {read.value!r} is at {places[read.value]} and {place}"


def _check_readers(history: History, topic: Stream) -> Iterator[str]:
    """A reader misses nothing: offsets follow each other."""
    last: dict[tuple[str, int], int] = {}
    for read in history.reads:
        if read.topic == topic.name:
            line = (read.reader, read.partition)
            if read.offset != last.get(line, -1) + 1:
                yield (
                    f"gap: {read.reader} read offset {read.offset} of partition {read.partition} "
                    f"after {last.get(line, -1)}"
                )
            last[line] = read.offset


def _check_final(history: History, topic: Stream) -> Iterator[str]:
    where: dict[bytes, Place] = {}
    for (name, partition), rows in history.final_topics.items():
        if name == topic.name:
            yield from _check_partition(history, partition, rows)
            where |= {value: (partition, offset) for offset, value in rows}
    for push in history.pushes.values():
        if push.stream == topic.name and push.stored is True and push.value not in where:
            yield f"lost: {push.value!r} was acknowledged at {push.done_us} and is not there"
    for read in history.reads:
        place = (read.partition, read.offset)
        if read.topic == topic.name and where.get(read.value) != place:
            yield f"lost: {read.value!r} was read at {place} and is at {where.get(read.value)} now"


def _check_partition(
    history: History, partition: int, rows: list[tuple[int, bytes]]
) -> Iterator[str]:
    if [offset for offset, _ in rows] != list(range(len(rows))):
        yield f"gap: the offsets of partition {partition} are not 0 to {len(rows) - 1}"
    last: dict[str, int] = defaultdict(lambda: -1)
    for _, value in rows:
        push = history.pushes.get(value)
        if push is None:
            yield f"ghost: {value!r} is in partition {partition} and was never sent"
        elif push.index <= last[push.line]:
            yield f"out of order: {value!r} stands after message {last[push.line]} of its line"
        else:
            last[push.line] = push.index


def check_commits(history: History) -> list[str]:
    """A committed offset that was acknowledged is what the group gets back."""
    found: list[str] = []
    lines: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for commit in history.commits:
        allowed = lines[commit.topic, commit.group, commit.partition]
        if not commit.read:
            if commit.done_us:
                allowed.clear()
            allowed.append(commit.offset)
        elif commit.done_us and commit.offset not in allowed:
            found.append(
                f"commit: group {commit.group} is at {commit.offset} of partition "
                f"{commit.partition} and not at any of {allowed}"
            )
    return found
