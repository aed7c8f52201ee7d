"""Keys that fragments came late for: they go the way of the consumers, one fragment at a time.

What a fragment behind the watermark belongs to depends on what was open when it came. Keys do not
depend on each other, so that only those of such fragments are dealt with here; the watermark is
that of all rows of the bucket.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock.consumers.calls import ErrorPolicy
from penstock.consumers.folding import Folding
from penstock.consumers.fragments import Fragment
from penstock.consumers.fragments import Rows as FragmentRows
from penstock.consumers.held import Held
from penstock.consumers.objects import OpenObject
from penstock.consumers.stateful import About, Completion, Flags, Stateful
from penstock.consumers.steps import Limits
from penstock.spark.grouping import Rules, Sessions
from penstock.spark.open_rows import Part
from penstock.wire.columns import Longs


class _Offsets(Stateful[list[int]]):
    """Keeps the offsets of an object's fragments."""

    def __init__(self, completion: Completion, ends: set[int]) -> None:
        self.completion = replace(completion, marker=lambda fragment: fragment.offset in ends)
        self.over: list[tuple[bool, list[int]]] = []

    def open(self, key: bytes) -> list[int]:
        return []

    def on_message(self, state: list[int], fragment: Fragment) -> None:
        state.append(fragment.offset)

    def finish(self, state: list[int], about: About) -> list[bytes]:
        self.over.append((about.reason == "end", state))
        return []


class Behind(NamedTuple):
    """Sessions that are over; which rows are gone, and which of those came too late."""

    sessions: Sessions
    gone: Flags
    late: Flags


class Times(NamedTuple):
    """How time went on while rows came. `high_us`: the highest before each of them."""

    watermark_us: int  # before the first
    high_us: Longs
    behind: Flags
    last_high_us: int


def fold_behind(
    rows: Part, keys: list[bytes], known: int, times: Times, rules: Rules, completion: Completion
) -> Behind:
    """Folds rows of certain keys; the first `known` of them were there before."""
    ends = set(rows.offsets[rows.ends].tolist())
    stateful = _Offsets(completion, ends)
    folding = Folding(stateful, 0, ErrorPolicy(), Limits(open_objects=len(rows) + 1))
    folding.watermark_us = times.watermark_us
    held = Held()
    high_us = np.concatenate((np.full(known, times.watermark_us), times.high_us))
    whole = FragmentRows(keys, [b""] * len(rows), rows.times_us, rows.offsets, high_us)
    folded = np.ones(known, np.bool_)
    if not rules.eager:
        folded = rows.times_us[:known] <= times.watermark_us
    _restore(folding, rows, keys, np.flatnonzero(folded))
    held.add(whole.pick(np.flatnonzero(~folded)))
    fresh = whole.cut(known, len(whole))
    if rules.eager:
        folding.fold_eagerly(fresh, times.behind.tolist(), rules.lag_us)
    else:
        _fold_held(folding, held, fresh, times.behind, rules.lag_us)
    _advance(folding, held, times.last_high_us - rules.lag_us)
    return _result(rows, stateful, folding, held)


def _restore(
    folding: Folding[list[int]], rows: Part, keys: list[bytes], places: Longs
) -> None:
    """Rows of a key that are folded already are all of one open object."""
    by_key: dict[bytes, list[int]] = {}
    for place in places.tolist():
        by_key.setdefault(keys[place], []).append(place)
    for key, those in by_key.items():
        times_us, offsets = rows.times_us[those], rows.offsets[those].tolist()
        found = OpenObject(key, offsets, int(times_us.min()), offsets[0])
        found.last_us = int(times_us.max())
        found.count = len(offsets)
        folding.objects.restore(found)


def _fold_held(
    folding: Folding[list[int]], held: Held, fresh: FragmentRows, behind: Flags, lag_us: int
) -> None:
    start = 0
    for row in np.flatnonzero(behind).tolist():
        held.add(fresh.cut(start, row))
        high_us = int(fresh.high_us[row])
        _advance(folding, held, high_us - lag_us)
        late = Fragment(fresh.keys[row], b"", int(fresh.times_us[row]), int(fresh.offsets[row]))
        folding.take_behind(late, high_us)
        start = row + 1
    held.add(fresh.cut(start, len(fresh)))


def _advance(folding: Folding[list[int]], held: Held, watermark_us: int) -> None:
    folding.watermark_us = max(folding.watermark_us, watermark_us)
    released = held.release(folding.watermark_us)
    if released is not None:
        folding.fold(released)
    folding.fire(folding.watermark_us)


def _result(
    rows: Part, stateful: _Offsets, folding: Folding[list[int]], held: Held
) -> Behind:
    over = [places for _, places in stateful.over]
    counts = np.fromiter(map(len, over), np.int64, len(over))
    offsets = np.fromiter((each for places in over for each in places), np.int64, counts.sum())
    places = np.searchsorted(rows.offsets, offsets)
    groups = np.repeat(np.arange(len(over)), counts)
    chosen = places[np.lexsort((rows.times_us[places], groups))]
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))[: len(over)]
    ended = np.fromiter((ended for ended, _ in stateful.over), np.bool_, len(over))
    waiting = held.rows()
    left = [each for found in folding.objects for each in found.state]
    left += [] if waiting is None else waiting.offsets.tolist()
    gone = ~np.isin(rows.offsets, np.array(left, np.int64))
    late = np.isin(
        rows.offsets, np.array([each.fragment.offset for each in folding.step.late], np.int64)
    )
    return Behind(Sessions(rows.pick(chosen), starts, ended), gone, late)
