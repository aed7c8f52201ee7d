"""`python -m penstock.cli.soak`: one node is killed, paused, cut off, filled up and set back at
work, and the history of all clients is checked."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.faulting.folder import run_folder
from penstock.cli.faulting.watching import done_so_far, watched
from penstock.cli.soaking.endurance import Endurance, endure
from penstock.cli.soaking.report import as_json, show
from penstock.cli.soaking.run import Run, Shaken
from penstock.cli.soaking.small_disk import enter_mounts


def soak(
    kills: Annotated[int, typer.Option(min=1, max=100_000, help="Of the node, SIGKILL.")] = 100,
    minutes: Annotated[float, typer.Option(min=0, max=24 * 60, help="At full rate.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="What is done when; 0 draws one.")] = 0,
    json_output: Annotated[bool, typer.Option("--json", help="Machine readable output.")] = False,
    plain: Annotated[bool, typer.Option(help="No disk of its own, which could be full.")] = False,
    keep: Annotated[str, typer.Option(metavar="DIR", help="Keep history and logs there.")] = "",
) -> None:
    """Break one node in every way that a machine knows; check that nothing is lost."""
    left_out = "it was not asked for" if plain else enter_mounts(sys.argv[1:])
    console = console_for(stderr=json_output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with told_errors(json_output), run_folder(keep, "penstock-soak-") as folder:
        outcome = _shake(folder.path, kills, seed or secrets.randbits(32), left_out, console)
        endurance = _endure(folder.path, minutes * 60, console) if minutes else None
        holds = outcome.correct and not (endurance is not None and endurance.growing)
        folder.keep |= not holds
    if json_output:
        typer.echo(json.dumps(as_json(outcome, endurance), indent=2))
    else:
        show(console, outcome, endurance)
    if not holds:
        grown = "" if endurance is None else ", ".join(endurance.growing)
        what = f"The node needs more and more ({grown})" if outcome.correct else (
            "A promise was broken, or could not be checked"
        )
        console.print(f"[red]{what}: {folder.path}[/]")
        raise typer.Exit(1)


def _shake(folder: Path, kills: int, seed: int, left_out: str, console: Console) -> Shaken:
    console.print(f"One node and eight clients on this machine; seed {seed}.")
    with watched(console, kills) as watch:
        run = Run(folder, kills, seed, left_out, watch.say)
        with watch.following(lambda: done_so_far(*run.progress), lambda: run.done):
            return run.perform()


def _endure(folder: Path, seconds: float, console: Console) -> Endurance:
    with watched(console, seconds) as watch, watch.following(lambda: ""):
        return endure(folder, seconds, watch.say)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(soak)

if __name__ == "__main__":
    app()
