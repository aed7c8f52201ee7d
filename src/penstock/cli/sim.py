"""`penstock sim`: break the network, the disk and the processes from one seed, and check.

With `--scenario`: the scale of a published system, with our own code that decides.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.command import Json, told_errors
from penstock.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sim import Verdict
    from penstock.sim.scenarios.outcome import Outcome

MAX_EXPLAINED = 3


def sim(
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="The first seed; 0: one that was not run before.")
    ] = 1,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 20,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=9, help="More than one: a cluster.")
    ] = 1,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=64, help="How many seeds at the same time.")
    ] = 1,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="Virtual minutes of every run.")
    ] = 0.5,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            help="all, none, or some of disk,net,crash; of a cluster also of pause,clock,members.",
        ),
    ] = "all",
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            help="Instead: fabriq-64, zht-8000, groups-300, cloudkon-1024 or albatross-64.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Plot the scenario.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the simulator. Exit code 1 if a promise was broken; the same seed breaks it again.

    With --scenario: exit code 1 if a goal was missed.
    """
    with told_errors(json):
        if scenario is not None or plot is not None:
            passed = _scenario(scenario, seed, plot, Output(json))
        else:
            plan = _Plan(seed or _fresh_seed(), seeds, minutes, faults, nodes, processes)
            passed = _seeds(plan, json)
    if not passed:
        raise typer.Exit(1)


def _scenario(name: str | None, seed: int, plot: Path | None, output: Output) -> bool:
    from penstock.consumers.simulation import scenario as groups
    from penstock.errors import InvalidError
    from penstock.sim.scenarios import plot as plots
    from penstock.sim.scenarios import run_scenario
    from penstock.tasks.simulation import albatross, cloudkon

    if name is None:
        raise InvalidError("--plot is for a scenario: name one with --scenario")
    if plot is not None:
        plots.check_plot(plot)
    more = {
        "groups-300": groups.run, "cloudkon-1024": cloudkon.run, "albatross-64": albatross.run,
    }  # fmt: skip
    outcome = run_scenario(name, seed, more)
    if plot is not None:
        plots.plot(outcome.chart, plot)
    if output.as_json:
        output.line(outcome.as_dict())
    else:
        _show(outcome, output)
    return outcome.passed


def _show(outcome: Outcome, output: Output) -> None:
    output.table(outcome.columns, outcome.rows)
    for line in ("", *(check.explain() for check in outcome.checks), *outcome.notes):
        typer.echo(line)


class _Plan(NamedTuple):
    """What is run."""

    seed: int
    seeds: int
    minutes: float
    faults: str
    nodes: int
    processes: int


def _fresh_seed() -> int:
    """By the clock: whoever runs it another time runs others."""
    return int(time.time())


def _seeds(plan: _Plan, json: bool) -> bool:
    from penstock.sim import run_many

    if not json:
        typer.echo(f"seeds {plan.seed} to {plan.seed + plan.seeds - 1}")
    numbers = range(plan.seed, plan.seed + plan.seeds)
    with _progress(plan.seeds, shown=not json) as advance:
        verdicts = run_many(
            numbers, plan.minutes, plan.faults, advance, plan.nodes, plan.processes
        )
    broken = [verdict for verdict in verdicts if not verdict.passed]
    if json:
        Output(True).line({"passed": not broken, "runs": [v.as_dict() for v in verdicts]})
    else:
        _explain(verdicts, broken)
    return not broken


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[Verdict], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task("seeds", total=total)
        failed = 0

        def advance(verdict: Verdict) -> None:
            nonlocal failed
            failed += not verdict.passed
            text = f"seeds, {failed} failed" if failed else "seeds"
            progress.update(task, advance=1, description=text)

        yield advance


def _explain(verdicts: list[Verdict], broken: list[Verdict]) -> None:
    for verdict in broken[:MAX_EXPLAINED]:
        typer.echo(verdict.explain())
    figures = {
        name: sum(verdict.figures[name] for verdict in verdicts) for name in verdicts[0].figures
    }
    done = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in figures.items())
    typer.echo(f"{len(verdicts) - len(broken)} of {len(verdicts)} seeds kept every promise: {done}")
