"""`python -m benchmarks`: Penstock and its peers on this machine; `make bench-peers`."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.command import (
    Data,
    Hold,
    MayInstall,
    Minutes,
    Quick,
    Repeats,
    Results,
    available,
    begin,
    chosen_by,
    rules_of,
    run_and_publish,
    tell,
)
from benchmarks.folders import RESULTS
from benchmarks.report import PEERS
from benchmarks.rounds import WORKLOADS, Rounds, choose_workloads
from benchmarks.systems import LEFT_OUT, SYSTEMS, choose, system_of
from benchmarks.workloads import QUICK, Amounts


def bench_peers(
    systems: Annotated[str, typer.Option(help=f"Of {', '.join([*SYSTEMS, *LEFT_OUT])}.")] = "",
    workloads: Annotated[str, typer.Option(help=f"Of {', '.join(WORKLOADS)}.")] = "",
    repeats: Repeats = 3,
    quick: Quick = False,
    minutes: Minutes = 150.0,
    hold: Hold = 30.0,
    may_install: MayInstall = True,
    results: Results = RESULTS,
    data: Data = None,
) -> None:
    """Measure Penstock side by side with other systems, on this machine."""
    names, chosen = chosen_by(choose, systems), chosen_by(choose_workloads, workloads)
    begin(data, "peers-data")
    found, skipped = available(names, system_of, may_install)
    rules = rules_of(repeats, quick, minutes, hold)
    rounds = Rounds(QUICK if quick else Amounts(), rules, tell)
    run_and_publish(rounds, found, chosen, skipped, quick, PEERS, results)


def main() -> None:
    """The command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench_peers)
    app()


if __name__ == "__main__":
    main()
