"""The two ways to assemble the rows of a bucket, behind one face."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.consumers.moved import Moved
from penstock.consumers.sessions import Sessionizer
from penstock.consumers.stateful import Stateful
from penstock.consumers.steps import Step
from penstock.spark.buckets import Bucket, Saved
from penstock.spark.records import LATE, OUTPUT
from penstock.spark.session_bucket import SessionBucket
from penstock.wire.columns import Longs


class Engine(Protocol):
    """A bucket. Rows have the columns key, value, time_us and, maybe, end; results `OUTPUT`'s."""

    @property
    def token(self) -> bytes:
        """Which `save` it is as of."""

    def take(self, rows: pa.RecordBatch, now_us: int) -> list[pa.RecordBatch]:
        """Takes rows, in the order in which they are to count."""

    def tick(self, now_us: int) -> list[pa.RecordBatch]:
        """The clock has gone on without rows."""

    def flush(self) -> list[pa.RecordBatch]:
        """There is nothing more to come: time goes on for ever."""

    def parted(self, number: int, moved: Moved) -> Engine:
        """A bucket of keys that are no business of this one any more."""

    def save(self, *, full: bool = False) -> Saved:
        """What has to be stored; `full`: instead of all that was stored before."""


Maker = Callable[[int, bytes | None, Iterable[bytes]], Engine]
"""Makes a bucket from its number and what was stored of it."""


class OneByOne:
    """Any Stateful, by the consumers' assembler."""

    def __init__(
        self, stateful: Stateful[Any], number: int, head: bytes | None = None,
        chunks: Iterable[bytes] = (), *, bucket: Bucket[Any] | None = None,
    ) -> None:  # fmt: skip
        self._stateful = stateful
        self._bucket = bucket or Bucket(stateful, number, head, chunks)

    @property
    def token(self) -> bytes:
        return self._bucket.token

    def take(self, rows: pa.RecordBatch, now_us: int) -> list[pa.RecordBatch]:
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        return _results(self._bucket.take(keys, values, _times(rows), now_us))

    def tick(self, now_us: int) -> list[pa.RecordBatch]:
        return _results(self._bucket.tick(now_us))

    def flush(self) -> list[pa.RecordBatch]:
        return _results(self._bucket.flush())

    def parted(self, number: int, moved: Moved) -> OneByOne:
        return OneByOne(self._stateful, number, bucket=self._bucket.parted(number, moved))

    def save(self, *, full: bool = False) -> Saved:
        return self._bucket.save(full=full)


class InColumns:
    """Sessions, in columns."""

    def __init__(
        self, sessionizer: Sessionizer, number: int, head: bytes | None = None,
        chunks: Iterable[bytes] = (), *, bucket: SessionBucket | None = None,
    ) -> None:  # fmt: skip
        self._sessionizer = sessionizer
        self._bucket = bucket or SessionBucket(sessionizer, head, chunks)

    @property
    def token(self) -> bytes:
        return self._bucket.token

    def take(self, rows: pa.RecordBatch, now_us: int) -> list[pa.RecordBatch]:
        ends = None
        if "end" in rows.schema.names:
            ends = rows.column("end").to_numpy(zero_copy_only=False)
        return self._bucket.take(
            rows.column("key"), rows.column("value"), _times(rows), now_us, ends
        )

    def tick(self, now_us: int) -> list[pa.RecordBatch]:
        return self._bucket.tick(now_us)

    def flush(self) -> list[pa.RecordBatch]:
        return self._bucket.flush()

    def parted(self, number: int, moved: Moved) -> InColumns:
        return InColumns(self._sessionizer, number, bucket=self._bucket.parted(moved))

    def save(self, *, full: bool = False) -> Saved:
        return self._bucket.save(full=full)


def _times(rows: pa.RecordBatch) -> Longs:
    return np.ascontiguousarray(rows.column("time_us").to_numpy(), np.int64)


def _results(step: Step) -> list[pa.RecordBatch]:
    rows: list[tuple[bytes, bytes, str, int, int, int]] = [
        (each.key, each.value, each.about.reason, each.about.count, each.about.first_us,
         each.about.last_us)
        for each in step.results
    ]  # fmt: skip
    rows += [(late.key, late.value, LATE, 1, late.time_us, late.time_us) for late, _ in step.late]
    if not rows:
        return []
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), OUTPUT, strict=True)
    ]
    return [pa.RecordBatch.from_arrays(columns, schema=OUTPUT)]
