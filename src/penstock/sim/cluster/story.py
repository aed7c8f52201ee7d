"""What led to a problem, for a reader: what befell the message, and the cluster meanwhile."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from penstock.sim.history import History
from penstock.sim.world import START_US

_VALUE = re.compile(r"b'[^']*'")
BEFORE_US = 6_000_000
AFTER_US = 2_000_000
MAX_LINES = 60


def story(history: History, problems: list[str], trace: list[str]) -> list[str]:
    """The lines of the trace around what the first problem is about, and what clients saw of it.
    All of the trace if that is not known."""
    named = _VALUE.search(problems[0])
    if named is None:
        return trace
    seen = sorted(_seen(history, ast.literal_eval(named.group())))
    if not seen:
        return trace
    first, last = seen[0][0] - BEFORE_US, seen[-1][0] + AFTER_US
    lines = [(at_us, line) for line in trace if first <= (at_us := _time_of(line)) <= last]
    lines += [(at_us, f"{at_us / 1e6:11.6f} > {text}") for at_us, text in seen]
    found = [line for _, line in sorted(lines, key=lambda item: item[0])]
    return found if len(found) <= MAX_LINES else [*found[:20], "...", *found[-40:]]


def _time_of(line: str) -> int:
    return int(float(line.split(maxsplit=1)[0]) * 1e6)


def _seen(history: History, value: bytes) -> Iterator[tuple[int, str]]:
    """Everything that clients did with a message or key: when, counted from the start, and what."""
    for at_us, text in _events(history, value):
        if at_us:
            yield at_us - START_US, text


def _events(history: History, value: bytes) -> Iterator[tuple[int, str]]:
    if (push := history.pushes.get(value)) is not None:
        yield push.sent_us, f"{value!r} is sent to {push.stream}"
        yield push.done_us, f"{value!r} is answered: stored {push.stored} at {push.place}"
    for each in history.deliveries:
        if each.value == value:
            grant = f"grant {each.grant:#x}, delivery {each.count}, {each.shard}/{each.position}"
            yield each.got_us, f"{value!r} comes to {each.consumer}: {grant}"
            for settled in each.settlements:
                who = f"{settled.op} of {value!r} by {each.consumer}"
                yield settled.sent_us, f"{who} is sent"
                yield settled.done_us, f"{who} is answered: {settled.accepted}"
    yield from _moves(history, value)
    for read in history.reads:
        if read.value == value:
            yield read.got_us, f"{value!r} is read by {read.reader} at {read.offset}"
    for op in history.table:
        if op.key == value:
            who = f"{op.kind} by {op.client} (if {op.if_version}) {op.value!r}"
            yield op.sent_us, f"{who} is sent"
            yield op.done_us, f"{who}: {op.outcome!r}"


def _moves(history: History, value: bytes) -> Iterator[tuple[int, str]]:
    push = history.pushes.get(value)
    deliveries = [each for each in history.deliveries if each.value == value]
    places = {(each.shard, each.position) for each in deliveries}
    if push is not None and push.place is not None:
        places.add(push.place)
    for move in history.moves:
        for source, target in move.steps():
            if push is not None and move.queue == push.stream and places & {source, target}:
                yield move.left_us, f"{value!r} leaves {source}"
                yield move.arrived_us, f"{value!r} arrives at {target}"
