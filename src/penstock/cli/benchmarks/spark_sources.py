"""What Spark's reading of a topic is compared with: the least that a source in Python can cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark import arrow
from penstock.spark.options import parse_options
from penstock.spark.source import PenstockSource, TopicReader

_PIECE_ROWS = 20_000
_PIECES = 4  # distinct ones, so that no cache of a processor holds all


class ReadySource(DataSource):
    """Rows that are in Arrow's form before the clock runs; options rows, bytes, tasks."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "bench-ready"

    def schema(self) -> str:
        """The columns of a topic."""
        return arrow.COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """All rows."""
        return _ReadyReader(self.options)


class _ReadyReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._tasks = int(options["rows"]), int(options["tasks"])
        self._bytes = int(options["bytes"])

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        pieces = [_piece(seed, self._bytes) for seed in range(_PIECES)]
        left = self._rows // self._tasks
        number = 0
        while left > 0:
            piece = pieces[number % _PIECES]
            yield piece if left >= _PIECE_ROWS else piece.slice(0, left)
            left -= _PIECE_ROWS
            number += 1


@cache  # a worker makes them in the run that warms it up
def _piece(seed: int, size: int) -> pa.RecordBatch:
    rows = _PIECE_ROWS
    data = np.random.default_rng(seed).bytes(rows * size)
    ends = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(data)])
    keys = pa.array([b"%d" % each for each in range(rows)], pa.binary())
    times = pa.array(np.arange(rows), pa.timestamp("us", tz="UTC"))
    columns = [keys, values, pa.repeat("bench", rows), pa.array(np.zeros(rows, np.int32)),
               pa.array(np.arange(rows)), times]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=arrow.PLAIN)


class RowSource(PenstockSource):
    """The same topic, row by row instead of by Arrow."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "bench-rows"

    def reader(self, schema: StructType) -> TopicReader:
        """A topic between two places."""
        return _RowReader(parse_options(self.options))


class _RowReader(TopicReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
