"""Promises of topics: offsets, order, nothing lost, nothing twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History, Pass, Push

Place = tuple[int, int]
FOREVER_US = 1 << 62
OVERHEAD_BYTES = 256  # of a message in its batch, at most
RETENTION_US = 15_000_000  # how long after its time a message may still be there


def check_topic(history: History, topic: Stream) -> list[str]:
    """Everything that is wrong with one topic. What is only written may go with the power."""
    if topic.options.get("keep") == "latest":
        return []  # it forgets by other rules
    if topic.level != "synced" and history.trouble.power_losses:
        return list(_check_origin(history, topic))
    found = [*_check_origin(history, topic), *_check_stable(history, topic)]
    retention = Retention(history, topic)
    found += _check_readers(history, topic, retention)
    if history.drained:
        found += _check_final(history, topic, retention)
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


def _check_readers(history: History, topic: Stream, retention: Retention) -> Iterator[str]:
    """A reader misses nothing but what retention took: offsets follow each other."""
    last: dict[tuple[str, int], int] = {}
    for read in history.reads:
        if read.topic == topic.name:
            line = (read.reader, read.partition)
            origin = history.origin(topic.name, read.partition)
            following = last.get(line, origin - 1) + 1
            missing = range(following, read.offset)
            kept = [at for at in missing if not retention.took(read.partition, at, read.got_us)]
            if read.offset < following or kept:
                yield (
                    f"gap: {read.reader} read offset {read.offset} of partition {read.partition} "
                    f"after {last.get(line, -1)}"
                )
            last[line] = read.offset


def _check_final(history: History, topic: Stream, retention: Retention) -> Iterator[str]:
    where: dict[bytes, Place] = {}
    for (name, partition), final in history.final_topics.items():
        if name == topic.name:
            yield from _check_partition(history, final, retention)
            yield from retention.kept_too_long(final)
            where |= {value: (partition, offset) for offset, value in final.rows}
    for push in history.pushes_to(topic.name):
        if push.stored is True and push.value not in where and not retention.took_push(push):
            yield f"lost: {push.value!r} was acknowledged at {push.done_us} and is not there"
    for read in history.reads:
        place = (read.partition, read.offset)
        if read.topic != topic.name or where.get(read.value) == place:
            continue
        if read.value in where or not retention.took(*place, FOREVER_US):
            yield f"lost: {read.value!r} was read at {place} and is at {where.get(read.value)} now"


def _check_partition(history: History, final: Pass, retention: Retention) -> Iterator[str]:
    offsets = [offset for offset, _ in final.rows]
    origin = history.origin(final.topic, final.partition)
    first = offsets[0] if offsets else origin
    late = first != origin and not retention.trims
    if offsets != list(range(first, first + len(offsets))) or late:
        yield f"gap: partition {final.partition} lacks offsets between {origin} and {offsets[-1:]}"
    last: dict[str, int] = defaultdict(lambda: -1)
    for _, value in final.rows:
        push = history.pushes.get(value)
        if push is None:
            yield f"ghost: {value!r} is in partition {final.partition} and was never sent"
        elif push.index <= last[push.line]:
            yield f"out of order: {value!r} stands after message {last[push.line]} of its line"
        else:
            last[push.line] = push.index


class Retention:
    """What a topic may have forgotten by its settings, and what it must have forgotten."""

    def __init__(self, history: History, topic: Stream) -> None:
        self._trouble = history.trouble
        self._age_us = topic.options.get("retention_ms", 0) * 1000
        self._bytes = topic.options.get("retention_bytes", 0)
        self.trims = bool(self._age_us or self._bytes)
        pushes = list(history.pushes_to(topic.name)) if self.trims else []
        self._places = {push.place: push for push in pushes if push.place is not None}
        self._unplaced = [push for push in pushes if push.place is None]

    def took(self, partition: int, offset: int, at_us: int) -> bool:
        """Whether it may have taken what was at an offset, by this time."""
        push = self._places.get((partition, offset))
        return self.trims and (push is None or self.took_push(push, at_us))

    def took_push(self, push: Push, at_us: int = FOREVER_US) -> bool:
        """The same for a message."""
        if not self.trims or push.place is None:
            return self.trims
        if self._age_us:
            skew_us = self._trouble.skew(push.sent_us, at_us)
            if at_us >= push.sent_us + self._age_us - skew_us:
                return True
        return bool(self._bytes) and self._stored_since(push, at_us) > self._bytes

    def _stored_since(self, push: Push, at_us: int) -> int:
        """Bytes of the partition from a message on, at most."""
        assert push.place is not None
        partition, offset = push.place
        later = [
            each for place, each in self._places.items()
            if place[0] == partition and place[1] >= offset
        ]  # fmt: skip
        later += self._unplaced
        return sum(each.size + OVERHEAD_BYTES for each in later if each.sent_us <= at_us)

    def kept_too_long(self, final: Pass) -> Iterator[str]:
        """What is past its retention goes within seconds."""
        if self._age_us:
            for offset, _ in final.rows:
                push = self._places.get((final.partition, offset))
                if push is None:
                    continue
                skew_us = self._trouble.skew(push.sent_us, final.sent_us)
                over_us = push.done_us + self._age_us + skew_us + RETENTION_US
                if final.sent_us > over_us:
                    yield f"kept too long: {push.value!r} was over at {over_us}"
        size = sum(len(value) for _, value in final.rows)
        if self._bytes and size > self._bytes:
            yield f"kept too much: {size} bytes of names alone in partition {final.partition}"


def check_commits(history: History, topic: Stream) -> list[str]:
    """A committed offset that was acknowledged is what the group gets back."""
    found: list[str] = []
    lines: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for commit in history.commits:
        if commit.topic != topic.name:
            continue
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
