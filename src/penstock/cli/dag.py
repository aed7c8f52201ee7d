"""`python -m penstock.cli.dag`: a random graph of tasks is run by workers that are killed all the
time, and what comes out is compared with a plain loop over the same graph."""

from __future__ import annotations

import json
import random
import signal
from typing import Annotated

import typer

from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.faulting.folder import run_folder
from penstock.cli.faulting.watching import watched
from penstock.cli.graphing.report import as_json, show
from penstock.cli.graphing.run import Plan, Proof

_SEEDS = 1 << 31


def dag(
    tasks: Annotated[int, typer.Option(min=1)] = Plan.tasks,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between kills.")] = Plan.every,
    kills: Annotated[int, typer.Option(min=0, help="No more; 0: until the end.")] = Plan.kills,
    nodes: Annotated[int, typer.Option(min=1, max=5, help="One, or a cluster.")] = Plan.nodes,
    workers: Annotated[int, typer.Option(min=2, max=64, help="At a time.")] = Plan.workers,
    concurrency: Annotated[int, typer.Option(min=1, max=64)] = Plan.concurrency,
    lease: Annotated[float, typer.Option(min=1.0, help="Of a task, in s.")] = Plan.lease,
    seed: Annotated[int, typer.Option(min=0, help="0 draws one.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep data and logs there.")] = "",
) -> None:
    """Run a random graph of tasks while workers are killed; each must take effect once, and after
    those that it depends on."""
    console = console_for(stderr=json_output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = seed or random.SystemRandom().randrange(1, _SEEDS)
    plan = Plan(tasks, seed, every, workers, concurrency, lease, nodes, kills)
    console.print(
        f"{tasks:,} tasks, {workers} workers, one killed about every {every:g} s, nodes: {nodes}, "
        f"seed {seed}"
    )
    with told_errors(json_output), run_folder(keep, "penstock-dag-") as folder:
        with watched(console, tasks) as watch:
            proof = Proof(folder.path, plan, watch.say)
            with watch.following(lambda: _so_far(proof), lambda: _ended(proof)):
                outcome = proof.perform()
        folder.keep |= not outcome.correct
        if json_output:
            typer.echo(json.dumps(as_json(outcome), indent=2))
        else:
            show(console, outcome)
    if not outcome.correct:
        console.print("[red]A promise was broken, or could not be checked.[/]")
        console.print(f"Data and logs are kept in {folder.path}")
        raise typer.Exit(1)
    console.print("Every task took effect once, after those that it depends on.")


def _ended(proof: Proof) -> int:
    return 0 if proof.audit is None else proof.audit.ended


def _so_far(proof: Proof) -> str:
    """How many have ended, and how many were killed."""
    kills = 0 if proof.crew is None else len(proof.crew.kills)
    return f"{_ended(proof):,} tasks, {kills:,} kills"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(dag)

if __name__ == "__main__":
    app()
