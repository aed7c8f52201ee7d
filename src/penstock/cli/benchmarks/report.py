"""Showing results: tables for people, JSON for machines."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.benchmarks.figures import MICROSECONDS, QUANTILES, Series
from penstock.cli.benchmarks.goals import Outcome
from penstock.cli.benchmarks.measure import Results
from penstock.cli.benchmarks.settings import Settings

PIPE_WIDTH = 140  # columns where there is no terminal
_VERDICTS = {True: "[green]yes[/]", False: "[red]no[/]", None: "too small to tell"}
_LIBRARIES = ("penstock", "uvloop", "numpy", "msgspec", "xxhash")


def console_for(stderr: bool = False) -> Console:
    """Where tables and progress go."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=PIPE_WIDTH)


def show(console: Console, results: Results, outcomes: list[Outcome]) -> None:
    """Prints all figures, then the targets."""
    grouped: dict[str, dict[str, Series]] = {}
    for name, series in results.series.items():
        measurement, _, detail = name.partition("/")
        grouped.setdefault(measurement, {})[detail] = series
    timed = {name for name, details in grouped.items() if "p50" in details}
    if timed != grouped.keys():
        console.print(_figure_table(results, timed))
    if timed:
        console.print(_latency_table(results, {name: grouped[name] for name in sorted(timed)}))
    if outcomes:
        console.print(_goal_table(results, outcomes))


def _figure_table(results: Results, left_out: set[str]) -> Table:
    table = _table("Measured: medians of all rounds", ["median", "spread"], ["unit", "note"])
    for name, series in results.series.items():
        if name.partition("/")[0] not in left_out:
            note = results.note_of(name)
            table.add_row(name, number(series.median), _spread(series), series.unit, note)
    return table


def _latency_table(results: Results, latencies: dict[str, dict[str, Series]]) -> Table:
    title = f"Latencies in {MICROSECONDS}: medians of all rounds"
    table = _table(title, [*QUANTILES, "spread of p50"], ["note"])
    for name, details in latencies.items():
        cells = [number(details[quantile].median) for quantile in QUANTILES]
        table.add_row(name, *cells, _spread(details["p50"]), results.note_of(name))
    return table


def _goal_table(results: Results, outcomes: list[Outcome]) -> Table:
    title = "Targets: ratios to floors of the same run"
    table = _table(title, ["target", "measured", "floor", "ratio"], ["pass", "note"])
    for goal, measured, floor, ratio, passed in outcomes:
        notes = {results.note_of(goal.figure), results.note_of(goal.floor)} - {""}
        table.add_row(
            goal.label,
            goal.target,
            f"{number(measured)} {results.series[goal.figure].unit}",
            "" if floor is None else number(floor),
            f"{ratio:.2f}",
            _VERDICTS[passed],
            max(notes, default=""),
        )
    return table


def _table(title: str, numbers: list[str], words: list[str]) -> Table:
    table = Table(title=title)
    table.add_column("what")
    for heading in numbers:
        table.add_column(heading, justify="right")
    for heading in words:
        table.add_column(heading)
    return table


def number(value: float) -> str:
    """With as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _spread(series: Series) -> str:
    return f"{series.spread:.0%}" if len(series.values) > 1 else ""


def as_json(settings: Settings, results: Results, outcomes: list[Outcome]) -> dict[str, Any]:
    """Everything, with what is needed to compare it with other runs."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "processor": platform.machine(),
        },
        "settings": asdict(settings),
        "figures": {
            name: {"median": series.median, **asdict(series)}
            for name, series in results.series.items()
        },
        "goals": [
            {
                "label": outcome.goal.label,
                "figure": outcome.goal.figure,
                "floor": outcome.goal.floor,
                "limit": outcome.goal.limit,
                "at_least": outcome.goal.at_least,
                "measured": outcome.measured,
                "ratio": outcome.ratio,
                "passed": outcome.passed,
            }
            for outcome in outcomes
        ],
        "notes": results.notes,
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:  # run from a checkout, or not needed here
            found[library] = getattr(sys.modules.get(library), "__version__", "unknown")
    return found
