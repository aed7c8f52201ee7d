"""The report: tables with ratios to Penstock for people, JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.interleaved import QUIET_CORES, Measured
from benchmarks.system import Peer
from benchmarks.systems import BASE
from penstock.cli.benchmarks.figures import QUANTILES
from penstock.cli.benchmarks.report import number

NOTHING = "-"
_QUANTILES = [label for label in QUANTILES if label != "max"]

@dataclass(frozen=True)
class Layout:
    """How a report is laid out: its files, its tables, and what ratios refer to."""

    title: str
    stem: str  # of the names of all files
    base: str
    durable: str  # heading of the column that tells what is durable
    tables: Mapping[str, list[str]]  # title: figures
    # Start of a figure's name: title; these have as many columns as were measured.
    others: Mapping[str, str] = field(default_factory=dict)


PEERS = Layout(
    "Penstock and its peers",
    "peers",
    BASE,
    "once a push is confirmed, it is",
    {
        "Many messages, one client (msg/s, more is better)": [
            "push 50 B", "pop 50 B", "push 1 KiB", "pop 1 KiB",
        ],
        "Large messages, one client (MB/s, more is better)": [
            "push 256 KiB", "pop 256 KiB", "push 1 MiB", "pop 1 MiB",
        ],
        "A push and its confirmation, one at a time (us, less is better)": [
            f"single push/{label}" for label in _QUANTILES
        ],
        "A pop and its acknowledgement, one at a time (us, less is better)": [
            f"single pop/{label}" for label in _QUANTILES
        ],
        "End to end at 1,000 messages a second (us from when they were due, less is better)": [
            *(f"end to end 1,000/s/{label}" for label in _QUANTILES),
            "end to end 1,000/s/sent", "end to end 1,000/s/missing",
        ],
        "End to end at 10,000 messages a second (us from when they were due, less is better)": [
            *(f"end to end 10,000/s/{label}" for label in _QUANTILES),
            "end to end 10,000/s/sent", "end to end 10,000/s/missing",
        ],
        "Two producers and two consumers at once (msg/s, more is better; lost and doubled: none)": [
            "mixed", "mixed/lost", "mixed/duplicates",
        ],
    },
    {
        "queues ": (
            "Many queues (made a second; push p50 in us; bytes of the server's memory for each)"
        ),
        "recovery ": "From the start after a kill to the first message (s, less is better)",
        "syncs ": (
            "Is it durable? Sync calls of the server for a single push; what a push, a pop and a"
            " message on its way to a consumer take if each of those calls takes 50 ms"
        ),
        "memory ": "Memory of the server for a message that waits (bytes, less is better)",
    },
)  # fmt: skip


@dataclass(frozen=True)
class About:
    """What was measured."""

    version: str
    client: str
    settings: str
    durable: str

    @classmethod
    def of(cls, system: Peer) -> Self:
        """Asks a system that is installed."""
        return cls(system.version(), system.client_version(), system.settings, system.durable)


@dataclass(frozen=True)
class Report:
    """Everything that a run has found."""

    about: Mapping[str, About]
    measured: Mapping[str, Measured]
    skipped: Mapping[str, str]
    quick: bool
    layout: Layout = PEERS

    def cell(self, system: str, figure: str) -> str:
        """Median, spread over the rounds, ratio to Penstock; a star if others used processors."""
        own = self.measured[system].series.get(figure)
        if own is None:
            return NOTHING
        text = number(own.median)
        if len(own.values) > 1:
            text += f" ±{own.spread * 50:.0f} %"
        known = self.measured.get(self.layout.base)
        base = known.series.get(figure) if known is not None else None
        if system != self.layout.base and base is not None and base.median:
            text += f" ({own.median / base.median:.2f}x)"
        return text + ("*" if figure in self.measured[system].disturbed else "")

    def tables(self) -> list[tuple[str, list[str]]]:
        """Titles and columns, of what was measured."""
        names = list(dict.fromkeys(name for one in self.measured.values() for name in one.series))
        wanted = {
            **self.layout.tables,
            **{
                title: [name for name in names if name.startswith(start)]
                for start, title in self.layout.others.items()
            },
        }
        kept = [
            (title, [name for name in columns if name in names])
            for title, columns in wanted.items()
        ]
        return [(title, columns) for title, columns in kept if columns]

    def text(self) -> str:
        """Markdown that can be read as it is."""
        parts = [f"# {self.layout.title}", self._heading()]
        for title, columns in self.tables():
            rows = [
                [system, *(self.cell(system, column) for column in columns)]
                for system, measured in self.measured.items()
                if any(column in measured.series for column in columns)
            ]
            parts.append(f"## {title}\n\n{table(['', *columns], rows)}")
        rows = [[name, *asdict(about).values()] for name, about in self.about.items()]
        heading = ["", "server", "client", "settings", self.layout.durable]
        parts.append(f"## What was measured\n\n{table(heading, rows)}")
        notes = [f"- {name} was skipped: {reason}" for name, reason in self.skipped.items()]
        notes += [
            f"- {name} failed: {failure}"
            for name, measured in self.measured.items()
            for failure in measured.failures
        ]
        return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])]) + "\n"

    def _heading(self) -> str:
        counts = [len(s.values) for m in self.measured.values() for s in m.series.values()]
        words = f"Medians of {max(counts, default=0)} interleaved rounds ± half the spread; in"
        words += f" brackets the multiple of what `{self.layout.base}` has. *: others used more"
        words += f" than {QUIET_CORES:g} processors meanwhile."
        if self.quick:
            words += "\n\n**A quick run: it shows that everything works, and no speed.**"
        return words

    def as_json(self) -> dict[str, Any]:
        """The same with every value of every round."""
        return {
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": self.quick,
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "python": platform.python_version(),
            },
            "skipped": dict(self.skipped),
            "systems": {name: self._system(name, one) for name, one in self.measured.items()},
        }

    def _system(self, name: str, measured: Measured) -> dict[str, Any]:
        figures = {
            figure: {
                "unit": series.unit,
                "median": series.median,
                "spread": series.spread,
                "values": series.values,
                "foreign_cores": measured.disturbed.get(figure, 0.0),
            }
            for figure, series in measured.series.items()
        }
        about = asdict(self.about[name]) if name in self.about else {}
        return {**about, "failures": measured.failures, "figures": figures}

    def write(self, folder: Path) -> None:
        """Both, into a folder that is there."""
        stem = folder / self.layout.stem
        stem.with_suffix(".json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        stem.with_suffix(".md").write_text(self.text())


def table(heading: list[str], rows: list[list[str]]) -> str:
    """Markdown whose columns are aligned for those who read it as text."""
    widths = [max(len(row[at]) for row in [heading, *rows]) for at in range(len(heading))]
    lines = [heading, ["-" * width for width in widths], *rows]
    padded = [map(str.ljust, line, widths) for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
