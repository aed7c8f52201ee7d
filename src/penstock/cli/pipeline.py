"""`penstock pipeline …`: pipelines that are files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Json, fabric_at, new_app, told_errors
from penstock.cli.output import Output, grid
from penstock.cli.spark_command import (
    Master,
    Memory,
    Ship,
    Sparks,
    spark_errors,
    stopping_on_signals,
    waiting,
)
from penstock.cli.units import duration_text, size_text

if TYPE_CHECKING:
    from penstock.spark.pipelines import Figures, Pipeline, SpecError
    from penstock.spark.pipelines.metrics import Export

app = new_app("Pipelines: sources, steps and sinks in a file, run by Spark.")

LINE_SECONDS = 5.0  # between lines of progress, where there is no terminal
LOOK_SECONDS = 0.5
JSON_SECONDS = 0.2
TIMEOUT_S = 5.0

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline, in TOML.")]


class Drawing(StrEnum):
    """How a pipeline is drawn."""

    TREE = "tree"
    MERMAID = "mermaid"


@app.command()
def show(
    file: File,
    form: Annotated[Drawing, typer.Option("--format", help="How.")] = Drawing.TREE,
) -> None:
    """Draw a pipeline."""
    from penstock.spark.pipelines import as_mermaid, as_tree, read_pipeline

    with told_errors(as_json=False):
        pipeline = read_pipeline(file)
    draw = as_mermaid if form is Drawing.MERMAID else as_tree
    typer.echo("\n".join(draw(pipeline)))


@app.command()
def check(
    file: File,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only the file: no node, no Spark.")
    ] = False,
    master: Master = "local[2]",
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Check a pipeline: names, settings, and whether topics are there and SQL fits their columns.

    Exit code 1 if something is wrong; each problem is told with its line.
    """
    from penstock.spark.pipelines import SpecError, check_live, read_pipeline

    output = Output(json)
    with told_errors(json), _spark(output, master, memory, False) as sparks:
        try:
            pipeline = read_pipeline(file)
            columns = {} if offline else check_live(pipeline, sparks.session, names_at)
        except SpecError as error:
            raise _told_problems(output, file, error) from None
    if json:
        output.line({"ok": True, "problems": [], "columns": columns})
        return
    for name, text in columns.items():
        typer.echo(f"{name}: {text}")
    typer.echo(f"{file} is in order")


def _told_problems(output: Output, file: Path, error: SpecError) -> typer.Exit:
    if output.as_json:
        told = [{"line": line, "problem": text} for line, text in error.problems]
        output.line({"ok": False, "problems": told})
    else:
        for line, text in error.problems:
            typer.echo(f"{file}:{line}: {text}")
    return typer.Exit(1)


def names_at(options: Mapping[str, str]) -> dict[str, list[str]]:
    """The topics and queues of a fabric."""
    namespace = options.get("namespace", "default")
    first = options.get("servers", "").partition(",")[0]
    with fabric_at(first, options.get("path") or None, namespace, TIMEOUT_S) as fabric:
        return {
            "topic": [info.name for info in fabric.topics()],
            "queue": [info.name for info in fabric.queues()],
        }


@app.command()
def run(
    file: File,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="PLACE", help="A Prometheus text file, or topic:NAME."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Of the node with the topic for metrics.")
    ] = None,
    master: Master = "local[2]",
    memory: Memory = "1g",
    ship: Ship = False,
    json: Json = False,
) -> None:
    """Run a pipeline until all its queries end, or until SIGTERM or Ctrl-C.

    Run again, it goes on where it was. Exit code 1 if a query fails.
    """
    from penstock.errors import UnavailableError
    from penstock.spark.pipelines import build, read_pipeline, run_pipeline

    output = Output(json)
    with told_errors(json), _spark(output, master, memory, ship) as sparks:
        pipeline = read_pipeline(file)
        built = build(pipeline, sparks.session)
        with (
            stopping_on_signals() as stop,
            _export(pipeline, metrics, url) as export,
            _shower(output) as shower,
        ):

            def report(figures: Sequence[Figures]) -> None:
                shower(figures)
                try:
                    export(pipeline.name, figures)
                except (UnavailableError, OSError) as error:  # no reason to end the queries
                    output.note(f"the figures could not be exported: {error}")

            look_s = JSON_SECONDS if json else LOOK_SECONDS
            figures = run_pipeline(pipeline, built, report, stop, look_s)
    for each in figures:
        text = f"{each.query}: {each.rows:,} rows read in {each.batch + 1:,} batches"
        output.record({"event": "ended", **each.as_dict()}, text)


@contextmanager
def _spark(output: Output, master: str, memory: str, ship: bool) -> Iterator[Sparks]:
    """The session is started when it is asked for."""
    from penstock.spark import session
    from penstock.spark.apps import Fabric

    sparks = Sparks(output, Fabric(), lambda: session(master, memory, ship=ship))
    with spark_errors():
        try:
            yield sparks
        finally:
            with waiting(output, "stopping Spark"):
                sparks.stop()


@contextmanager
def _export(pipeline: Pipeline, place: str | None, url: str | None) -> Iterator[Export]:
    from penstock.errors import InvalidError
    from penstock.spark.pipelines import metrics

    if place is None:
        yield lambda *_: None
        return
    if not place.startswith("topic:"):
        yield metrics.to_file(Path(place))
        return
    servers = url or pipeline.servers
    if servers is None:
        raise InvalidError("where is the topic for metrics?", advice="Give --url.")
    with fabric_at(servers.partition(",")[0], None, "default", TIMEOUT_S) as fabric:
        yield metrics.to_topic(fabric.topic(place.removeprefix("topic:")))


@contextmanager
def _shower(output: Output) -> Iterator[Callable[[Sequence[Figures]], None]]:
    """Shows figures: as a table on a terminal, else as lines now and then."""
    if output.as_json or not sys.stdout.isatty():
        yield _line_shower(output)
        return
    from rich.live import Live

    with Live(table_of([]), auto_refresh=False) as live:
        yield lambda figures: live.update(table_of(figures), refresh=True)


def _line_shower(output: Output) -> Callable[[Sequence[Figures]], None]:
    last_s, shown = 0.0, -1
    every_s = JSON_SECONDS if output.as_json else LINE_SECONDS

    def show(figures: Sequence[Figures]) -> None:
        nonlocal last_s, shown
        over = all(each.state in ("done", "failed") for each in figures)
        batches = sum(each.batch for each in figures)
        if not over and (batches == shown or time.monotonic() < last_s + every_s):
            return
        last_s, shown = time.monotonic(), batches
        for each in figures:
            output.record({"event": "progress", **each.as_dict()}, line_of(each))
        sys.stdout.flush()

    return show


def line_of(each: Figures) -> str:
    """The figures of a query in one line."""
    lag = "" if each.lag is None else f", {each.lag:,} behind"
    return (
        f"{each.query}: {each.state}, batch {each.batch} in {duration_text(each.batch_seconds)}, "
        f"{each.rows:,} rows, {each.rows_per_second:,.0f}/s{lag}, "
        f"{size_text(each.state_bytes)} state"
    )


def table_of(figures: Sequence[Figures]) -> Any:
    """The figures of all queries, to be printed by rich."""
    columns = ("query", "", "batch", "took", "rows", "rows/s", "behind", "state", "watermark")
    return grid(
        columns,
        [
            (
                each.query, each.state, each.batch, duration_text(each.batch_seconds), each.rows,
                round(each.rows_per_second), each.lag, size_text(each.state_bytes),
                (each.watermark or "-")[:19],
            )
            for each in figures
        ],
    )  # fmt: skip
