"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.grouping.check import Verdict
from penstock.cli.grouping.run import Outcome
from penstock.cli.grouping.settling import bound_seconds

Figures = dict[str, float]
_PROMISES = {
    "missing": "missing", "doubled": "delivered twice",
    "wrong": "not in the answer, or not as there",
    "other_id": "made again under another id", "acked_twice": "one message acked twice",
    "unexplained": "missing or twice, where nobody was killed or paused",
}  # fmt: skip


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest of these values that so many of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * part) - 1)]


def spread(values: Sequence[float]) -> Figures:
    """How many there are, p50, p90 and the largest."""
    if not values:
        return {"count": 0}
    p50, p90 = quantile(values, 0.5), quantile(values, 0.9)
    return {"count": len(values), "p50": p50, "p90": p90, "max": max(values)}


def settling(outcome: Outcome) -> dict[str, dict[str, Figures]]:
    """By kind of change: seconds until shares were even, and until all were worked on."""
    found: dict[str, dict[str, Figures]] = {}
    for kind in dict.fromkeys(change.kind for change in outcome.changes):
        own = [each for each in outcome.changes if each.kind == kind]
        settled = [each.settled for each in own if each.settled is not None]
        found[kind] = {
            "even": spread([each.even for each in settled]),
            "working": spread([each.working for each in settled]),
            "read_again": spread([each.read_again for each in own]),
        }
    return found


def gaps(outcome: Outcome, kind: str) -> Figures:
    """Of all members together, in ms: of each the last hundred."""
    told = [each[kind] for each in outcome.statuses if each.get(kind, {}).get("count")]
    spans = [span for each in told for span in each["last_ms"]]
    if not spans:
        return {"count": 0}
    return {
        "count": sum(each["count"] for each in told),
        "p50_ms": quantile(spans, 0.5),
        "p99_ms": quantile(spans, 0.99),
        "max_ms": max(each["max_ms"] for each in told),
    }


def work(outcome: Outcome) -> Figures:
    """How much was read, and how much of it again."""
    again = sum(each.get("read_again", 0) for each in outcome.statuses)
    return {
        "fragments": outcome.fragments,
        "fragments_per_second": outcome.fragments / outcome.seconds,
        "sessions_per_second": outcome.sessions.delivered / outcome.seconds,
        "read": outcome.read,
        "read_again": again,
        "part_read_again": again / max(1, outcome.read),
        "read_again_in_order": outcome.read_again_in_order,
    }


def show(console: Console, outcome: Outcome) -> None:
    """Prints the promises, then how the group settled, then what it did."""
    console.print(_promises(outcome))
    console.print(_settling(outcome))
    console.print(_work(outcome))
    for line in outcome.trouble:
        console.print(f"[red]{line}[/]")


def _promises(outcome: Outcome) -> Table:
    shown = Table(title=f"What came out, {outcome.plan.guarantee}")
    for heading in ("", "sessions", "late fragments"):
        shown.add_column(heading, justify="right" if heading else "left")
    both = outcome.sessions, outcome.late
    for name, label in _PROMISES.items():
        shown.add_row(label, *(_count(each, name, outcome.plan.guarantee) for each in both))
    for name, label in {"expected": "in the answer", "delivered": "delivered"}.items():
        shown.add_row(label, *(f"{getattr(each, name):,}" for each in both))
    if outcome.sessions.missing:
        longest = [f"{each.longest_gap:,}" for each in both]
        shown.add_row("most missing in a row, of a partition", *longest)
    return shown


def _count(verdict: Verdict, name: str, guarantee: str) -> str:
    count = getattr(verdict, name)
    allowed = {"at-least-once": "doubled", "at-most-once": "missing"}.get(guarantee) == name
    return f"[{'green' if allowed or not count else 'red'}]{count:,}[/]"


def _settling(outcome: Outcome) -> Table:
    bound = bound_seconds(outcome.plan.lease)
    shown = Table(
        title=f"Seconds until settled; leases of {outcome.plan.lease:g} s, at most {bound:g} s"
    )
    shown.add_column("change")
    headings = ("count", "even p50", "p90", "max", "working p50", "p90", "max", "read again p50")
    for heading in (*headings, "max"):
        shown.add_column(heading, justify="right")
    for kind, figures in settling(outcome).items():
        cells = [f"{figures['even']['count']:,}"]
        for name in ("even", "working"):
            cells += [f"{figures[name].get(part, 0):.1f}" for part in ("p50", "p90", "max")]
        cells += [f"{figures['read_again'].get(part, 0):,.0f}" for part in ("p50", "max")]
        shown.add_row(kind, *cells)
    return shown


def _work(outcome: Outcome) -> Table:
    figures = work(outcome)
    shown = Table(title="What was done", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    color = "red" if outcome.read_again_in_order else "green"
    for label, text in {
        "members in all": f"{len(outcome.statuses):,}",
        "fragments published": f"{outcome.fragments:,} in {outcome.seconds:,.0f} s",
        "sessions": f"{figures['sessions_per_second']:,.0f}/s",
        "fragments read again": f"{figures['read_again']:,.0f} ({figures['part_read_again']:.2%})",
        "of these, where nobody was killed or paused":
            f"[{color}]{outcome.read_again_in_order:,}[/]",
        "standstill of a partition that is handed over": _gap_text(gaps(outcome, "handovers")),
        "of one that is resumed": _gap_text(gaps(outcome, "resumes")),
    }.items():  # fmt: skip
        shown.add_row(label, text)
    return shown


def _gap_text(found: Figures) -> str:
    if not found["count"]:
        return "none"
    return (
        f"{found['count']:,}: p50 {found['p50_ms']:,.0f} ms, p99 {found['p99_ms']:,.0f} ms, "
        f"longest {found['max_ms']:,.0f} ms"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "correct": outcome.correct,
        "plan": asdict(outcome.plan),
        "sessions": asdict(outcome.sessions),
        "late": asdict(outcome.late),
        "settling": settling(outcome),
        "bound_seconds": bound_seconds(outcome.plan.lease),
        "work": work(outcome),
        "handovers": gaps(outcome, "handovers"),
        "resumes": gaps(outcome, "resumes"),
        "changes": [asdict(change) for change in outcome.changes],
        "trouble": outcome.trouble,
    }
