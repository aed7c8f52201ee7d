"""`penstock spark telemetry`: what nodes and streams did, minute by minute."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.metrics import TOPIC
from penstock.cli.plot import blocks
from penstock.cli.spark_command import Sparks, following, on_spark, stopping_on_signals
from penstock.cli.units import duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOK_S = 0.2


class What(StrEnum):
    """What the rows are about."""

    NODES = "nodes"
    STREAMS = "streams"


@on_spark
def telemetry(
    sparks: Sparks,
    topic: Annotated[str, typer.Option("--topic", help="Of `penstock metrics export`.")] = TOPIC,
    what: Annotated[What, typer.Option("--what", help="What the rows are about.")] = What.NODES,
    length: Annotated[
        float, typer.Option("--window", parser=duration, metavar="TIME", help="Of a row.")
    ] = 60.0,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="A folder, or topic:NAME.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Go on where the last run ended."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Run until Ctrl-C.")] = False,
) -> None:
    """Rates, percentiles of answers and the balance of load by minute, from a topic of metrics.

    Without --checkpoint all that is in the topic is read. With it, a run takes what is new, and a
    minute comes out once it is over.
    """
    from penstock.errors import InvalidError
    from penstock.spark.telemetry import nodes_by_minute, read_metrics, streams_by_minute

    if follow and checkpoint is None:
        raise InvalidError("--follow needs a checkpoint", advice="Give --checkpoint DIR.")
    options = sparks.fabric.options("topic", topic)
    reader = sparks.session.read if checkpoint is None else sparks.session.readStream
    if checkpoint is not None:
        options["startingOffsets"] = "earliest"
    metrics = read_metrics(reader.format("penstock").options(**options).load())
    by_minute = nodes_by_minute if what is What.NODES else streams_by_minute
    rows = by_minute(metrics, f"{length * 1000:.0f} milliseconds")
    if checkpoint is None:
        _batch(sparks, rows, to)
    else:
        _stream(sparks, rows, to, checkpoint, follow)


def _batch(sparks: Sparks, rows: DataFrame, to: str | None) -> None:
    with following(sparks, "running"):
        found = [row.asDict() for row in rows.orderBy(*rows.columns[:2]).collect()]
        if to is not None:
            _write(sparks, rows, to)
    show(sparks, found)


def _write(sparks: Sparks, rows: DataFrame, to: str) -> None:
    from penstock.spark.apps import write_rows

    write_rows(rows, to, sparks.fabric, form="parquet", key=rows.columns[1])


def _stream(sparks: Sparks, rows: DataFrame, to: str | None, checkpoint: str, follow: bool) -> None:
    """Each micro-batch is shown; and written, if it is to go somewhere."""
    from penstock.spark.apps.places import messages, stream_of

    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.outputMode("append")
    if to is None:
        writer = writer.foreachBatch(lambda df, _: _show_batch(sparks, df))
    elif (stream := stream_of(to)) is not None:
        options = sparks.fabric.options(*stream)
        writer = messages(rows, rows.columns[1]).writeStream.format("penstock").options(**options)
        writer = writer.option("checkpointLocation", checkpoint)
    else:
        writer = writer.format("parquet").option("path", to)
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    with stopping_on_signals() as stop:
        _await(query, stop)
    read = sum(each["numInputRows"] for each in query.recentProgress)
    sparks.output.note(f"{read:,} records read")


def _await(query: Any, stop: threading.Event) -> None:
    while query.isActive and not stop.wait(LOOK_S):
        pass
    query.stop()
    if (error := query.exception()) is not None:
        raise error


def _show_batch(sparks: Sparks, df: DataFrame) -> None:
    show(sparks, [row.asDict() for row in df.orderBy(*df.columns[:2]).collect()])


def show(sparks: Sparks, rows: list[dict[str, Any]]) -> None:
    """A table, and for each name a line of blocks over the minutes."""
    if sparks.output.as_json:
        sparks.output.line([{**row, "minute": row["minute"].isoformat()} for row in rows])
        return
    if not rows:
        sparks.output.note("there is nothing to show")
        return
    columns = list(rows[0])
    sparks.output.table(columns, [[_cell(row[name]) for name in columns] for row in rows])
    by, figure = columns[1], columns[2]
    minutes = sorted({row["minute"] for row in rows})
    known = {(row[by], row["minute"]): row[figure] for row in rows}
    most = max((value for value in known.values() if value is not None), default=0.0)
    names = sorted({row[by] for row in rows})
    wide = max(map(len, names))
    typer.echo(f"\n{figure}, up to {most:,.1f}, {minutes[0]:%H:%M} to {minutes[-1]:%H:%M}:")
    for name in names:
        line = blocks([known.get((name, minute)) for minute in minutes], most)
        typer.echo(f"{name:<{wide}}  {line}")


def _cell(value: Any) -> object:
    if hasattr(value, "isoformat"):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return round(value, 3) if isinstance(value, float) else value
