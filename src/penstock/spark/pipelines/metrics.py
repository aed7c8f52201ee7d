"""Figures of a pipeline for other programs: a text file of Prometheus, or records in a topic."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.spark.pipelines.progress import Figures

_GAUGES = {
    "rows_per_second": "Rows a second, in the last micro-batch.",
    "batch_seconds": "How long the last micro-batch took.",
    "lag": "Rows that wait in topics.",
    "state_rows": "Entries of the state.",
    "state_bytes": "Memory of the state.",
    "batch": "Number of the last micro-batch.",
}

Export = Callable[[str, Sequence[Figures]], None]


def prometheus(pipeline: str, every: Sequence[Figures]) -> str:
    """The figures as Prometheus reads them."""
    lines = [
        "# HELP penstock_pipeline_rows_total Rows that a query has read since it was started.",
        "# TYPE penstock_pipeline_rows_total counter",
        *_lines("rows_total", pipeline, [(each, each.rows) for each in every]),
        "# HELP penstock_pipeline_up Whether a query runs.",
        "# TYPE penstock_pipeline_up gauge",
        *_lines("up", pipeline, [(each, int(each.state in _UP)) for each in every]),
    ]
    for name, text in _GAUGES.items():
        known = [(each, getattr(each, name)) for each in every if getattr(each, name) is not None]
        lines.append(f"# HELP penstock_pipeline_{name} {text}")
        lines.append(f"# TYPE penstock_pipeline_{name} gauge")
        lines += _lines(name, pipeline, known)
    return "\n".join(lines) + "\n"


_UP = ("starting", "running", "waiting")


def _lines(name: str, pipeline: str, figures: Sequence[tuple[Figures, float]]) -> list[str]:
    start = f'penstock_pipeline_{name}{{pipeline="{_quoted(pipeline)}",query="'
    return [f'{start}{_quoted(each.query)}"}} {value}' for each, value in figures]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def to_file(file: Path) -> Export:
    """Replaces a file, all at once: a reader never sees half of it."""

    def export(pipeline: str, every: Sequence[Figures]) -> None:
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(prometheus(pipeline, every), encoding="utf-8")
        new.replace(file)

    return export


def to_topic(topic: Any) -> Export:
    """Publishes a record of JSON for each query, with the pipeline's name as key."""

    def export(pipeline: str, every: Sequence[Figures]) -> None:
        at = time.time()
        values = [
            json.dumps({"pipeline": pipeline, "time": at, **each.as_dict()}).encode()
            for each in every
        ]
        topic.publish_many(values, keys=[pipeline.encode()] * len(values))

    return export
