"""`python -m penstock.cli.spark_proof`: Spark drivers are killed while they write, tasks are made
to fail, and what is in the output is compared with the known answer."""

from __future__ import annotations

import json
import random
import signal
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.faulting.folder import run_folder
from penstock.cli.sparking.report import TITLES, as_json, show
from penstock.cli.sparking.run import Plan, Proof

_SEEDS = 1 << 31


class Chosen(StrEnum):
    """What is proved."""

    ALL = "all"
    SESSIONS = "sessions"
    QUEUE = "queue"


def spark_proof(
    kills: Annotated[int, typer.Option(min=0, max=100, help="Of the driver, in each.")] = 10,
    only: Annotated[Chosen, typer.Option(help="One, or all in turn.")] = Chosen.ALL,
    failing: Annotated[float, typer.Option(min=0, max=1, help="Share of tasks.")] = Plan.failing,
    seed: Annotated[int, typer.Option(min=0, help="0 draws one.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep data and logs there.")] = "",
) -> None:
    """Kill Spark drivers and fail their tasks; every record must be in the output once."""
    console = console_for(stderr=json_output)
    signal.signal(signal.SIGTERM, _interrupt)
    seed = seed or random.SystemRandom().randrange(1, _SEEDS)
    chosen = TITLES if only is Chosen.ALL else (only.value,)
    outcomes = []
    with told_errors(json_output), run_folder(keep, "penstock-spark-proof-") as folder:
        folder.keep = True  # unless all goes well
        with NodeProcess(folder.path / "node") as node:
            for kind in chosen:
                plan = Plan(kind, kills, seed, failing)
                console.print(f"{TITLES[kind]}: {kills} kills, seed {seed}")
                outcomes.append(Proof(node.url, folder.path / kind, plan, console.print).perform())
                if not json_output:
                    show(console, outcomes[-1])
        folder.keep = bool(keep) or not all(outcome.correct for outcome in outcomes)
    if json_output:
        typer.echo(json.dumps([as_json(outcome) for outcome in outcomes], indent=2))
    if not all(outcome.correct for outcome in outcomes):
        console.print("[red]A record is missing, wrong or there twice, or not all was tried.[/]")
        console.print(f"Data and logs are kept in {folder.path}")
        raise typer.Exit(1)
    console.print("Every record is there once.")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(spark_proof)

if __name__ == "__main__":
    app()
