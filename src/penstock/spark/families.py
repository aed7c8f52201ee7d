"""One state of Spark for a partition and all that came from it when its topic grew.

Each partition in it has a bucket, with its own time, as with a consumer. Where a partition handed
keys to a child, what is open of them goes over to the child's bucket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.spark.buckets import Saved, decoded
from penstock.spark.engines import Engine, Maker
from penstock.spark.lineage import Handed, Lineage

VERSION = 3


class Lot(NamedTuple):
    """Rows of one partition, by place."""

    line: Lineage
    rows: pa.RecordBatch


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    token: bytes
    heads: dict[int, bytes]


class _Chunk(msgspec.Struct, array_like=True, frozen=True):
    chunks: dict[int, bytes]


class Family:
    """Feed it with the rows of each micro-batch, then store what `save` gives."""

    def __init__(self, make: Maker, head: bytes | None, chunks: Iterable[bytes]) -> None:
        self._make = make
        self._lanes: dict[int, Engine] = {}
        self._heads: dict[int, bytes] = {}
        self._touched: set[int] = set()
        self.token = b""
        if head is not None:
            self._restore(decoded(head, _Head), [decoded(each, _Chunk) for each in chunks])

    def _restore(self, head: _Head, chunks: list[_Chunk]) -> None:
        if head.version != VERSION:
            raise ProtocolError(f"the state of a bucket is of version {head.version}")
        self.token, self._heads = head.token, dict(head.heads)
        for number, own in head.heads.items():
            log = [each.chunks[number] for each in chunks if number in each.chunks]
            self._lanes[number] = self._make(number, own, log)

    def take(self, lots: Iterable[Lot], now_us: int) -> list[pa.RecordBatch]:
        """Takes rows, parents before their children; those of a partition as they come."""
        found: list[pa.RecordBatch] = []
        for lot in sorted(lots, key=lambda each: each.line.partition):
            found += self._take(lot.line, lot.rows, now_us)
        return found

    def _take(self, line: Lineage, rows: pa.RecordBatch, now_us: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        lane = self._lane(line)
        for handed in line.handed:
            places = rows.column("place").to_numpy()
            if handed.child in self._lanes or not len(places) or places[-1] < handed.offset - 1:
                continue
            stop = int(np.searchsorted(places, handed.offset))
            if stop:
                found += lane.take(rows.slice(0, stop), now_us)
            rows = rows.slice(stop)
            self._hand_over(line.partition, handed)
        if rows.num_rows:
            found += lane.take(rows, now_us)
        return found

    def _lane(self, line: Lineage) -> Engine:
        number = line.partition
        if number not in self._lanes:
            if line.birth is not None and line.parent in self._lanes:
                self._hand_over(line.parent, line.birth)
            else:
                self._lanes[number] = self._make(number, None, ())
        self._touched.add(number)
        return self._lanes[number]

    def _hand_over(self, parent: int, handed: Handed) -> None:
        self._lanes[handed.child] = self._lanes[parent].parted(handed.child, handed.moved)
        self._touched |= {parent, handed.child}

    def tick(self, now_us: int) -> list[pa.RecordBatch]:
        """The clock has gone on without rows."""
        self._touched |= self._lanes.keys()
        return [each for lane in self._lanes.values() for each in lane.tick(now_us)]

    def flush(self) -> list[pa.RecordBatch]:
        """There is nothing more to come: time goes on for ever."""
        return [each for lane in self._lanes.values() for each in lane.flush()]

    def save(self) -> Saved:
        """What has changed since the last call, to be stored before the next rows come."""
        saved = {number: self._lanes[number].save() for number in sorted(self._touched)}
        replaces = any(each.replaces for each in saved.values())
        if replaces:  # there is one log: what is written anew is all of it
            saved |= {
                number: lane.save(full=True)
                for number, lane in self._lanes.items()
                if number not in saved or not saved[number].replaces
            }
        self._touched = set()
        self._heads |= {number: each.head for number, each in saved.items()}
        self.token = secrets.token_bytes(12)
        head = msgspec.msgpack.encode(_Head(VERSION, self.token, self._heads))
        chunks = {number: each.chunk for number, each in saved.items()}
        return Saved(head, msgspec.msgpack.encode(_Chunk(chunks)), replaces)
