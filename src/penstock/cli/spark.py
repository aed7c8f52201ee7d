"""`penstock spark …`: batch programs over files and topics."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import telemetry
from penstock.cli.command import fabric_at, new_app
from penstock.cli.spark_command import Sparks, following, on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.apps.sorting import Survey

app = new_app("Programs that run on Spark: over files, folders and topics.")
app.command()(telemetry.telemetry)

SHOWN = 20
TIMEOUT_S = 5.0


class Form(StrEnum):
    """How files are written."""

    TEXT = "text"
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


class Kind(StrEnum):
    """What is sorted."""

    LINES = "lines"
    TERA = "tera"


Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT…", help="Files, folders, patterns, or topic:NAME."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="PLACE", help="A folder, topic:NAME or queue:NAME."),
]
FormOption = Annotated[Form, typer.Option("--format", help="Of files.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows shown on the terminal.")]
IgnoreCase = Annotated[bool, typer.Option("--ignore-case", "-i", help="A is a.")]
KindOption = Annotated[
    Kind, typer.Option("--records", help="lines, or tera: 100 bytes with a key of 10.")
]


@app.command("wordcount")
@on_spark
def wordcount_command(
    sparks: Sparks,
    inputs: Inputs,
    to: To = None,
    form: FormOption = Form.TEXT,
    overwrite: Overwrite = False,
    limit: Limit = SHOWN,
    ignore_case: IgnoreCase = False,
) -> None:
    """Count how often each word is in files or topics; shown with the most frequent ones first."""
    from penstock.spark.apps import read_lines, wordcount

    lines = read_lines(sparks.session, inputs, sparks.fabric)
    counted = wordcount(lines, ignore_case=ignore_case)
    if to is not None:
        _write(sparks, counted, to, form, overwrite, key="word")
        return
    counted = counted.cache()  # the table shows some, and all are counted
    _show(sparks, counted.orderBy("count", "word", ascending=[False, True]), limit)


@app.command("grep")
@on_spark
def grep_command(
    sparks: Sparks,
    pattern: Annotated[str, typer.Argument(help="A regular expression of Java.")],
    inputs: Inputs,
    to: To = None,
    form: FormOption = Form.TEXT,
    overwrite: Overwrite = False,
    limit: Limit = SHOWN,
    ignore_case: IgnoreCase = False,
    fixed: Annotated[bool, typer.Option("--fixed", "-F", help="The pattern as it is.")] = False,
    invert: Annotated[bool, typer.Option("--invert", "-v", help="Lines without it.")] = False,
    count: Annotated[bool, typer.Option("--count", "-c", help="Only how many, by place.")] = False,
) -> None:
    """Find lines of files or messages of topics; exit code 1 if there are none."""
    from penstock.spark.apps import grep, read_lines

    lines = read_lines(sparks.session, inputs, sparks.fabric)
    found = grep(lines, pattern, fixed=fixed, ignore_case=ignore_case, invert=invert)
    if count:
        found = _by_place(found)
    elif to is not None:
        found = found.select("value")
    else:
        found = found.select("place", "value")
    rows = (
        _show(sparks, found.cache(), limit)
        if to is None
        else _write(sparks, found, to, form, overwrite)
    )
    if not rows:
        raise typer.Exit(1)


def _by_place(found: DataFrame) -> DataFrame:
    """How many were found in each file, or in each partition of a topic."""
    from pyspark.sql import functions as call

    place = call.regexp_replace("place", "^([^:]*)/[0-9]+$", "$1")
    return found.groupBy(place.alias("place")).count().orderBy("place")


@app.command("sort")
@on_spark
def sort_command(
    sparks: Sparks,
    inputs: Inputs,
    to: To = None,
    records: KindOption = Kind.LINES,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Ranges, and files that result.")
    ] = None,
    overwrite: Overwrite = False,
    limit: Limit = SHOWN,
    verify: Annotated[bool, typer.Option("--verify", help="Check the order afterwards.")] = False,
) -> None:
    """Sort lines or 100-byte records: ranges of keys from a sample, each sorted by itself.

    A topic to which it writes has one partition, and gets one range. With --verify: exit code 1 if
    the result is not in order, or is not what was read.
    """
    from penstock.errors import InvalidError
    from penstock.spark.apps import read_lines, sort
    from penstock.spark.apps.places import stream_of

    lines = read_lines(sparks.session, inputs, sparks.fabric)
    stream = None if to is None else stream_of(to)
    # Tasks write at the same time: only rows of one of them stay in their order in a topic.
    ranges = partitions if stream is None else 1
    ordered = sort(lines, records=records.value, partitions=ranges)
    if to is None:
        if verify:
            raise InvalidError("what is shown is not checked", advice="Use --to with --verify.")
        _show(sparks, ordered, limit)
        return
    if stream is not None:
        _check_partitions(sparks, *stream)
    start = _end_of(sparks, *stream) if stream is not None and verify else 0
    _write(sparks, ordered, to, Form.TEXT, overwrite)
    if verify:
        _verify(sparks, lines, to, records, start)


def _check_partitions(sparks: Sparks, kind: str, name: str) -> None:
    """InvalidError if a topic has several: rows would not stay in their order. A data directory is
    open in Spark's node and cannot be asked from here; `--verify` finds it out."""
    from penstock.errors import InvalidError

    servers = sparks.fabric.servers.partition(",")[0]
    if kind != "topic" or not servers:
        return
    with fabric_at(servers, None, sparks.fabric.namespace, TIMEOUT_S) as fabric:
        partitions = fabric.topic(name, create=False).partitions
    if partitions != 1:
        raise InvalidError(
            f"topic {name!r} has several partitions ({partitions})",
            advice="Sort into a topic with one: `penstock topic create NAME --partitions 1`.",
        )


def _end_of(sparks: Sparks, kind: str, name: str) -> int:
    """Where the only partition of a topic ends now."""
    from pyspark.sql import functions as call

    from penstock.errors import InvalidError

    if kind != "topic":
        raise InvalidError(f"{kind}:{name} cannot be read again", advice="Leave --verify out.")
    rows = sparks.session.read.format("penstock").options(**sparks.fabric.options(kind, name))
    [row] = rows.load().agg(call.max("offset")).collect()
    return 0 if row[0] is None else int(row[0]) + 1


def _verify(sparks: Sparks, lines: DataFrame, to: str, records: Kind, start: int) -> None:
    from penstock.spark.apps import survey

    with following(sparks, "verifying"):
        found = _order_of(sparks, to, records, start)
        before = survey(lines)
    same = found.same_rows(before)
    told = {"rows": found.rows, "misplaced": found.misplaced, "same_rows": same}
    good = same and not found.misplaced
    text = (
        f"in order, and all {found.rows:,} rows that were read"
        if good
        else f"NOT sorted: {found.misplaced:,} rows out of order, "
        f"{found.rows:,} written of {before.rows:,}, the same rows: {'yes' if same else 'no'}"
    )
    sparks.output.record({"verified": good, **told}, text)
    if not good:
        raise typer.Exit(1)


def _order_of(sparks: Sparks, to: str, records: Kind, start: int) -> Survey:
    from pyspark.sql import functions as call

    from penstock.spark.apps import is_sorted
    from penstock.spark.apps.places import stream_of

    spark = sparks.session
    if (stream := stream_of(to)) is not None:
        options = sparks.fabric.options(*stream)
        rows = spark.read.format("penstock").options(**options).load().where(f"offset >= {start}")
        rows = rows.withColumn("value", call.col("value").cast("string"))
        return is_sorted(rows, ["partition"], call.col("offset"), records=records.value)
    parts = [call.col("_metadata.file_name"), call.col("_metadata.file_block_start")]
    rows = spark.read.option("lineSep", "\n").text(to)
    return is_sorted(rows, parts, call.monotonically_increasing_id(), records=records.value)


@app.command("records")
@on_spark
def make(
    sparks: Sparks,
    count: Annotated[int, typer.Argument(min=1, help="How many.")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="A folder or topic:NAME.")],
    seed: Annotated[int, typer.Option("--seed", help="The same records for the same.")] = 0,
    files: Annotated[int, typer.Option("--files", min=1, help="How many.")] = 2,
    overwrite: Overwrite = False,
) -> None:
    """Make 100-byte records with 10-byte keys, to be sorted with `--records tera`."""
    from penstock.spark.apps import make_records

    made = make_records(sparks.session, count, seed, files)
    _write(sparks, made, to, Form.TEXT, overwrite)


def _write(
    sparks: Sparks, df: DataFrame, to: str, form: Form, overwrite: bool, key: str | None = None
) -> int:
    """Writes the rows and tells how many there were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as call

    from penstock.spark.apps import write_rows

    seen = Observation()
    counted = df.observe(seen, call.count(call.lit(1)).alias("rows"))
    with following(sparks, f"writing {to}"):
        write_rows(
            counted, to, sparks.fabric, form=form.value, key=key, overwrite=overwrite
        )
    rows = int(seen.get["rows"])
    told = {"rows": rows, "to": to, "seconds": sparks.seconds}
    sparks.output.record(told, f"{rows:,} rows written to {to} in {sparks.seconds:.1f} s")
    return rows


def _show(sparks: Sparks, df: DataFrame, limit: int) -> int:
    """Shows the first rows, and how many there are."""
    with following(sparks, "running"):
        total = int(df.count())
        rows: list[Any] = df.limit(limit).collect()
    told = [row.asDict() for row in rows]
    if sparks.output.as_json:
        sparks.output.line({"rows": told, "total": total, "seconds": sparks.seconds})
        return total
    if told:
        sparks.output.table(list(told[0]), [list(row.values()) for row in told])
    if total > len(told):
        sparks.output.note(f"and {total - len(told):,} more")
    return total
