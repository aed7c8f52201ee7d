"""A bucket of keys as one state of Spark: Python is called once for thousands of rows."""

from __future__ import annotations

import gc
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from penstock.consumers.stateful import Stateful
from penstock.consumers.steps import Step
from penstock.spark.buckets import Bucket, token_of
from penstock.spark.spread import number_of

OUTPUT = "key binary, value binary, reason string, count bigint, first_us bigint, last_us bigint"
LATE = "late"  # the reason of a row that is not a result, but a fragment that came too late

MOST_KEPT = 64  # buckets that a worker keeps in memory for the next micro-batch
_kept: OrderedDict[tuple[str, int], Bucket[Any]] = OrderedDict()


class BucketProcessor(StatefulProcessor):
    """Runs a Stateful over buckets. Rows have the columns bucket, key, value, time_us, place."""

    def __init__(self, stateful: Stateful[Any]) -> None:
        self._stateful = stateful
        self._name = secrets.token_hex(8)  # tells the buckets of one operator from another's
        idle_after = stateful.completion.idle_after
        self._idle_ms = None if idle_after is None else max(1, round(idle_after * 1000))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before all else, in a worker."""
        self._handle = handle
        self._head = handle.getValueState("head", "head binary")
        self._log = handle.getListState("log", "chunk binary")

    def handleInputRows(  # noqa: N802
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """The rows of a bucket in a micro-batch; they count in the order of `place`."""
        number = number_of(int(key[0]))
        frames = list(rows)
        whole = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        places = whole["place"].to_numpy()
        if bool((places[1:] < places[:-1]).any()):
            whole = whole.iloc[np.argsort(places, kind="stable")]
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        with _no_collection():
            bucket = self._open(number)
            step = bucket.take(
                whole["key"].tolist(),
                whole["value"].tolist(),
                np.ascontiguousarray(whole["time_us"].to_numpy(np.int64)),
                now_ms * 1000,
            )
            self._close(number, bucket)
        self._watch(now_ms)
        yield from _output(step)

    def handleExpiredTimer(  # noqa: N802
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """No rows have come for so long that time goes on with the clock."""
        number, now_ms = number_of(int(key[0])), timerValues.getCurrentProcessingTimeInMs()
        bucket = self._open(number)
        step = bucket.tick(now_ms * 1000)
        self._close(number, bucket)
        self._watch(now_ms)
        yield from _output(step)

    def close(self) -> None:
        """Nothing is open here."""

    def _watch(self, now_ms: int) -> None:
        """Sets the timer of a bucket anew."""
        if self._idle_ms is None:
            return
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(now_ms + self._idle_ms)

    def _open(self, number: int) -> Bucket[Any]:
        """As the state store has it. What this worker kept is used only if it is the same: the
        store may have taken another worker's work, or none."""
        kept = _kept.pop((self._name, number), None)
        stored = self._head.get()
        head = None if stored is None else bytes(stored[0])
        if kept is not None and head is not None and kept.token == token_of(head):
            return kept
        chunks = [] if head is None else [bytes(chunk) for (chunk,) in self._log.get()]
        return Bucket(self._stateful, number, head, chunks)

    def _close(self, number: int, bucket: Bucket[Any]) -> None:
        saved = bucket.save()
        if saved.replaces:
            self._log.put([(saved.chunk,)])
        else:
            self._log.appendValue((saved.chunk,))
        self._head.update((saved.head,))
        _kept[self._name, number] = bucket
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Many objects are made, none of them in cycles: looking for some takes as long as the work."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _output(step: Step) -> Iterator[pd.DataFrame]:
    results: list[tuple[bytes, bytes, str, int, int, int]] = [
        (each.key, each.value, each.about.reason, each.about.count, each.about.first_us,
         each.about.last_us)
        for each in step.results
    ]  # fmt: skip
    results += [
        (late.key, late.value, LATE, 1, late.time_us, late.time_us) for late, _ in step.late
    ]
    if results:
        names = ["key", "value", "reason", "count", "first_us", "last_us"]
        yield pd.DataFrame(dict(zip(names, map(list, zip(*results, strict=True)), strict=True)))
