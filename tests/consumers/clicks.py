"""Clicks of a generator in a topic, and whether the sessions that came out are the known ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import penstock
from penstock.consumers.generator import CLOSING_KEY, Clicks, is_end
from penstock.consumers.sessions import (
    Sessionizer,
    SessionRecord,
    decode_session,
    session_order,
    text,
)

PARTITIONS = 4
CLICKS = Clicks(seed=11, chains=60, blocks=3)


def sessions() -> Sessionizer:
    """The handler that fits the clicks."""
    return Sessionizer(
        end=is_end, timeout=CLICKS.timeout, delay=CLICKS.delay, fragment_id=bytes
    )


def publish(topic: penstock.Topic, size: int = 100) -> Iterator[None]:
    """Publishes all clicks, one batch for each step; the last step ends all sessions."""
    rows = list(CLICKS.fragments())
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        topic.publish_many(
            [value for _, value, _ in part],
            keys=[key for key, _, _ in part],
            timestamps=[time_us / 1e6 for _, _, time_us in part],
        )
        yield
    for partition in range(topic.partitions):
        closing_s = rows[-1][2] / 1e6
        topic.publish(b"closing", key=CLOSING_KEY, partition=partition, timestamp=closing_s)
    yield


def expected() -> list[SessionRecord]:
    return sorted(CLICKS.answer(), key=session_order)


def delivered(queue: penstock.Queue) -> list[SessionRecord]:
    """All sessions that came out, in the order of keys and times."""
    found: list[SessionRecord] = []
    while taken := queue.pop_many(100_000, timeout=0.5):  # one node after another
        found += [decode_session(message.value) for message in taken]
    kept = [each for each in found if each.key != text(CLOSING_KEY)]
    return sorted(kept, key=session_order)


def mistakes(found: list[SessionRecord], guarantee: str) -> list[str]:
    """What a guarantee does not allow; crashes may have happened."""
    counts = Counter(map(repr, found))
    known = set(map(repr, expected()))
    wrong = [f"never was: {each}" for each in counts if each not in known]
    if guarantee != "at-most-once":
        wrong += [f"missing: {each}" for each in known if each not in counts]
    if guarantee != "at-least-once":
        wrong += [f"{count} times: {each}" for each, count in counts.items() if count > 1]
    return wrong
