"""The fast way: rows of a batch grouped by key with NumPy, so that code runs once per group.

The same objects, results and order as `Folding.fold`, for classes that take several fragments at
once. It pays where a batch holds several fragments of a key; otherwise rows go the plain way.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from penstock.consumers.calls import HandlerError
from penstock.consumers.folding import Folding
from penstock.consumers.fragments import Rows
from penstock.consumers.objects import OpenObject
from penstock.consumers.stateful import About, BulkStateful, Flags, Reason, Run, no_marks
from penstock.wire.columns import Longs

S = TypeVar("S")

_LEAST_ROWS = 64
_LEAST_PER_KEY = 2

# When an object is over: the time, whether a timer says so (timers come after fragments of the
# same time), and what decides among equals. It orders results as the plain way does.
_Turn = tuple[int, int, bytes | int]


class _Group(NamedTuple):
    """Rows `start` to `stop` belong to one object; then what is known of them."""

    start: int
    stop: int
    ended: bool
    first_us: int
    last_us: int
    tail_offset: int
    lowest_offset: int
    highest_offset: int
    high_us: int  # of the row with the lowest offset


class RunFolding(Generic[S]):
    """Folds rows in groups, into the same objects as the `Folding` that it works for."""

    def __init__(self, folding: Folding[S], stateful: BulkStateful[S], partition: int) -> None:
        self._folding = folding
        self._stateful = stateful
        self._partition = partition
        self._ends = no_marks if stateful.completion.marker is None else stateful.ends
        self._over: list[tuple[_Turn, OpenObject[S], About]] = []

    def fold(self, rows: Rows, limit_us: int) -> bool:
        """Folds rows, which ascend by time, and fires timers up to `limit_us`, or does nothing.

        False: there are too few rows of each key for it to pay.
        """
        if len(rows) < _LEAST_ROWS:
            return False
        numbers = {key: number for number, key in enumerate(dict.fromkeys(rows.keys))}
        if len(rows) < len(numbers) * _LEAST_PER_KEY:
            return False
        codes = np.fromiter(map(numbers.__getitem__, rows.keys), np.int64, len(rows))
        # NumPy sorts short numbers by radix, which is several times as fast.
        short = codes.astype(np.uint16) if len(numbers) <= 1 << 16 else codes
        order = np.argsort(short, kind="stable")
        grouped = rows.pick(order)
        for group in self._groups(grouped, codes[order]):
            self._fold_group(grouped.keys[group.start], grouped, group)
        self._fire(limit_us)
        self._deliver()
        return True

    def _groups(self, rows: Rows, codes: Longs) -> list[_Group]:
        ends = self._ends(rows.values)
        folding = self._folding
        starts = group_starts(rows.times_us, codes, ends, folding.timeout_us, folding.eager)
        stops = np.append(starts[1:], len(rows))
        columns = (
            starts,
            stops,
            np.logical_or.reduceat(ends, starts),
            rows.times_us[starts],
            rows.times_us[stops - 1],
            rows.offsets[stops - 1],
            np.minimum.reduceat(rows.offsets, starts),
            np.maximum.reduceat(rows.offsets, starts),
            np.minimum.reduceat(rows.high_us, starts),  # it ascends with the offset
        )
        return list(map(_Group._make, zip(*(each.tolist() for each in columns), strict=True)))

    def _fold_group(self, key: bytes, rows: Rows, group: _Group) -> None:
        folding = self._folding
        found = folding.objects.by_key.get(key)
        if found is not None and folding.objects.over_us(found) < group.first_us:
            self._retire(found, "timeout")
            found = None
        state, changed = self._call(found, key, rows, group)
        if found is None:
            found = folding.place(key, state, group.first_us, group.lowest_offset)
        if changed is not None:
            found.state = changed
        found.count += group.stop - group.start
        found.last_us, found.tail_offset = group.last_us, group.tail_offset
        found.first_offset = min(found.first_offset, group.lowest_offset)
        found.last_offset = max(found.last_offset, group.highest_offset)
        if group.ended:
            self._retire(found, "end")
        else:
            folding.measure(found)
            if found.unsaved is None or group.lowest_offset < found.unsaved:
                folding.objects.unsaved(found, group.lowest_offset, group.high_us)
            folding.objects.queue(found)

    def _call(
        self, found: OpenObject[S] | None, key: bytes, rows: Rows, group: _Group
    ) -> tuple[S, S | None]:
        start, stop = group.start, group.stop
        run = Run(
            key, rows.values[start:stop], rows.times_us[start:stop], rows.offsets[start:stop]
        )
        try:
            state = self._stateful.open(key) if found is None else found.state
            return state, self._stateful.on_run(state, run)
        except Exception as error:
            raise HandlerError(
                f"on_run failed for key {key[:80]!r}, partition {self._partition}, offset"
                f" {group.lowest_offset} and {len(run.values) - 1} more: {type(error).__name__}:"
                f" {error}",
                key=key,
                partition=self._partition,
                offset=group.lowest_offset,
            ) from error

    # --- the end of objects ----------------------------------------------------------------

    def _retire(self, found: OpenObject[S], reason: Reason) -> None:
        folding = self._folding
        turn: _Turn
        if reason == "end" and folding.eager:
            # The next object of the key may begin in the same instant: its rows are not used up.
            turn, position = (found.last_us, 0, found.tail_offset), found.tail_offset + 1
        else:
            over_us = found.last_us if reason == "end" else folding.objects.over_us(found)
            turn, position = (over_us, 1, found.key), folding.position
        self._over.append((turn, found, folding.retire(found, reason, position)))

    def _fire(self, limit_us: int) -> None:
        while (due := self._folding.objects.next_due(limit_us)) is not None:
            self._retire(due[1], "timeout")

    def _deliver(self) -> None:
        over, self._over = self._over, []
        for _, found, about in sorted(over, key=lambda each: each[0]):
            self._folding.deliver(found, about)


def group_starts(
    times_us: Longs, codes: Longs, ends: Flags, timeout_us: int | None, eager: bool
) -> Longs:
    """The first row of each object, among rows by (code of the key, time): another key, a silence,
    or an end before it."""
    fresh = codes[1:] != codes[:-1]
    if timeout_us is not None:
        fresh |= times_us[1:] - times_us[:-1] > timeout_us
    if eager:
        fresh |= ends[:-1]
    else:  # an end takes in all fragments of its own time
        end = np.maximum.accumulate(np.where(ends, np.arange(len(codes)), -1))[:-1]
        ended = (end >= 0) & (times_us[end] == times_us[:-1]) & (codes[end] == codes[:-1])
        fresh |= ended & (times_us[1:] != times_us[:-1])
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(fresh) + 1))
