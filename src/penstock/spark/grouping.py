"""Which sessions are over among rows of certain keys, found in one pass over columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.consumers.folding import microseconds
from penstock.consumers.objects import FOREVER_US
from penstock.consumers.runs import group_starts
from penstock.consumers.stateful import Completion, Flags
from penstock.spark.open_rows import Part
from penstock.wire.columns import Longs, Rows


class Rules(NamedTuple):
    """When a session is over. `eager`: nothing waits, an end counts as soon as it comes."""

    timeout_us: int | None
    lag_us: int
    eager: bool

    @classmethod
    def of(cls, completion: Completion) -> Rules:
        """As the assembler of the consumers has them."""
        lag_us = max(1, microseconds(completion.delay) or 0)
        return cls(microseconds(completion.timeout), lag_us, completion.delay == 0)


class Sessions(NamedTuple):
    """Sessions that are over: rows of each lie one behind the other, by time, from its start on."""

    rows: Part
    starts: Longs
    ended: Flags  # by an end; else by silence

    @property
    def stops(self) -> Longs:
        """Behind the last row of each."""
        return np.append(self.starts[1:], len(self.rows)).astype(np.int64)


    def cut(self, most_rows: int, most_bytes: int) -> Iterator[Sessions]:
        """The same in parts of so many rows and bytes, or a little more."""
        count, rows = len(self.starts), self.rows
        parts = max(-(-len(rows) // most_rows), -(-rows.bytes // most_bytes))
        if parts <= 1 and count:
            yield self
            return
        edges = np.unique(np.linspace(0, count, max(2, parts + 1)).astype(np.int64)).tolist()
        for first, last in pairwise(edges):
            start = int(self.starts[first])
            stop = len(rows) if last == count else int(self.starts[last])
            part = rows.pick(np.arange(start, stop))
            yield Sessions(part, self.starts[first:last] - start, self.ended[first:last])


class Found(NamedTuple):
    """What `over_by` finds. `gone`: rows that are of these sessions, in the order of the input;
    `slots` and `due_us`: keys with rows left, and when the first of their sessions may be over."""

    sessions: Sessions
    gone: Flags
    slots: Longs
    due_us: Longs


def over_by(part: Part, watermark_us: int, rules: Rules) -> Found:
    """Sessions of these rows, all that there are of their keys, that are over by a time."""
    order = by_slot_and_time(part)
    slots, times_us, ends = part.slots[order], part.times_us[order], part.ends[order]
    starts = group_starts(times_us, slots, ends, rules.timeout_us, rules.eager)
    stops = np.append(starts[1:], len(part))
    last_us = times_us[stops - 1]
    ended = np.logical_or.reduceat(ends, starts)
    silent_us = np.full(len(starts), FOREVER_US, np.int64)
    if rules.timeout_us is not None:
        silent_us = last_us + rules.timeout_us
    over = np.where(ended, True if rules.eager else last_us <= watermark_us, False)
    over |= silent_us <= watermark_us
    counts = stops - starts
    rows_over = np.repeat(over, counts)
    chosen = order[rows_over]
    gone = np.zeros(len(part), np.bool_)
    gone[chosen] = True
    starts_over = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[over])[:-1]))
    sessions = Sessions(part.pick(chosen), starts_over[: int(over.sum())], ended[over])
    left = np.flatnonzero(~over)
    left_slots = slots[starts[left]]
    first = np.flatnonzero(np.append(True, left_slots[1:] != left_slots[:-1])[: len(left)])
    return Found(sessions, gone, left_slots[first], silent_us[left[first]])


def by_slot_and_time(part: Part) -> Rows:
    """The order of rows by (number of the key, time), else as they are."""
    low_us = int(part.times_us.min())
    bits = (int(part.times_us.max()) - low_us).bit_length()
    if bits + int(part.slots.max()).bit_length() <= 62:  # both fit into one number
        return np.argsort((part.slots << bits) | (part.times_us - low_us), kind="stable")
    return np.lexsort((part.times_us, part.slots))
