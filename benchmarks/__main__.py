"""`python -m benchmarks`: Penstock and its peers on this machine; `make bench-peers`."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import available, publish, tell
from benchmarks.folders import RESULTS, data_folder, use_data_folder
from benchmarks.interleaved import Rules
from benchmarks.report import About, Report
from benchmarks.rounds import WORKLOADS, Rounds, choose_workloads
from benchmarks.systems import LEFT_OUT, SYSTEMS, choose, system_of
from benchmarks.workloads import QUICK, Amounts


def bench_peers(
    systems: Annotated[str, typer.Option(help=f"Of {', '.join([*SYSTEMS, *LEFT_OUT])}.")] = "",
    workloads: Annotated[str, typer.Option(help=f"Of {', '.join(WORKLOADS)}.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds over all systems.")] = 3,
    quick: Annotated[bool, typer.Option(help="One round, tiny: only shows that it works.")] = False,
    minutes: Annotated[float, typer.Option(min=0.1, help="Nothing begins after these.")] = 150.0,
    hold: Annotated[float, typer.Option(min=0, help="Longest wait for a quiet machine, s.")] = 30.0,
    may_install: Annotated[bool, typer.Option("--install/--no-install")] = True,
    results: Annotated[Path, typer.Option(help="Where JSON, tables and plots go.")] = RESULTS,
    data: Annotated[Path | None, typer.Option(help="Where servers keep their data.")] = None,
) -> None:
    """Measure Penstock side by side with other systems, on this machine."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    try:
        names, chosen = choose(systems), choose_workloads(workloads)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if data is not None:
        use_data_folder(data / "peers-data")  # removed in the end, and nothing else of `data`
    data_folder().mkdir(parents=True, exist_ok=True)
    found, skipped = available(names, system_of, may_install)
    about = {system.name: About.of(system) for system in found}
    deadline = time.monotonic() + minutes * 60
    rules = Rules(1, 0.0, 0, deadline) if quick else Rules(repeats, hold, 1, deadline)
    rounds = Rounds(QUICK if quick else Amounts(), rules, tell)
    try:
        rounds.run(found, chosen)
    finally:  # what was measured before somebody ended it is worth a report
        publish(Report(about, rounds.measured, skipped, quick), results)
        shutil.rmtree(data_folder(), ignore_errors=True)


def main() -> None:
    """The command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench_peers)
    app()


if __name__ == "__main__":
    main()
