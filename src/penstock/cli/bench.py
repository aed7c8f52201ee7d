"""`penstock bench`: what this machine gives, and what Penstock makes of it."""

from __future__ import annotations

import itertools
import json
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.benchmarks.goals import judge
from penstock.cli.benchmarks.measure import Results, run_rounds
from penstock.cli.benchmarks.plan import Plan
from penstock.cli.benchmarks.report import as_json, console_for, show
from penstock.cli.benchmarks.settings import DEFAULT_GROUPS, GROUPS, Settings
from penstock.cli.command import told_errors
from penstock.errors import InvalidError

QUICK_MESSAGES = 200_000


class Level(StrEnum):
    """Durability of what is measured in bulk."""

    SYNCED = "synced"
    WRITTEN = "written"


def run(settings: Settings, console: Console) -> Results:
    """Runs everything that was asked for, in a directory that is removed afterwards."""
    results = Results()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        chosen = list(Plan(settings, directory, stack).measurements())
        # Refreshed between measurements only: a thread that draws would disturb them.
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        task = progress.add_task("bench", total=len(chosen) * settings.repeats)
        number = itertools.count(1)
        with progress:

            def next_one(name: str) -> None:
                progress.update(task, advance=1, description=name, refresh=True)
                if not console.is_terminal:
                    whole = len(chosen) * settings.repeats
                    typer.echo(f"bench {next(number)} of {whole}: {name}", err=True)

            run_rounds(chosen, settings.repeats, results, next_one)
    return results


def parse_groups(text: str) -> tuple[str, ...]:
    """Names separated by commas; InvalidError if one is not a group."""
    groups = tuple(filter(None, (name.strip() for name in text.split(","))))
    for name in groups:
        if name not in GROUPS:
            raise InvalidError(f"{name!r} is not one of {', '.join(GROUPS)}")
    return groups or DEFAULT_GROUPS


def bench(
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    quick: Annotated[bool, typer.Option(help="Small sizes, one round.")] = False,
    only: Annotated[str, typer.Option(help=f"Of {', '.join(GROUPS)}; with commas.")] = "",
    messages: Annotated[int, typer.Option(min=1000, help="Of a bulk run.")] = Settings.messages,
    size: Annotated[int, typer.Option(min=8, help="Bytes of a message.")] = Settings.size,
    batch: Annotated[int, typer.Option(min=1, help="Messages of a batch.")] = Settings.batch,
    durability: Annotated[Level, typer.Option(help="Of bulk runs.")] = Level.SYNCED,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = Settings.repeats,
    seconds: Annotated[float, typer.Option(help="How long `space` runs.")] = Settings.seconds,
    pin: Annotated[bool, typer.Option(help="Latencies also with all on one CPU.")] = False,
) -> None:
    """Measure floors of this machine and Penstock on it, in the same run."""
    console = console_for(stderr=json_output)
    with told_errors(json_output):
        settings = Settings(
            groups=parse_groups(only),
            messages=min(messages, QUICK_MESSAGES) if quick else messages,
            size=size,
            batch=batch,
            durability=durability.value,
            repeats=1 if quick else repeats,
            seconds=seconds,
            quick=quick,
            pin=pin,
        )
        results = run(settings, console)
    outcomes = judge(results, quick)
    if json_output:
        typer.echo(json.dumps(as_json(settings, results, outcomes), indent=2))
    else:
        show(console, results, outcomes)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(bench)

if __name__ == "__main__":
    app()
