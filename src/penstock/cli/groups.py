"""`python -m penstock.cli.groups`: members of a group come, go, stop and are killed while they
assemble sessions, and the sessions are compared with the known answer."""

from __future__ import annotations

import json
import random
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.faulting.folder import run_folder
from penstock.cli.faulting.watching import watched
from penstock.cli.grouping.report import as_json, show
from penstock.cli.grouping.run import Outcome, Plan, Run
from penstock.consumers.settings import GUARANTEES

_SEEDS = 1 << 31


class Chosen(StrEnum):
    """Which guarantee is tried."""

    ALL = "all"
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


def groups(
    minutes: Annotated[float, typer.Option(min=0.1, max=60, help="Of load, in all.")] = 5.0,
    nodes: Annotated[int, typer.Option(min=1, max=3, help="With three, nodes die too.")] = 1,
    guarantee: Annotated[Chosen, typer.Option(help="One, or all in turn.")] = Chosen.ALL,
    partitions: Annotated[int, typer.Option(min=2, max=1024)] = Plan.partitions,
    members: Annotated[int, typer.Option(min=2, max=32, help="At most.")] = Plan.members,
    rate: Annotated[int, typer.Option(min=100, help="Fragments a second.")] = Plan.rate,
    lease: Annotated[float, typer.Option(min=1.0, help="Of a claim, in s.")] = Plan.lease,
    gentle: Annotated[bool, typer.Option(help="Nobody is killed or paused.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="0 draws one.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep history and logs there.")] = "",
) -> None:
    """Add, remove, pause and kill members under load; check every session that they assemble."""
    console = console_for(stderr=json_output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = seed or random.SystemRandom().randrange(1, _SEEDS)
    chosen = GUARANTEES if guarantee is Chosen.ALL else (guarantee.value,)
    outcomes = []
    with told_errors(json_output), run_folder(keep, "penstock-groups-") as folder:
        for name in chosen:
            plan = Plan(
                name, minutes * 60 / len(chosen), seed, nodes, partitions, members, rate, lease,
                gentle,
            )  # fmt: skip
            outcomes.append(_run(folder.path / name, plan, console))
            folder.keep |= not outcomes[-1].correct
            if not json_output:
                show(console, outcomes[-1])
    if json_output:
        typer.echo(json.dumps([as_json(outcome) for outcome in outcomes], indent=2))
    if not all(outcome.correct for outcome in outcomes):
        console.print("[red]A promise was broken, or could not be checked.[/]")
        console.print(f"History and logs are kept in {folder.path}")
        raise typer.Exit(1)


def _run(folder: Path, plan: Plan, console: Console) -> Outcome:
    console.print(
        f"{plan.guarantee}: {plan.partitions} partitions, up to {plan.members} members, nodes: "
        f"{plan.nodes}, {plan.rate:,} fragments/s for {plan.seconds:,.0f} s, seed {plan.seed}"
    )
    with watched(console, plan.seconds) as watch:
        run = Run(folder, plan, watch.say)
        with watch.following(lambda: _so_far(run)):
            return run.perform()


def _so_far(run: Run) -> str:
    """Who is there, and what they have done."""
    members = run.members
    if members is None:
        return ""
    return f"{len(members.here)} members, {members.total('results'):,} sessions"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(groups)

if __name__ == "__main__":
    app()
