"""What the commands of the benchmarks have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import typer

from benchmarks.install import UnavailableError, install, missing
from benchmarks.plots import draw
from benchmarks.report import Report
from benchmarks.system import Peer

P = TypeVar("P", bound=Peer)


def available(
    names: Iterable[str], peer_of: Callable[[str], P], may_install: bool
) -> tuple[list[P], dict[str, str]]:
    """Those that can be measured, installed; and why the others cannot."""
    found: list[P] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            peer = peer_of(name)
            for folder, needs in peer.installs().items():
                if may_install:
                    install(folder, needs)
                elif lacks := missing(folder, needs):
                    raise UnavailableError(f"not installed: {', '.join(lacks)}")
            found.append(peer)
        except UnavailableError as reason:
            skipped[name] = str(reason)
            tell(f"{name} is skipped: {reason}")
    return found, skipped


def tell(text: str) -> None:
    """Says how it goes; the report alone goes to the standard output."""
    print(text, file=sys.stderr, flush=True)


def publish(report: Report, results: Path) -> None:
    """Writes and prints it."""
    results.mkdir(parents=True, exist_ok=True)
    report.write(results)
    draw(report, results, tell)
    typer.echo(report.text())
