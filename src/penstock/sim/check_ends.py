"""Offsets never go back: whoever asks where a partition ends is told of all seen before."""

from __future__ import annotations

from collections import defaultdict

from penstock.sim.actors import Stream
from penstock.sim.history import History


def check_ends(history: History, topic: Stream) -> list[str]:
    """Everything that is wrong with the ends of a topic's partitions."""
    seen: dict[int, list[tuple[int, int, str]]] = defaultdict(list)  # when, offset, what
    for push in history.pushes_to(topic.name):
        if push.stored and push.place is not None:
            partition, offset = push.place
            seen[partition].append((push.done_us, offset, f"{push.value!r} was stored"))
    for read in history.reads:
        if read.topic == topic.name:
            what = f"{read.value!r} was read"
            seen[read.partition].append((read.got_us, read.offset, what))
    for ends in history.ends:
        if ends.topic == topic.name:
            what = "the end was told"
            seen[ends.partition].append((ends.done_us, ends.end - 1, what))
    found: list[str] = []
    for ends in history.ends:
        if ends.topic != topic.name:
            continue
        for at_us, offset, what in seen[ends.partition]:
            if at_us < ends.sent_us and offset >= ends.end:
                found.append(
                    f"went back: partition {ends.partition} ends at {ends.end} for who asked at "
                    f"{ends.sent_us}; at {at_us} {what} at {offset}"
                )
                break
    return found
