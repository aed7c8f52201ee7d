"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.cli.soaking.damaging import Damage
from penstock.cli.soaking.run import Shaken


def show(console: Console, outcome: Shaken) -> None:
    """Prints the promises, then what was done to the node."""
    console.print(outcome.verdicts.shown())
    console.print(_counts(outcome))
    console.print(_damage(outcome.damage))
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


def _damage(found: Damage) -> Table:
    title = f"{found.flips:,} bytes changed in {found.rounds:,} directories while no node was there"
    shown = Table(title=title, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for label, count in {
        "delivered, but sent by nobody": found.served,
        "lost, and not named by the doctor": found.unnamed,
        "delivered twice": found.twice,
    }.items():
        shown.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]")
    shown.add_row("messages stored", f"{found.messages:,}")
    shown.add_row("lost, and named", f"{found.lost:,}")
    shown.add_row("starts refused until the damage is accepted", f"{found.refused:,}")
    return shown


def as_json(outcome: Shaken) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "correct": outcome.correct,
        "seed": outcome.seed,
        "kills": outcome.kills,
        "done": dict(outcome.counts),
        "start_seconds": outcome.starts,
        "damage": asdict(outcome.damage),
        "left_out": outcome.left_out,
        "trouble": outcome.trouble,
        **outcome.verdicts.as_json(),
    }
