"""From a Pipeline to streams of Spark."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidError, PenstockError
from penstock.spark.apps.places import as_bytes
from penstock.spark.operators import sessions, stateful
from penstock.spark.pipelines.problems import Problem, SpecError
from penstock.spark.pipelines.spec import Pipeline, Sink, Source, Step, Watermark
from penstock.spark.said import said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_CALLS = ("end", "fragment_id")


@dataclass
class Built:
    """The rows of every source and step by name, and the rows of every sink."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    outputs: dict[str, DataFrame] = field(default_factory=dict)


class EndsWith:
    """Whether a value ends with some bytes; travels to the workers."""

    def __init__(self, ending: bytes) -> None:
        self._ending = ending

    def __call__(self, value: bytes) -> bool:
        return value.endswith(self._ending)


def build(pipeline: Pipeline, spark: SparkSession) -> Built:
    """Streams for all sources, steps and sinks; nothing is read or started.

    Each source and step becomes a temporary view of its name. SpecError with all problems; what
    depends on something that is wrong is not looked at.
    """
    builder = _Builder(pipeline, spark)
    for source in pipeline.sources:
        builder.add(("source", source.name), source.name, partial(builder.source, source))
    for step in pipeline.steps:
        if all(name in builder.built.frames for name in step.inputs):
            path = ("step", step.name, step.kind)
            builder.add(path, step.name, partial(builder.step, step))
    for sink in pipeline.sinks:
        if sink.input in builder.built.frames:
            builder.output(sink)
    if builder.found:
        raise SpecError.of(str(pipeline.file), builder.found)
    return builder.built


class _Builder:
    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self.built = Built()
        self.found: list[Problem] = []

    def add(self, path: tuple[str, ...], name: str, make: Callable[[], DataFrame]) -> None:
        df = self._tried(path, make)
        if df is not None:
            df.createOrReplaceTempView(name)
            self.built.frames[name] = df

    def output(self, sink: Sink) -> None:
        path = ("sink", sink.name)
        df = self._tried(path, lambda: rows_for(sink, self.built.frames[sink.input]))
        if df is not None:
            self.built.outputs[sink.name] = df

    def _tried(self, path: tuple[str, ...], make: Callable[[], DataFrame]) -> DataFrame | None:
        from pyspark.errors import PySparkException

        try:
            return make()
        except PenstockError as error:
            line = self._pipeline.lines.of(*path)
            hint = error.hint if error.hint and error.hint != type(error).advice else ""
            told = f"{error.message} ({hint})" if hint.strip() else error.message
            self.found.append(Problem(line, told))
        except PySparkException as error:
            self.found.append(self._problem(path, error))
        return None

    def _problem(self, path: tuple[str, ...], error: Any) -> Problem:
        """What Spark says of SQL, with the line in the file."""
        told = said(error)
        lines = self._pipeline.lines
        if path[-1] != "sql":
            return Problem(lines.of(*path), told)
        [sql] = [each.text for each in self._pipeline.steps if each.name == path[1]]
        for context in error.getQueryContext() or ():
            before = sql[: max(0, context.startIndex())]
            return Problem(lines.within(path, before), told)
        if (at := _position(str(error))) is not None:
            return Problem(lines.within(path, "\n" * (at - 1)), told)
        return Problem(lines.of(*path), told)

    # --- sources and steps ---------------------------------------------------------------------

    def source(self, source: Source) -> DataFrame:
        from pyspark.sql import functions as call

        reader = self._spark.readStream.format(source.format).options(**source.options)
        if source.kind == "files":
            if source.columns:
                reader = reader.schema(source.columns)
            df = reader.load(source.target)
        else:
            df = reader.load()
            if source.columns:
                df = df.withColumn(
                    "json", call.from_json(call.col("value").cast("string"), source.columns)
                ).select("*", "json.*").drop("json")
        return _watermarked(df, source.watermark)

    def step(self, step: Step) -> DataFrame:
        inputs = [self.built.frames[name] for name in step.inputs]
        if step.kind == "sql":
            df = self._spark.sql(step.text)
        elif step.kind == "python":
            df = _checked(step, self._import(step.text)(*inputs, **step.settings))
        elif step.kind == "sessions":
            df = sessions(inputs[0], **self._session_settings(step))
        else:
            operator = self._import(step.text)
            made = operator() if callable(operator) else operator
            df = stateful(inputs[0], made, **step.settings)
        return _watermarked(df, step.watermark)

    def _session_settings(self, step: Step) -> dict[str, Any]:
        settings = dict(step.settings)
        if (ending := settings.pop("end_with", None)) is not None:
            settings["end"] = EndsWith(ending.encode())
        for name in _CALLS:
            if isinstance(settings.get(name), str):
                settings[name] = self._import(settings[name])
        return settings

    def _import(self, text: str) -> Any:
        """What MODULE:NAME names; modules beside the file are sent to the workers with it."""
        from pyspark import cloudpickle

        module_name, _, name = text.partition(":")
        folder = str(self._pipeline.file.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InvalidError(
                f"{module_name!r} cannot be imported: {error}",
                advice="Put it beside the file of the pipeline, or install it.",
            ) from None
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise InvalidError(f"{module_name} has no {name!r}")
            found = getattr(found, part)
        if Path(getattr(module, "__file__", None) or os.devnull).parent == Path(folder):
            cloudpickle.register_pickle_by_value(module)
        return found


def _checked(step: Step, made: Any) -> DataFrame:
    if not hasattr(made, "isStreaming"):
        raise InvalidError(f"{step.text} gave a {type(made).__name__}: a DataFrame is expected")
    df: DataFrame = made
    return df


def _position(told: str) -> int | None:
    """The line that a message of Spark's parser ends with, as `(line 2, pos 7)`."""
    at = re.search(r"\(line (\d+), pos \d+\)", told)
    return int(at[1]) if at else None


def _watermarked(df: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return df
    if watermark.column not in df.columns:
        columns = ", ".join(df.columns)
        raise InvalidError(f"the watermark's column {watermark.column!r} is none of {columns}")
    return df.withWatermark(watermark.column, f"{watermark.delay * 1000:.0f} milliseconds")


# --- sinks -------------------------------------------------------------------------------------


def rows_for(sink: Sink, df: DataFrame) -> DataFrame:
    """What a sink is given. InvalidError if columns are missing, or have no use there."""
    from pyspark.sql import functions as call

    if not df.isStreaming:
        raise InvalidError(f"{sink.input!r} is no stream: it comes from no source")
    if sink.kind not in ("topic", "queue"):
        missing = [name for name in sink.partition_by if name not in df.columns]
        if missing:
            raise InvalidError(f"there is no column {missing[0]!r} to partition by")
        return df
    if sink.key is not None and sink.key not in df.columns:
        raise InvalidError(f"the key {sink.key!r} is none of {', '.join(df.columns)}")
    if sink.json:
        value = call.to_json(call.struct(*df.columns)).cast("binary")
    elif "value" in df.columns:
        value = as_bytes(df, "value")
    else:
        raise InvalidError(
            f"a message needs a column `value`, and there are {', '.join(df.columns)}",
            advice="Name one in SQL, or set json = true.",
        )
    columns = [value.alias("value")]
    key = sink.key or ("key" if "key" in df.columns and not sink.json else None)
    if key is not None:
        columns.insert(0, as_bytes(df, key).alias("key"))
    if "timestamp" in df.columns and dict(df.dtypes)["timestamp"] == "timestamp":
        columns.append(call.col("timestamp"))
    return df.select(*columns)


def writer_for(pipeline: Pipeline, sink: Sink, df: DataFrame) -> DataStreamWriter:
    """A query that is ready to be started."""
    writer = df.writeStream.format(sink.format).outputMode(sink.mode).options(**sink.options)
    writer = writer.queryName(sink.target if sink.kind == "memory" else sink.name)
    if sink.kind != "memory":  # it does not recover
        checkpoint = f"{pipeline.checkpoint.rstrip('/')}/{sink.name}"
        writer = writer.option("checkpointLocation", checkpoint)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if sink.kind == "files":
        writer = writer.option("path", sink.target)
    if sink.every is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{sink.every * 1000:.0f} milliseconds")
