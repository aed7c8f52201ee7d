"""`python -m penstock.cli.faults`: a cluster of real processes is broken in many ways at work, and
the history of all clients is checked."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.faulting.folder import run_folder
from penstock.cli.faulting.network import enter_network
from penstock.cli.faulting.queue_work import RATE
from penstock.cli.faulting.report import as_json, show
from penstock.cli.faulting.run import NODES, Outcome, Run
from penstock.cli.faulting.topic_work import RATE as TOPIC_RATE
from penstock.cli.faulting.watching import done_so_far, watched


def faults(
    minutes: Annotated[float, typer.Option(min=0.1, max=24 * 60, help="Of load.")] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    loopback: Annotated[bool, typer.Option(help="No network namespaces, and no cuts.")] = False,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep history and logs there.")] = "",
) -> None:
    """Kill, pause, cut off, add, drain and restart nodes under load; check that nothing is lost."""
    left_out = "it was not asked for" if loopback else enter_network(sys.argv[1:])
    console = console_for(stderr=json_output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with told_errors(json_output), run_folder(keep, "penstock-faults-") as folder:
        outcome = _run(folder.path, minutes * 60, left_out, console)
        folder.keep |= not outcome.correct
    if json_output:
        typer.echo(json.dumps(as_json(outcome), indent=2))
    else:
        show(console, outcome)
    if not outcome.correct:
        console.print("[red]A promise was broken, or could not be checked.[/]")
        console.print(f"History and logs are kept in {folder.path}")
        raise typer.Exit(1)


def _run(folder: Path, seconds: float, left_out: str, console: Console) -> Outcome:
    rate = len(NODES) * RATE + TOPIC_RATE
    console.print(
        f"Three nodes and ten clients on this machine; a moderate load of {rate:,} messages/s, so "
        "that two cores are enough for all."
    )
    with watched(console, seconds) as watch:
        run = Run(folder, seconds, left_out, watch.say)
        with watch.following(lambda: done_so_far(*run.progress)):
            return run.perform()


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(faults)

if __name__ == "__main__":
    app()
