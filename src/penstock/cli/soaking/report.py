"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.cli.soaking.run import Shaken


def show(console: Console, outcome: Shaken) -> None:
    """Prints the promises, then what was done to the node."""
    console.print(outcome.verdicts.shown())
    console.print(_counts(outcome))
    if outcome.left_out:
        console.print(f"[yellow]The disk was never full: {outcome.left_out}.[/]")
    for line in outcome.trouble:
        console.print(f"[red]{line}[/]")


def _counts(outcome: Shaken) -> Table:
    shown = Table(title=f"What was done to the node; seed {outcome.seed}", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for label, count in outcome.counts.most_common():
        shown.add_row(label, f"{count:,}")
    shown.add_row("SIGKILL, all in all", f"{outcome.kills:,}")
    median, worst = np.quantile(outcome.starts, [0.5, 1.0])
    shown.add_row("until it was ready again, median / worst", f"{median:.2f} / {worst:.2f} s")
    return shown


def as_json(outcome: Shaken) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "correct": outcome.correct,
        "seed": outcome.seed,
        "kills": outcome.kills,
        "done": dict(outcome.counts),
        "start_seconds": outcome.starts,
        "left_out": outcome.left_out,
        "trouble": outcome.trouble,
        **outcome.verdicts.as_json(),
    }
