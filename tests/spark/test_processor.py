"""What a worker kept in memory never counts for more than what the state store has taken."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pandas as pd
from pyspark.sql.streaming.stateful_processor import TimerValues

from penstock.consumers.generator import Clicks, is_end
from penstock.consumers.sessions import Sessionizer, decode_session, session_order
from penstock.spark import processor
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


def attempt(handle: Handle, worker: BucketProcessor, rows: Any) -> list[bytes]:
    worker.init(handle)
    found = worker.handleInputRows((names()[0],), iter(rows), TimerValues())
    return [value for frame in found for value in frame["value"]]


@pytest.mark.parametrize("seed", range(5))
def test_attempts_that_were_given_up_leave_nothing_behind(seed, monkeypatch) -> None:
    chance = random.Random(seed)
    clicks = Clicks(seed=seed, blocks=2, chains=40)
    handle = Handle()
    worker = BucketProcessor(
        Sessionizer(end=is_end, timeout=clicks.timeout, delay=clicks.delay, fragment_id=bytes)
    )
    memories: list[Any] = [type(processor._kept)() for _ in range(2)]  # of two processes
    found: list[bytes] = []
    for rows in clicks.batches(100):
        frame = pd.DataFrame(
            {"key": rows.keys, "value": rows.values, "time_us": rows.times_us,
             "place": rows.offsets}
        )  # fmt: skip
        shuffled = frame.sample(frac=1, random_state=seed)
        halves = [shuffled.iloc[:50], shuffled.iloc[50:]]
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
