"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.cli.graphing.run import Outcome
from penstock.cli.grouping.report import spread
from penstock.cli.units import size_text


def show(console: Console, outcome: Outcome) -> None:
    """Prints the promises, then what was done."""
    shown = Table(title=f"What came out; seed {outcome.plan.seed}", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for label, count in outcome.verdict.promises.items():
        shown.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]")
    shown.add_section()
    for label, text in figures(outcome).items():
        shown.add_row(label, text)
    console.print(shown)
    for line in [*outcome.trouble, *outcome.verdict.named]:
        console.print(line, style="red", markup=False, highlight=False)


def figures(outcome: Outcome) -> dict[str, str]:
    """Under the names that tables have."""
    plan, shape, verdict = outcome.plan, outcome.shape, outcome.verdict
    executors = sum(kill.process > 0 for kill in outcome.kills)
    again = spread(outcome.recoveries)
    found = {
        "tasks, edges, longest chain": f"{plan.tasks:,}, {shape.edges:,}, {shape.depth:,}",
        "most parents, most children of a task": f"{shape.most_parents:,}, {shape.most_children:,}",
        "from the first submission to the last outcome": f"{outcome.seconds:,.1f} s",
        "tasks a second": f"{plan.tasks / outcome.seconds:,.0f}" if outcome.seconds else "-",
        "workers started": f"{outcome.workers:,}",
        "kills: of workers, of executors": f"{len(outcome.kills) - executors:,}, {executors:,}",
        "seconds between kills": f"{outcome.seconds / max(1, len(outcome.kills)):.2f}",
        "runs": f"{verdict.runs:,}",
        "of them lost with a kill, and done again": f"{verdict.killed:,}",
        "of them late, as the machine stood still": f"{verdict.stalled:,}",
        "of them meant to fail, and tried again": f"{verdict.raised:,}",
        "longest time from a kill until some task ended": f"{outcome.longest_pause:.2f} s",
    }
    if outcome.standstills:
        longest = max(each.until_ns - each.from_ns for each in outcome.standstills) / 1e9
        found["standstills of the machine"] = (
            f"{len(outcome.standstills):,}, the longest {longest:.1f} s"
        )
    if again["count"]:
        found["from a kill until a lost task was begun again"] = (
            f"p50 {again['p50']:.1f} s, longest {again['max']:.1f} s; leases of {plan.lease:g} s"
        )
    if outcome.told is not None:
        told = outcome.told
        found["everything was submitted after"] = f"{told.seconds:,.1f} s"
        found["the client's memory, at first and at most"] = (
            f"{size_text(told.first_bytes)}, {size_text(told.most_bytes)}"
        )
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "correct": outcome.correct,
        "plan": asdict(outcome.plan),
        "shape": asdict(outcome.shape),
        "verdict": asdict(outcome.verdict),
        "promises": outcome.verdict.promises,
        "kills": len(outcome.kills),
        "workers": outcome.workers,
        "seconds": outcome.seconds,
        "longest_pause": outcome.longest_pause,
        "standstills": [each.until_ns - each.from_ns for each in outcome.standstills],
        "recoveries": spread(outcome.recoveries),
        "told": None if outcome.told is None else msgspec.to_builtins(outcome.told),
        "trouble": outcome.trouble,
    }
