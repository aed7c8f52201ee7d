"""What a worker kept in memory never counts for more than what the state store has taken."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import pytest

pytest.importorskip("pyspark")

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues

from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.sessions import Sessionizer, decode_session, session_order
from penstock.spark import processor
from penstock.spark.engines import InColumns, OneByOne
from penstock.spark.packing import pack
from penstock.spark.processor import BucketProcessor
from penstock.spark.spread import names


class Cell:
    """A state variable of Spark, of either kind."""

    def __init__(self, store: dict[str, list[tuple[bytes, ...]]], name: str) -> None:
        self.store, self.name = store, name

    def update(self, value: tuple[bytes]) -> None:
        self.store[self.name] = [value]

    def appendValue(self, value: tuple[bytes]) -> None:  # noqa: N802
        self.store.setdefault(self.name, []).append(value)

    def put(self, values: list[tuple[bytes, ...]]) -> None:
        self.store[self.name] = values


class ValueCell(Cell):
    def get(self) -> tuple[bytes, ...] | None:
        found = self.store.get(self.name)
        return found[0] if found else None


class ListCell(Cell):
    def get(self) -> Any:
        return iter(self.store.get(self.name, []))


class Handle:
    """One state of Spark; what is done in an attempt can be taken back."""

    def __init__(self) -> None:
        self.store: dict[str, list[tuple[bytes, ...]]] = {}

    def getValueState(self, name: str, schema: str) -> ValueCell:  # noqa: N802
        return ValueCell(self.store, name)

    def getListState(self, name: str, schema: str) -> ListCell:  # noqa: N802
        return ListCell(self.store, name)


def packed(rows: Any, order: Any) -> pd.DataFrame:
    """Rows of bucket 0 as a worker gets them."""
    columns = {
        "bucket": np.zeros(len(rows), np.int32), "key": rows.keys, "value": rows.values,
        "time_us": rows.times_us, "place": rows.offsets,
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(columns).take(pa.array(order))
    [found] = pack([batch])
    return found.to_pandas()


def attempt(handle: Handle, worker: BucketProcessor, rows: Any) -> list[bytes]:
    worker.init(handle)
    found = worker.handleInputRows((names()[0],), iter(rows), TimerValues())
    return [value for frame in found for value in frame["value"]]


@pytest.mark.parametrize("engine", [OneByOne, InColumns])
@pytest.mark.parametrize("seed", range(5))
def test_attempts_that_were_given_up_leave_nothing_behind(seed, engine, monkeypatch) -> None:
    chance = random.Random(seed)
    clicks = Clicks(seed=seed, blocks=2, chains=40)
    handle = Handle()
    sessionizer = Sessionizer(
        end=is_end, timeout=clicks.timeout, delay=clicks.delay, fragment_id=bytes
    )
    worker = BucketProcessor(partial(engine, sessionizer), None)
    memories: list[Any] = [type(processor._kept)() for _ in range(2)]  # of two processes
    found: list[bytes] = []
    for rows in clicks.batches(100):
        order = np.random.default_rng(seed).permutation(len(rows))
        halves = [packed(rows, half) for half in np.array_split(order, 2) if len(half)]
        before = copy.deepcopy(handle.store)
        while True:
            monkeypatch.setattr(processor, "_kept", chance.choice(memories))
            values = attempt(handle, worker, halves)
            if chance.random() < 0.7:
                break
            handle.store.clear()
            handle.store.update(copy.deepcopy(before))  # the task failed after its work was done
        found += values
    records = sorted(map(decode_session, found), key=session_order)
    assert records == sorted(clicks.answer(), key=session_order)
