"""A pipeline as values: what was read from a file, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.spark.pipelines.lines import Lines

SourceKind = Literal["topic", "queue", "files", "rate"]
StepKind = Literal["sql", "python", "sessions", "stateful"]
SinkKind = Literal["topic", "queue", "files", "console", "memory"]
Mode = Literal["append", "complete", "update"]

AVAILABLE_NOW = "available-now"


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may be, by a column."""

    column: str
    delay: float


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from. `columns`: of JSON values, as in DDL."""

    name: str
    kind: SourceKind
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
    columns: str = ""
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with rows. `text`: the SQL, or an import path."""

    name: str
    kind: StepKind
    text: str
    inputs: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go: a query of its own. `every`: seconds, None if it ends with what is there."""

    name: str
    input: str
    kind: SinkKind
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
    mode: Mode = "append"
    every: float | None = None
    json: bool = False
    key: str | None = None
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All of it. Paths are absolute."""

    file: Path
    name: str
    checkpoint: str
    lines: Lines
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    sinks: tuple[Sink, ...] = ()

    def edges(self) -> Iterator[tuple[str, str]]:
        """(from, to), by the names of nodes; sinks may have the name of a step."""
        for step in self.steps:
            yield from ((name, step.name) for name in step.inputs)
        for sink in self.sinks:
            yield sink.input, f"sink.{sink.name}"

    def sinks_of(self, source: str) -> list[str]:
        """The names of the sinks that rows of a source reach."""
        reached = {source}
        for step in self.steps:  # each stands behind its inputs
            if reached & set(step.inputs):
                reached.add(step.name)
        return [sink.name for sink in self.sinks if sink.input in reached]

    @property
    def servers(self) -> str | None:
        """Where the first topic or queue is that is not of a data directory."""
        options = [each.options for each in self.sources] + [each.options for each in self.sinks]
        return next((each["servers"] for each in options if "servers" in each), None)

    @property
    def available_now(self) -> bool:
        """Whether every query ends by itself."""
        return all(sink.every is None for sink in self.sinks)
