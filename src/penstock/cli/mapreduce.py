"""`penstock mapreduce …`: batch programs over files, run by workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import (
    DEFAULT_URL,
    Json,
    Namespace,
    Url,
    fabric_at,
    new_app,
    told_errors,
    with_options_of,
)
from penstock.cli.output import Output
from penstock.cli.units import size, size_text

if TYPE_CHECKING:
    from penstock.tasks.mapreduce import Done, Job, Submits

app = new_app("MapReduce over files that all workers see: count words, sort, search.")

TIMEOUT_S = 30.0
MODULE = "penstock.tasks.mapreduce"

Places = Annotated[
    list[str],
    typer.Argument(metavar="IN… OUT", help="Files, folders, patterns; then the folder to make."),
]
IgnoreCase = Annotated[bool, typer.Option("--ignore-case", "-i", help="A is a.")]


class Kind(StrEnum):
    """What is sorted."""

    LINES = "lines"
    TERA = "tera"


class Running:
    """What a command works with."""

    def __init__(self, tasks: Submits, terms: dict[str, Any], output: Output) -> None:
        self._tasks = tasks
        self._terms = terms
        self._output = output

    def run(self, places: list[str], work: Callable[[Submits, Job], Done]) -> None:
        """Runs a job over places, the last of which is the folder of results; tells of it."""
        from penstock.errors import InvalidError
        from penstock.tasks.mapreduce import Job

        if len(places) < 2:
            raise InvalidError("name what is to be read, and then the folder for the results")
        began_s = time.perf_counter()
        done = work(self._tasks, Job(places[:-1], places[-1], **self._terms))
        took_s = time.perf_counter() - began_s
        text = f"{done.rows:,} lines by {done.maps:,} maps and {done.reduces:,} reduces"
        spilled = f", {size_text(done.spilled_bytes)} through files" if done.spilled_bytes else ""
        told = {**asdict(done), "seconds": round(took_s, 3)}
        self._output.record(told, f"{text}{spilled}, in {took_s:.2f} s")


def on_tasks(function: Callable[..., None]) -> Callable[..., None]:
    """A command that runs a job: it gets the options that say how, where, and by whom."""

    def run(
        *,
        tasks: Annotated[str, typer.Option("--tasks", "-t", help="The task set.")] = "default",
        workers: Annotated[
            int, typer.Option("--workers", "-w", min=0, help="Start so many here, for this job.")
        ] = 0,
        partition: Annotated[
            int, typer.Option("--partition", parser=size, metavar="SIZE", help="Of one map.")
        ] = 16 << 20,
        reduces: Annotated[int, typer.Option("--reduces", "-r", min=1)] = os.cpu_count() or 1,
        memory: Annotated[
            int, typer.Option("--memory", parser=size, metavar="SIZE", help="Of one task.")
        ] = 256 << 20,
        scratch: Annotated[
            str, typer.Option("--scratch", metavar="DIR", help="For intermediate files.")
        ] = "",
        overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
        url: Url = DEFAULT_URL,
        namespace: Namespace = "default",
        json: Json = False,
        **given: Any,
    ) -> None:
        terms = {
            "partition_bytes": partition, "reduces": reduces, "memory_bytes": memory,
            "scratch": scratch, "overwrite": overwrite,
        }  # fmt: skip
        with (
            told_errors(json),
            fabric_at(url, None, namespace, TIMEOUT_S) as fabric,
            fabric.tasks(tasks) as submits,
            _workers(workers, ["--tasks", tasks, "--url", url, "--namespace", namespace]),
        ):
            function(Running(submits, terms, Output(json)), **given)

    return with_options_of(run, function)


@contextmanager
def _workers(number: int, options: list[str]) -> Iterator[None]:
    from penstock.tasks.provision import Terms
    from penstock.tasks.provision.local import LocalProcesses

    provider = LocalProcesses([MODULE, "--concurrency", "1", *options], Terms())
    try:
        for _ in range(number):
            provider.start(stays=True)
        yield
    finally:
        provider.close()


@app.command("wordcount")
@on_tasks
def wordcount_command(running: Running, places: Places, ignore_case: IgnoreCase = False) -> None:
    """Count how often each word is in files."""
    from penstock.tasks.mapreduce import wordcount

    running.run(places, partial(wordcount, ignore_case=ignore_case))


@app.command("sort")
@on_tasks
def sort_command(
    running: Running,
    places: Places,
    records: Annotated[
        Kind, typer.Option("--records", help="lines, or tera: 100 bytes with a key of 10.")
    ] = Kind.LINES,
) -> None:
    """Sort the lines of files, into ranges that follow each other."""
    from penstock.tasks.mapreduce import sort

    running.run(places, partial(sort, records=records.value))


@app.command("grep")
@on_tasks
def grep_command(
    running: Running,
    pattern: Annotated[str, typer.Argument(help="A regular expression of Python.")],
    places: Places,
    ignore_case: IgnoreCase = False,
    fixed: Annotated[bool, typer.Option("--fixed", "-F", help="The pattern as it is.")] = False,
    invert: Annotated[bool, typer.Option("--invert", "-v", help="Lines without it.")] = False,
) -> None:
    """Find lines of files."""
    from penstock.tasks.mapreduce import grep

    search = partial(grep, fixed=fixed, ignore_case=ignore_case, invert=invert)
    running.run(places, partial(search, pattern=pattern))
