"""Promises of topics that grow: a key's messages are in order, over all partitions that had it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from penstock.sim.actors import Stream
from penstock.sim.history import History


def check_keys(history: History, topic: Stream) -> list[str]:
    """Lines are of one producer and one key: by their offsets, and as readers of the whole topic
    got them, they are in the order in which they were sent."""
    found = list(_check_handed(history, topic))
    if history.drained:
        found += _check_offsets(history, topic)
        found += _check_places(history, topic)
    return found


def _check_places(history: History, topic: Stream) -> Iterator[str]:
    """A message is in a partition that had its key when the partition came to that offset."""
    layout, family = history.layouts.get(topic.name), history.families.get(topic.name)
    if layout is None or family is None:
        return
    for (name, partition), final in history.final_topics.items():
        for offset, value in final.rows if name == topic.name else ():
            push, kin = history.pushes.get(value), family[partition]
            splits = [each.generation for each in kin.splits if each.offset <= offset]
            generation = max([kin.generation, *splits])
            if push is None or push.key is None:
                continue
            if layout.partition_at(push.key, generation) != partition:
                yield (
                    f"misplaced: {value!r} is at {(partition, offset)}, in generation {generation}"
                )


def _check_handed(history: History, topic: Stream) -> Iterator[str]:
    last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    for read in history.reads:
        push = history.pushes.get(read.value)
        if read.topic != topic.name or push is None:
            continue
        line = (read.reader, push.line)
        if push.index <= last[line]:
            yield f"out of order: {read.reader} got {read.value!r} after message {last[line]}"
        last[line] = push.index


def _check_offsets(history: History, topic: Stream) -> Iterator[str]:
    places: dict[bytes, tuple[int, int]] = {}
    for (name, partition), final in history.final_topics.items():
        for offset, value in final.rows if name == topic.name else ():
            if value in places:
                yield f"stored twice: {value!r} is at {places[value]} and {(partition, offset)}"
            places[value] = (partition, offset)
    lines: dict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
    for value, (_, offset) in places.items():
        if (push := history.pushes.get(value)) is not None:
            lines[push.line].append((push.index, offset, value))
    for line in lines.values():
        line.sort()
        for (_, before, _), (_, offset, value) in pairwise(line):
            if offset <= before:
                yield f"out of order: {value!r} is at {places[value]}, one before it at {before}"
