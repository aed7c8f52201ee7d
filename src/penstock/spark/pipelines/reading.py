"""From a file to a Pipeline: names, types and settings are checked, all problems told at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from penstock.consumers.stateful import LatePolicy
from penstock.errors import InvalidError
from penstock.spark.meant import did_you_mean
from penstock.spark.options import SOURCE_NAMES, parse_options
from penstock.spark.pipelines import fields as f
from penstock.spark.pipelines.fields import Fields
from penstock.spark.pipelines.lines import Lines
from penstock.spark.pipelines.problems import Problem, SpecError
from penstock.spark.pipelines.spec import (
    AVAILABLE_NOW,
    Mode,
    Pipeline,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    Step,
    StepKind,
    Watermark,
)
from penstock.spark.pipelines.sql import tables_in
from penstock.spark.sink_options import SINK_NAMES, parse_sink_options

FABRIC = ("servers", "path", "namespace")
FILE_FORMATS = ("json", "csv", "text", "parquet", "orc")
MODES: Mapping[str, tuple[Mode, ...]] = {
    "topic": ("append", "complete"),
    "queue": ("append", "complete"),
    "files": ("append",),
    "console": ("append", "complete", "update"),
    "memory": ("append", "complete"),
}
_SESSION_TIMES = ("timeout", "delay", "idle_after")
_SESSION_CALLS = ("end", "fragment_id")


def read_pipeline(file: str | Path) -> Pipeline:
    """Reads and checks a file, without Spark and without a node. SpecError with all problems."""
    path = Path(file).resolve()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"{file} cannot be read: {error.strerror}", advice=" ") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        raise SpecError.of(str(file), [Problem(line, f"no TOML: {error}")]) from None
    found: list[Problem] = []
    pipeline = _Reader(path, tables, Lines(text), found).pipeline()
    if found:
        raise SpecError.of(str(file), found)
    return pipeline


class _Reader:
    def __init__(
        self, file: Path, tables: dict[str, Any], lines: Lines, found: list[Problem]
    ) -> None:
        self._file = file
        self._lines = lines
        self._top = Fields(tables, (), lines, found)
        self._names: dict[str, str] = {}  # of sources and steps so far, and what they are
        self._fabric: dict[str, str] = {}
        self._every: float | None = None

    def pipeline(self) -> Pipeline:
        top = self._top
        name = top.take("name", f.a_text, self._file.stem)
        checkpoint = self._path(top.take("checkpoint", f.a_text, ""))
        self._fabric = self._own_fabric(top)
        self._every = top.take("trigger", a_trigger, None)
        sources = [self._source(*each) for each in top.tables("source").items()]
        steps = [self._step(*each) for each in top.tables("step").items()]
        sinks = [self._sink(*each) for each in top.tables("sink").items()]
        if not sources:
            top.problem("there is no source: give a table [source.NAME]")
        if not sinks:
            top.problem("there is no sink: give a table [sink.NAME]")
        if not checkpoint and any(each and each.kind != "memory" for each in sinks):
            top.problem("the file needs `checkpoint`: a folder for what survives a restart")
        top.refuse_rest()
        pipeline = Pipeline(
            self._file, name, checkpoint, self._lines,
            tuple(filter(None, sources)), tuple(filter(None, steps)), tuple(filter(None, sinks)),
        )  # fmt: skip
        self._check_queues(pipeline)
        return pipeline

    def _check_queues(self, pipeline: Pipeline) -> None:
        for source in pipeline.sources:
            sinks = pipeline.sinks_of(source.name)
            if source.kind == "queue" and len(sinks) > 1:
                self._top.problem_at(
                    self._lines.of("source", source.name, "queue"),
                    f"sinks {', '.join(sinks)} would share the messages of queue "
                    f"{source.target!r}: each is a query of its own, and gets what others do not",
                )

    def _path(self, text: str) -> str:
        """Relative to the folder of the file, unless it is a URL."""
        return text if not text or "://" in text else str(self._file.parent / text)

    def _own_fabric(self, table: Fields) -> dict[str, str]:
        given = {name: table.take(name, f.a_text, "") for name in FABRIC if table.has(name)}
        if "path" in given:
            given["path"] = self._path(given["path"])
        return given

    def _named(self, name: str, table: Fields, what: str) -> None:
        try:
            f.a_name(name)
        except ValueError as error:
            table.problem(f"{name!r} cannot be a name: {error}")
        if name in self._names:
            table.problem(f"{name!r} is the name of a {self._names[name]} already")
        self._names[name] = what

    def _known(self, table: Fields, name: str, setting: str) -> None:
        if name not in self._names:
            meant = did_you_mean(name, self._names)
            told = "" if meant else f"; there are {', '.join(self._names) or 'none'}"
            table.problem(f"there is no source or step {name!r} before this{meant}{told}", setting)

    def _watermark(self, table: Fields) -> Watermark | None:
        if not table.has("watermark"):
            return None
        given = table.sub("watermark")
        column, delay = given.need("column", f.a_text, ""), given.need("delay", f.a_duration, 0.0)
        given.refuse_rest()
        return Watermark(column, delay)

    # --- sources -----------------------------------------------------------------------------

    def _source(self, name: str, table: Fields) -> Source | None:
        self._named(name, table, "source")
        kind: SourceKind | None = table.one_of(get_args(SourceKind))  # type: ignore[assignment]
        if kind is None:
            return None
        watermark = self._watermark(table)
        if kind in ("topic", "queue"):
            target = table.take(kind, f.a_text, "?")
            columns = table.take("json", f.a_text, "")
            options = self._penstock(table, kind, target, SOURCE_NAMES, parse_options)
            table.refuse_rest(SOURCE_NAMES)
            return Source(name, kind, target, options, "penstock", columns, watermark)
        options = table.take("options", f.options_of, dict[str, str]())
        if kind == "rate":
            target = str(table.take("rate", f.a_count, 1))
            options = {"rowsPerSecond": target, **options}
            table.refuse_rest()
            return Source(name, kind, target, options, "rate", "", watermark)
        target = self._path(table.take("files", f.a_text, ""))
        form = table.need("format", f.one_of(*FILE_FORMATS), "text")
        columns = table.take("columns", f.a_text, "")
        if not columns and form != "text" and not table.has("columns"):
            table.problem(f"files of {form} need `columns`, as 'user string, ms bigint'", "format")
        table.refuse_rest()
        return Source(name, kind, target, options, form, columns, watermark)

    def _penstock(
        self,
        table: Fields,
        kind: str,
        target: str,
        names: Sequence[str],
        parse: Callable[[Mapping[str, str]], object],
    ) -> dict[str, str]:
        """Options of `format("penstock")`, by their own names and checked by itself."""
        place = {**self._fabric, **self._own_fabric(table)}
        if table.has("path"):
            place.pop("servers", None)
        elif table.has("servers"):
            place.pop("path", None)
        given = {key: f.option_text(value) for key, value in table.rest(names).items()}
        options = {**place, **given, kind: target}
        try:
            parse(options)
        except InvalidError as error:
            wrong = next((key for key in given if error.message.startswith(key)), kind)
            table.problem(error.message, wrong)
        return options

    # --- steps -------------------------------------------------------------------------------

    def _step(self, name: str, table: Fields) -> Step | None:
        kind: StepKind | None = table.one_of(get_args(StepKind))  # type: ignore[assignment]
        step = None if kind is None else self._step_of(name, kind, table)
        self._named(name, table, "step")  # only later ones see it
        return step

    def _step_of(self, name: str, kind: StepKind, table: Fields) -> Step:
        watermark = self._watermark(table)
        if kind == "sql":
            text = table.take("sql", f.a_text, "")
            inputs, unknown = tables_in(text, self._names)
            for other, before in unknown:
                line = self._lines.within((*table.path, "sql"), before)
                meant = did_you_mean(other, self._names)
                table.problem_at(line, f"there is no source or step {other!r}{meant}")
            table.refuse_rest()
            return Step(name, kind, text, inputs, {}, watermark)
        inputs = table.need("from", f.some_texts, ())
        for each in inputs:
            self._known(table, each, "from")
        settings: dict[str, Any] = {}
        text = ""
        if kind == "python":
            text = table.take("python", f.an_import, "")
            settings = table.take("options", f.a_table, {})
        else:
            settings = self._columns(table)
            if len(inputs) > 1:
                table.problem(f"{kind} takes rows from one place", "from")
            if kind == "stateful":
                text = table.take("stateful", f.an_import, "")
            else:
                settings |= self._sessions(table.sub("sessions"))
        table.refuse_rest()
        return Step(name, kind, text, inputs, settings, watermark)

    def _columns(self, table: Fields) -> dict[str, Any]:
        names = ("key", "value", "time")
        found: dict[str, Any] = {
            each: table.take(each, f.a_text, each) for each in names if table.has(each)
        }
        if table.has("buckets"):
            found["buckets"] = table.take("buckets", f.a_count, 1)
        return found

    def _sessions(self, table: Fields) -> dict[str, Any]:
        found: dict[str, Any] = {
            each: table.take(each, f.a_duration, 0.0) for each in _SESSION_TIMES if table.has(each)
        }
        found |= {
            each: table.take(each, f.an_import, "") for each in _SESSION_CALLS if table.has(each)
        }
        if table.has("end_with"):
            found["end_with"] = table.take("end_with", f.a_text, "")
            if table.has("end"):
                table.problem("end and end_with: give one of them", "end_with")
        if table.has("late"):
            found["late"] = table.take("late", f.one_of(*get_args(LatePolicy)), "ignore")
        if not {"end", "end_with", "timeout"} & found.keys():
            table.problem("sessions never end: give `end`, `end_with` or `timeout`")
        table.refuse_rest()
        return found

    # --- sinks -------------------------------------------------------------------------------

    def _sink(self, name: str, table: Fields) -> Sink | None:
        try:
            f.a_name(name)
        except ValueError as error:
            table.problem(f"{name!r} cannot be a name: {error}")
        source = table.need("from", f.a_text, "")
        if table.has("from"):
            self._known(table, source, "from")
        kind: SinkKind | None = table.one_of(get_args(SinkKind))  # type: ignore[assignment]
        if kind is None:
            return None
        mode: Mode = table.take("mode", f.one_of(*MODES[kind]), "append")
        every = table.take("trigger", a_trigger, self._every)
        options: dict[str, str] = table.take("options", f.options_of, {})
        sink = Sink(name, source, kind, "", options, kind, mode, every)
        if kind in ("topic", "queue"):
            sink = self._messages(sink, table)
        elif kind == "files":
            partition_by: tuple[str, ...] = table.take("partition_by", f.some_texts, ())
            sink = replace(
                sink,
                target=self._path(table.take("files", f.a_text, "")),
                format=table.take("format", f.one_of(*FILE_FORMATS), "parquet"),
                partition_by=partition_by,
            )
        elif kind == "memory":
            sink = replace(sink, target=table.take("memory", f.a_name, name))
        else:
            table.take("console", f.a_truth, True)
        table.refuse_rest()
        return sink

    def _messages(self, sink: Sink, table: Fields) -> Sink:
        target = table.take(sink.kind, f.a_text, "?")
        sink = replace(
            sink,
            target=target,
            format="penstock",
            json=table.take("json", f.a_truth, False),
            key=table.take("key", f.a_text, "") or None,
        )
        options = self._penstock(table, sink.kind, target, SINK_NAMES, parse_sink_options)
        table.refuse_rest(SINK_NAMES)
        return replace(sink, options={**sink.options, **options})


def a_trigger(value: Any) -> float | None:
    """Seconds between micro-batches; None: what is there now, and no more."""
    if value == AVAILABLE_NOW:
        return None
    try:
        return f.a_duration(value)
    except ValueError:
        raise ValueError(f"use {AVAILABLE_NOW!r}, or how often, as 5s") from None
