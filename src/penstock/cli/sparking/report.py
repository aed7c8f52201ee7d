"""What a proof showed: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.sparking.run import Outcome

TITLES = {"sessions": "topic → sessions → topic", "queue": "queue → topic"}


def show(console: Console, outcome: Outcome) -> None:
    """The kills, and what is in the output."""
    console.print(_kills(outcome))
    console.print(_records(outcome))


def _kills(outcome: Outcome) -> Table:
    table = Table(title=f"{TITLES[outcome.plan.kind]}: SIGKILL, seed {outcome.plan.seed}")
    for name in ("kill", "when", "after", "begun", "noted", "published", "the rerun must"):
        table.add_column(name, justify="left" if name in ("when", "the rerun must") else "right")
    for number, kill in enumerate(outcome.kills, start=1):
        begun, noted, published, _ = kill.seen
        rerun = "publish it" if begun > noted else "reserve the same" if kill.unbegun else "-"
        if kill.unnoted:
            rerun = "publish nothing"
        table.add_row(
            str(number), kill.kind, f"{kill.seconds:.1f} s", str(begun), str(noted),
            str(published), rerun,
        )  # fmt: skip
    return table


def _records(outcome: Outcome) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, number in figures(outcome).items():
        bad = name in ("missing", "twice", "not in the answer", "left in the queue") and number
        table.add_row(name, f"[red]{number:,}[/]" if bad else f"{number:,}")
    return table


def figures(outcome: Outcome) -> dict[str, int]:
    """Counts, under the names that tables have."""
    found = {
        "records of the known answer": outcome.expected,
        "records found": outcome.found,
        "missing": outcome.missing,
        "twice": outcome.doubled,
        "not in the answer": outcome.wrong,
        "drivers killed": len(outcome.kills),
        "of them after a publication that was not noted": sum(k.unnoted for k in outcome.kills),
        "attempts of tasks that were made to fail": outcome.failures,
        "micro-batches": outcome.batches,
        "seconds": round(outcome.seconds),
    }
    if outcome.plan.kind == "queue":
        unbegun = sum(kill.unbegun for kill in outcome.kills)
        found["killed after a reservation that was not noted"] = unbegun
        found["left in the queue"] = outcome.left
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """All of it."""
    kills = [asdict(kill) | {"seen": kill.seen._asdict()} for kill in outcome.kills]
    return asdict(outcome) | {"kills": kills, "correct": outcome.correct}
