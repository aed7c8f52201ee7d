"""Sessions as one would write them with Spark alone: a state and a call of Python for each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from penstock.consumers.generator import Clicks, is_end

_STATE = "times array<bigint>, texts array<binary>"
_OUTPUT = "key binary, count bigint, reason string"


class PerKey(StatefulProcessor):
    """Knows neither duplicates nor the order within a session: less work than ours."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before all else."""
        self._handle = handle
        self._state = handle.getValueState("session", _STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """The rows of a key."""
        times, texts = self._state.get() or ([], [])
        times, texts = list(times), list(texts)
        done = []
        for frame in rows:
            for time_us, text in zip(frame["time_us"], frame["value"], strict=True):
                times.append(time_us)
                texts.append(text)
                if is_end(text):
                    done.append((key[0], len(times), "end"))
                    times, texts = [], []
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        if times:
            self._state.update((times, texts))
            self._handle.registerTimer(max(times) // 1000 + self._timeout_ms)
        else:
            self._state.clear()
        if done:
            yield pd.DataFrame(done, columns=["key", "count", "reason"])

    def handleExpiredTimer(  # noqa: N802
        self, key: Any, timerValues: Any, expiredTimerInfo: Any  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Silence."""
        times, _ = self._state.get() or ([], [])
        self._state.clear()
        if len(times):
            done = [(key[0], len(times), "timeout")]
            yield pd.DataFrame(done, columns=["key", "count", "reason"])

    def close(self) -> None:
        """Nothing is open here."""


def per_key(df: DataFrame, clicks: Clicks) -> DataFrame:
    """Sessions of a topic's stream."""
    rows = df.withWatermark("timestamp", f"{clicks.delay:.0f} seconds").selectExpr(
        "key", "value", "timestamp", "unix_micros(timestamp) as time_us"
    )
    return rows.groupBy("key").transformWithStateInPandas(
        statefulProcessor=PerKey(clicks.timeout_us // 1000),
        outputStructType=_OUTPUT,
        outputMode="Append",
        timeMode="eventTime",
    )
