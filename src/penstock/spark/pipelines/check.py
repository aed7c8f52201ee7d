"""Whether a pipeline fits what is there: topics, queues, columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.meant import did_you_mean
from penstock.spark.pipelines.build import build
from penstock.spark.pipelines.problems import Problem, SpecError
from penstock.spark.pipelines.spec import Pipeline, Sink, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Names = Mapping[str, list[str]]
"""The names of topics and queues, by `topic` and `queue`."""


def check_live(
    pipeline: Pipeline, spark: SparkSession, names_at: Callable[[Mapping[str, str]], Names]
) -> dict[str, str]:
    """Builds everything without starting it, and looks for the topics and queues that are read.

    `names_at` is asked for what there is at `servers` or `path` of `namespace`. SpecError with all
    problems; else the columns of every source and step, as DDL.
    """
    found = problems_of_streams(pipeline, names_at)
    columns: dict[str, str] = {}
    try:
        built = build(pipeline, spark)
    except SpecError as error:
        found += error.problems
    else:
        columns = {
            name: ", ".join(f"{column} {kind}" for column, kind in df.dtypes)
            for name, df in built.frames.items()
        }
    if found:
        raise SpecError.of(str(pipeline.file), found)
    return columns


def problems_of_streams(
    pipeline: Pipeline, names_at: Callable[[Mapping[str, str]], Names]
) -> list[Problem]:
    """Topics, queues and folders that are read and are not there; fabrics that do not answer."""
    known: dict[tuple[str, ...], Names | str] = {}
    found: list[Problem] = []
    for source in pipeline.sources:
        if source.kind == "files":
            found += _missing_folder(pipeline, source)
        elif source.kind in ("topic", "queue"):
            found += _missing_stream(pipeline, "source", source, known, names_at)
    for sink in pipeline.sinks:
        if sink.kind in ("topic", "queue"):
            found += _missing_stream(pipeline, "sink", sink, known, names_at)
    return found


def _missing_folder(pipeline: Pipeline, source: Source) -> list[Problem]:
    place = source.target
    if "://" in place or any(each in place for each in "*?[{") or Path(place).exists():
        return []
    line = pipeline.lines.of("source", source.name, "files")
    return [Problem(line, f"there is no folder {place}")]


def _missing_stream(
    pipeline: Pipeline,
    side: str,
    end: Source | Sink,
    known: dict[tuple[str, ...], Names | str],
    names_at: Callable[[Mapping[str, str]], Names],
) -> list[Problem]:
    options = end.options
    place = tuple(options.get(each, "") for each in ("servers", "path", "namespace"))
    if place not in known:
        try:
            known[place] = names_at(options)
        except PenstockError as error:
            known[place] = error.message
    names = known[place]
    line = pipeline.lines.of(side, end.name, end.kind)
    if isinstance(names, str):
        return [Problem(line, f"{end.kind} {end.target!r} cannot be looked at: {names}")]
    if end.target in names[end.kind]:
        return []
    return [
        Problem(
            line,
            f"there is no {end.kind} {end.target!r}{did_you_mean(end.target, names[end.kind])}",
        )
    ]
