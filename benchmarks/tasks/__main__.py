"""`python -m benchmarks.tasks`: tasks of Penstock and its peers; `make bench-tasks`."""

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
from benchmarks.tasks.rounds import LAYOUT, TaskRounds, choose_workloads
from benchmarks.tasks.systems import SYSTEMS, choose, system_of
from benchmarks.tasks.workloads import QUICK, WORKLOADS, Amounts


def bench_tasks(
    systems: Annotated[str, typer.Option(help=f"Of {', '.join(SYSTEMS)}.")] = "",
    workloads: Annotated[str, typer.Option(help=f"Of {', '.join(WORKLOADS)}.")] = "",
    repeats: Repeats = 3,
    quick: Quick = False,
    minutes: Minutes = 150.0,
    hold: Hold = 30.0,
    may_install: MayInstall = True,
    results: Results = RESULTS,
    data: Data = None,
) -> None:
    """Measure tasks of Penstock side by side with other task systems, on this machine."""
    names, chosen = chosen_by(choose, systems), chosen_by(choose_workloads, workloads)
    begin(data, "tasks-data")
    found, skipped = available(names, system_of, may_install)
    rules = rules_of(repeats, quick, minutes, hold)
    rounds = TaskRounds(QUICK if quick else Amounts(), rules, tell)
    run_and_publish(rounds, found, chosen, skipped, quick, LAYOUT, results)


def main() -> None:
    """The command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench_tasks)
    app()


if __name__ == "__main__":
    main()
