"""What a run showed: tables for people, JSON for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.faulting.pauses import AIM_SECONDS, Pauses
from penstock.cli.faulting.run import Outcome


def show(console: Console, outcome: Outcome) -> None:
    """Prints the promises, then every fault with the pauses around it."""
    console.print(_promises(outcome))
    console.print(_faults(outcome))
    if outcome.left_out:
        console.print(f"[yellow]Nothing was cut off: {outcome.left_out}.[/]")
    for line in outcome.trouble:
        console.print(f"[red]{line}[/]")
    longest = max((pauses.longest for pauses in outcome.pauses), default=0.0)
    word = "within" if longest <= AIM_SECONDS else "beyond"
    console.print(f"Longest pause: {longest:.2f} s, {word} the aim of {AIM_SECONDS:g} s.")


def _promises(outcome: Outcome) -> Table:
    queue, topic, table = outcome.queue, outcome.topic, outcome.table
    shown = Table(title="What came out", show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for label, count in {
        "queue: acknowledged and lost": queue.lost,
        "queue: acked twice": queue.acked_twice,
        "queue: delivered again without a cause": queue.without_cause,
        "queue, topic: delivered, but sent by nobody": queue.unsent + topic.unsent,
        "topic: acknowledged and lost": topic.lost,
        "topic: stored twice": topic.doubled,
        "topic: out of order": topic.out_of_order,
        "table: lost updates": table.lost_updates,
        "table: reads of the past": table.stale_reads,
    }.items():
        shown.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]")
    for label, text in _counts(outcome).items():
        shown.add_row(label, text)
    return shown


def _counts(outcome: Outcome) -> dict[str, str]:
    queue, topic, table, seconds = outcome.queue, outcome.topic, outcome.table, outcome.seconds
    unknown = queue.unknown_pushes + topic.unknown_publishes + table.unknown_writes
    return {
        "messages acknowledged, queue": f"{queue.acknowledged:,}",
        "messages consumed": f"{queue.consumed:,}",
        "delivered again (lease ran out, or a fault)": f"{queue.delivered_again:,}",
        "seen within half a lease of the push": f"{queue.prompt:,}",
        "acks refused, unknown": f"{queue.refused_acks:,}, {queue.unknown_acks:,}",
        "messages acknowledged, topic": f"{topic.acknowledged:,}",
        "counts in the table, conflicts": f"{table.counted:,}, {table.conflicts:,}",
        "pushes and writes of which nobody knows": f"{unknown:,}",
        "load, faults included": (
            f"{(queue.acknowledged + topic.acknowledged) / seconds:,.0f} messages/s, "
            f"{table.counted / seconds:,.0f} counts/s, {seconds:,.0f} s"
        ),
    }


def _faults(outcome: Outcome) -> Table:
    shown = Table(title=f"Longest pauses around every fault, in s; the aim is {AIM_SECONDS:g} s")
    shown.add_column("what was done")
    cut_off, rest = "those cut off, afterwards", "at rest after"
    for heading in ("producers", "consumers", "table", cut_off, rest):
        shown.add_column(heading, justify="right")
    for fault, pauses in zip(outcome.faults, outcome.pauses, strict=True):
        rejoined = "" if pauses.rejoined is None else _seconds(pauses.rejoined)
        shown.add_row(fault.label, *_cells(pauses), rejoined, f"{fault.whole_seconds:.1f}")
    return shown


def _cells(pauses: Pauses) -> list[str]:
    return [_seconds(each) for each in (pauses.producer, pauses.consumer, pauses.table)]


def _seconds(value: float) -> str:
    return f"[{'green' if value <= AIM_SECONDS else 'red'}]{value:.2f}[/]"


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was found."""
    faults = [
        {"what": fault.label, "whole_seconds": fault.whole_seconds, **asdict(pauses)}
        for fault, pauses in zip(outcome.faults, outcome.pauses, strict=True)
    ]
    return {
        "correct": outcome.correct,
        "queue": asdict(outcome.queue),
        "topic": asdict(outcome.topic),
        "table": asdict(outcome.table),
        "faults": faults,
        "aim_seconds": AIM_SECONDS,
        "seconds": outcome.seconds,
        "left_out": outcome.left_out,
        "trouble": outcome.trouble,
    }
