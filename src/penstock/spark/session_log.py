"""What is stored of the open sessions of a bucket: a head, and a log of rows.

Each micro-batch adds the rows that it left open, and the offsets of those that are gone. Once that
is more than what was there before, everything is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.consumers.fragments import NEVER_US
from penstock.consumers.stateful import Flags
from penstock.errors import ProtocolError
from penstock.spark.buckets import decoded
from penstock.wire.columns import Longs

VERSION = 2  # 1 is an assembler's

_ROWS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("time_us", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("fold_us", pa.int64()),
        pa.field("end", pa.bool_()),
    ]
)


class Head(msgspec.Struct, array_like=True):
    """Where a bucket stands. `since_us`: the clock when fragments came last, and the highest time
    of then."""

    version: int
    token: bytes
    next_offset: int
    high_us: int
    watermark_us: int
    since_us: int
    since_high_us: int
    base_bytes: int
    log_bytes: int

    @classmethod
    def start(cls) -> Head:
        """Nothing has come."""
        return cls(VERSION, b"", 0, NEVER_US, NEVER_US, 0, NEVER_US, 0, 0)

    @classmethod
    def decode(cls, packed: bytes) -> Head:
        """ProtocolError if it is damaged, or of another version."""
        head = decoded(packed, cls)
        if head.version != VERSION:
            raise ProtocolError(f"the state of a bucket of sessions is of version {head.version}")
        return head


class Chunk(NamedTuple):
    """Open rows, in columns."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    times_us: Longs
    offsets: Longs
    folds_us: Longs
    ends: Flags

    def encode(self, removed: Longs) -> bytes:
        """These rows are open now, and those with the offsets `removed` are not."""
        rows = pa.RecordBatch.from_arrays(list(map(pa.array, self)), schema=_ROWS)
        gone = pa.RecordBatch.from_arrays([pa.array(removed)], names=["offset"])
        return _stream(rows) + _stream(gone)

    @classmethod
    def decode(cls, chunks: Iterable[bytes]) -> Chunk:
        """What is open after all these. ProtocolError if one is damaged."""
        tables, removed = [_ROWS.empty_table()], [np.empty(0, np.int64)]
        for chunk in chunks:
            source = pa.BufferReader(chunk)
            try:
                tables.append(pa.ipc.open_stream(source).read_all().cast(_ROWS))
                removed.append(pa.ipc.open_stream(source).read_all()["offset"].to_numpy())
            except (pa.ArrowException, KeyError) as error:
                raise ProtocolError(f"the state of a bucket is damaged: {error}") from error
        whole = pa.concat_tables(tables)
        gone = np.isin(whole["offset"].to_numpy(), np.concatenate(removed))
        if gone.any():
            whole = whole.filter(pa.array(~gone))
        keys, values, *numbers = (each.combine_chunks() for each in whole.columns)
        return cls(keys, values, *(each.to_numpy(zero_copy_only=False) for each in numbers))


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
