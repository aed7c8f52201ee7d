"""A bucket of keys as one state of Spark: Python is called once for thousands of rows."""

from __future__ import annotations

import gc
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from penstock.spark.buckets import token_of
from penstock.spark.engines import Maker
from penstock.spark.families import Family, Lot
from penstock.spark.lineage import Lineage
from penstock.spark.packing import by_bucket, is_packed, unpack
from penstock.spark.spread import number_of

COLUMNS = "key binary, value binary, reason string, count bigint, first_us bigint, last_us bigint"

MOST_KEPT = 64  # buckets that a worker keeps in memory for the next micro-batch
_kept: OrderedDict[tuple[str, int], Family] = OrderedDict()


class BucketProcessor(StatefulProcessor):
    """Runs buckets on packed rows."""

    def __init__(self, make: Maker, idle_after: float | None) -> None:
        self._make = make
        self._name = secrets.token_hex(8)  # tells the buckets of one operator from another's
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
        lots = unpack(bytes(packed) for frame in rows for packed in frame["rows"])
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        with _no_collection():
            bucket = self._open(number)
            found = bucket.take(lots, now_ms * 1000)
            self._close(number, bucket)
        self._watch(now_ms)
        yield from _frames(found)

    def handleExpiredTimer(  # noqa: N802
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """No rows have come for so long that time goes on with the clock."""
        number, now_ms = number_of(int(key[0])), timerValues.getCurrentProcessingTimeInMs()
        bucket = self._open(number)
        found = bucket.tick(now_ms * 1000)
        self._close(number, bucket)
        self._watch(now_ms)
        yield from _frames(found)

    def close(self) -> None:
        """Nothing is open here."""

    def _watch(self, now_ms: int) -> None:
        """Sets the timer of a bucket anew."""
        if self._idle_ms is None:
            return
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(now_ms + self._idle_ms)

    def _open(self, number: int) -> Family:
        """As the state store has it. What this worker kept is used only if it is the same: the
        store may have taken another worker's work, or none."""
        kept = _kept.pop((self._name, number), None)
        stored = self._head.get()
        head = None if stored is None else bytes(stored[0])
        if kept is not None and head is not None and kept.token == token_of(head):
            return kept
        chunks = [] if head is None else [bytes(chunk) for (chunk,) in self._log.get()]
        return Family(self._make, head, chunks)

    def _close(self, number: int, bucket: Family) -> None:
        saved = bucket.save()
        if saved.replaces:
            self._log.put([(saved.chunk,)])
        else:
            self._log.appendValue((saved.chunk,))
        self._head.update((saved.head,))
        _kept[self._name, number] = bucket
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)


class BatchRunner:
    """Runs buckets on all that there is: rows come by bucket, and in the order in which they count.
    For `mapInArrow`."""

    def __init__(self, make: Maker) -> None:
        self._make = make

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results; all sessions are over in the end."""
        current: tuple[int, Family] | None = None
        for batch in batches:
            for name, lots in _buckets(batch):
                if current is None or current[0] != name:
                    yield from [] if current is None else current[1].flush()
                    current = name, Family(self._make, None, ())
                yield from current[1].take(lots, 0)
        yield from [] if current is None else current[1].flush()


def _buckets(batch: pa.RecordBatch) -> Iterator[tuple[int, Iterable[Lot]]]:
    """The names of buckets and their rows, in the order of a batch."""
    if is_packed(batch.schema.names):
        for name, packed in zip(*(batch.column(each) for each in ("bucket", "rows")), strict=True):
            yield name.as_py(), unpack([packed.as_buffer()])
    elif batch.num_rows:
        for name, rows in by_bucket(batch):
            yield name, [Lot(Lineage.alone(number_of(name)), rows)]


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


def _frames(found: list[pa.RecordBatch]) -> Iterator[pd.DataFrame]:
    """Columns stay those of Arrow: no object is made for a value."""
    for batch in found:
        yield batch.to_pandas(types_mapper=pd.ArrowDtype)
