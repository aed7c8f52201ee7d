"""Keep-latest: of every key the newest message can always be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from penstock.sim.actors import Stream
from penstock.sim.history import History, LatestBatch, Pass


def check_latest(history: History, topic: Stream) -> list[str]:
    """Everything that is wrong with a topic of one partition that keeps the latest of each key."""
    batches = [batch for batch in history.latest if batch.topic == topic.name]
    passes = [each for each in history.passes if each.topic == topic.name]
    passes += [each for (name, _), each in history.final_topics.items() if name == topic.name]
    keys = {
        value: key for batch in batches for value, key in zip(batch.values, batch.keys, strict=True)
    }
    found: list[str] = []
    places: dict[int, bytes] = {}
    for batch in batches:
        if batch.base >= 0:
            places |= dict(enumerate(batch.values, batch.base))
    for each in passes:
        found += _check_rows(each, keys, places)
        found += _check_newest(each, keys, batches)
    return found


def _check_rows(each: Pass, keys: dict[bytes, bytes], places: dict[int, bytes]) -> Iterator[str]:
    last = -1
    for offset, value in each.rows:
        if value not in keys:
            yield f"ghost: {value!r} was read from {each.topic} and never published there"
        elif places.setdefault(offset, value) != value:
            yield f"offset used twice: {offset} is {places[offset]!r} and {value!r}"
        if offset <= last:
            yield f"out of order: offset {offset} came after {last}"
        last = offset


def _check_newest(
    each: Pass, keys: dict[bytes, bytes], batches: list[LatestBatch]
) -> Iterator[str]:
    """What was acknowledged before is there, or a later message of its key is."""
    rows: dict[bytes, list[int]] = {}
    for offset, value in each.rows:
        rows.setdefault(keys.get(value, b""), []).append(offset)
    for batch in batches:
        if batch.base < 0 or not batch.done_us or batch.done_us >= each.sent_us:
            continue
        newest = {key: offset for offset, key in enumerate(batch.keys, batch.base)}
        for key, offset in newest.items():
            line = rows.get(key, [])
            if bisect_left(line, offset) == len(line):
                yield (
                    f"newest lost: offset {offset} of key {key!r} was acknowledged at "
                    f"{batch.done_us}, and neither it nor a later one was there at {each.sent_us}"
                )
