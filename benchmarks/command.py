"""What the commands of the benchmarks have in common."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from benchmarks.folders import data_folder, use_data_folder
from benchmarks.install import UnavailableError, install, missing
from benchmarks.interleaved import Interleaved, Rules
from benchmarks.plots import draw
from benchmarks.report import About, Layout, Report
from benchmarks.system import Peer

P = TypeVar("P", bound=Peer)

Repeats = Annotated[int, typer.Option(min=1, help="Rounds over all systems.")]
Quick = Annotated[bool, typer.Option(help="One round, tiny: only shows that it works.")]
Minutes = Annotated[float, typer.Option(min=0.1, help="Nothing begins after these.")]
Hold = Annotated[float, typer.Option(min=0, help="Longest wait for a quiet machine, s.")]
MayInstall = Annotated[bool, typer.Option("--install/--no-install")]
Results = Annotated[Path, typer.Option(help="Where JSON, tables and plots go.")]
Data = Annotated[Path | None, typer.Option(help="Where servers keep their data.")]


def chosen_by(choose: Callable[[str], list[str]], text: str) -> list[str]:
    """Names that the user chose; a wrong one is told as the command line tells it."""
    try:
        return choose(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def begin(data: Path | None, name: str) -> None:
    """Servers keep their data below `data`, in a folder of this name that is removed in the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    if data is not None:
        use_data_folder(data / name)
    data_folder().mkdir(parents=True, exist_ok=True)


def rules_of(repeats: int, quick: bool, minutes: float, hold: float) -> Rules:
    """How often, and how long; a quick run takes things as they are."""
    deadline = time.monotonic() + minutes * 60
    return Rules(1, 0.0, 0, deadline) if quick else Rules(repeats, hold, 1, deadline)


def run_and_publish(
    rounds: Interleaved[P], found: Sequence[P], workloads: Sequence[str],
    skipped: dict[str, str], quick: bool, layout: Layout, results: Path,
) -> None:  # fmt: skip
    """Measures everything, and reports it; also what was measured before somebody ended it."""
    about = {peer.name: About.of(peer) for peer in found}
    try:
        rounds.run(found, workloads)
    finally:
        publish(Report(about, rounds.measured, skipped, quick, layout), results)
        shutil.rmtree(data_folder(), ignore_errors=True)


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
