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
    console.print(outcome.verdicts.shown())
    console.print(_faults(outcome))
    if outcome.left_out:
        console.print(f"[yellow]Nothing was cut off: {outcome.left_out}.[/]")
    for line in outcome.trouble:
        console.print(f"[red]{line}[/]")
    longest = max((pauses.longest for pauses in outcome.pauses), default=0.0)
    word = "within" if longest <= AIM_SECONDS else "beyond"
    console.print(f"Longest pause: {longest:.2f} s, {word} the aim of {AIM_SECONDS:g} s.")


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
        **outcome.verdicts.as_json(),
        "faults": faults,
        "aim_seconds": AIM_SECONDS,
        "left_out": outcome.left_out,
        "trouble": outcome.trouble,
    }
