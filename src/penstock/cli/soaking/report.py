"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.cli.soaking.damaging import Damage
from penstock.cli.soaking.endurance import LEAST_SECONDS, Endurance
from penstock.cli.soaking.run import Shaken
from penstock.cli.units import size_text


def show(console: Console, outcome: Shaken, endurance: Endurance | None) -> None:
    """Prints the promises, then what was done to the node, then what it needed over time."""
    console.print(outcome.verdicts.shown())
    console.print(_counts(outcome))
    console.print(_damage(outcome.damage))
    if endurance is not None:
        console.print(_endurance(endurance))
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


def _endurance(found: Endurance) -> Table:
    rate = found.consumed / found.seconds
    title = f"{found.seconds / 60:,.1f} minutes at full rate, {len(found.starts)} new starts"
    shown = Table(title=title)
    shown.add_column("what the node needs")
    shown.add_column("when it is warm", justify="right")
    shown.add_column("at the end", justify="right")
    for name in found.samples:
        color = ("red" if name in found.growing else "green") if found.tells else "default"
        show_as = str if name == "files" else size_text
        warm, end = (show_as(round(value)) for value in found.ends(name))
        shown.add_row(name, warm, f"[{color}]{end}[/]")
    shown.add_row("messages", f"{found.consumed:,}", f"{rate:,.0f}/s")
    shown.add_row("start, longest", f"{max(found.starts, default=0.0):.2f} s", "")
    if not found.tells:
        shown.caption = f"Whether something grows is told after {LEAST_SECONDS / 60:.0f} minutes."
    return shown


def as_json(outcome: Shaken, endurance: Endurance | None) -> dict[str, Any]:
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
        "endurance": None if endurance is None else asdict(endurance),
        "growing": [] if endurance is None else endurance.growing,
        **outcome.verdicts.as_json(),
    }
