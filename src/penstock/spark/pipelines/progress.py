"""How queries go on: from what Spark tells of each micro-batch to a row of figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


@dataclass
class Figures:
    """Of one query. `lag`: rows that wait in topics, None if no source tells."""

    query: str
    state: str = "starting"
    batch: int = -1
    rows: int = 0
    rows_per_second: float = 0.0
    batch_seconds: float = 0.0
    lag: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Watch:
    """The figures of a query that runs. Asked often enough, it counts every micro-batch, once:
    Spark keeps what it told of the last hundred."""

    def __init__(self, name: str, query: StreamingQuery) -> None:
        self.query = query
        self.figures = Figures(name)
        self._heard = ""  # when Spark told something last; a query without work tells the same

    def look(self) -> Figures:
        """The figures now."""
        for each in self.query.recentProgress:
            told = each if isinstance(each, dict) else json.loads(each.json)
            if told["timestamp"] > self._heard:
                self._heard = told["timestamp"]
                take(self.figures, told)
        self.figures.state = self._state()
        return self.figures

    def _state(self) -> str:
        if not self.query.isActive:
            return "failed" if self.query.exception() is not None else "done"
        return "running" if self.query.status["isTriggerActive"] else "waiting"


def take(figures: Figures, told: Mapping[str, Any]) -> None:
    """Enters what Spark tells of a micro-batch, or of a look that found nothing to do."""
    durations = told.get("durationMs", {})
    if "addBatch" in durations:
        figures.batch = told["batchId"]
        figures.batch_seconds = durations.get("triggerExecution", 0) / 1000
    figures.rows += told["numInputRows"]
    figures.rows_per_second = float(told.get("processedRowsPerSecond") or 0.0)
    lags = [lag for each in told["sources"] if (lag := lag_of(each)) is not None]
    figures.lag = sum(lags) if lags else None
    states = told.get("stateOperators", [])
    figures.state_rows = sum(each["numRowsTotal"] for each in states)
    figures.state_bytes = sum(each["memoryUsedBytes"] for each in states)
    figures.watermark = told.get("eventTime", {}).get("watermark")


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Rows of a topic between where a query is and where the topic ends."""
    end, latest = _positions(source.get("endOffset")), _positions(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    return sum(max(0, last - end.get(each, 0)) for each, last in latest.items())


def _positions(told: Any) -> dict[str, int] | None:
    try:
        offsets = json.loads(told) if isinstance(told, str) else told
    except ValueError:
        return None
    if not isinstance(offsets, dict) or not all(isinstance(n, int) for n in offsets.values()):
        return None
    return offsets
