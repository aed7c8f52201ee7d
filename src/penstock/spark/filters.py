"""Conditions on partition, offset and timestamp that are met before rows reach Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as kinds

from penstock.spark.spans import Positions

_COMPARED = {
    kinds.EqualTo: pc.equal,
    kinds.GreaterThan: pc.greater,
    kinds.GreaterThanOrEqual: pc.greater_equal,
    kinds.LessThan: pc.less,
    kinds.LessThanOrEqual: pc.less_equal,
}


@dataclass(slots=True)
class Pushed:
    """Conditions that hold for all rows that are read; plain values, it travels to the workers.

    Those on partition and offset say what is read at all. The time of a message is its producer's
    and need not ascend: conditions on it choose among rows that were read.
    """

    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None
    times: list[tuple[Any, datetime]] = field(default_factory=list)

    def take(self, condition: kinds.Filter) -> bool:
        """Whether the condition is met from now on; otherwise it is Spark's to check."""
        name = ".".join(getattr(condition, "attribute", ()))
        if isinstance(condition, kinds.IsNotNull):
            return name in ("partition", "offset", "timestamp")  # they never are
        value = getattr(condition, "value", None)
        if name == "partition":
            return self._take_partition(condition, value)
        if name == "offset" and isinstance(value, int):
            return self._take_offset(condition, value)
        if name == "timestamp" and type(condition) in _COMPARED:
            return self._take_time(condition, value)
        return False

    def _take_time(self, condition: kinds.Filter, value: Any) -> bool:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return False  # of which zone is not for us to guess
        self.times.append((type(condition), value))
        return True

    def _take_partition(self, condition: kinds.Filter, value: Any) -> bool:
        wanted = value if isinstance(condition, kinds.In) else (value,)
        if not isinstance(condition, kinds.In | kinds.EqualTo):
            return False
        chosen = frozenset(each for each in wanted if each is not None)
        self.partitions = chosen if self.partitions is None else self.partitions & chosen
        return True

    def _take_offset(self, condition: kinds.Filter, value: int) -> bool:
        first, end = {
            kinds.EqualTo: (value, value + 1),
            kinds.GreaterThan: (value + 1, None),
            kinds.GreaterThanOrEqual: (value, None),
            kinds.LessThan: (0, value),
            kinds.LessThanOrEqual: (0, value + 1),
        }.get(type(condition), (None, None))
        if first is None:
            return False
        self.first = max(self.first, first)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)
        return True

    def narrowed(self, start: Positions, end: Positions) -> tuple[Positions, Positions]:
        """Of these offsets, those that can hold rows which are wanted."""
        chosen = [each for each in end if self.partitions is None or each in self.partitions]
        starts = {each: max(start.get(each, 0), self.first) for each in chosen}
        last = self.end
        ends = {each: end[each] if last is None else min(end[each], last) for each in chosen}
        return starts, ends

    def chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose times are wanted."""
        for kind, moment in self.times:
            column = rows.column("timestamp")
            rows = rows.filter(_COMPARED[kind](column, pa.scalar(moment, column.type)))
        return rows


def push(filters: Sequence[kinds.Filter]) -> tuple[Pushed, list[kinds.Filter]]:
    """Takes what can be taken of conditions that all must hold; the others are left to Spark."""
    pushed = Pushed()
    return pushed, [each for each in filters if not pushed.take(each)]
