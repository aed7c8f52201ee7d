"""`penstock sim`: break the network, the disk and the processes from one seed, and check."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import Json, told_errors
from penstock.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sim import Verdict

MAX_EXPLAINED = 3


def sim(
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds to run.")] = 20,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, help="Virtual minutes of every run.")
    ] = 0.5,
    faults: Annotated[
        str, typer.Option("--faults", help="all, none, or some of disk,net,crash.")
    ] = "all",
    json: Json = False,
) -> None:
    """Run the simulator. Exit code 1 if a promise was broken; the same seed breaks it again."""
    from penstock.sim import run_many

    with told_errors(json):
        numbers = range(seed, seed + seeds)
        with _progress(seeds, shown=not json) as advance:
            verdicts = run_many(numbers, minutes, faults, advance)
        broken = [verdict for verdict in verdicts if not verdict.passed]
        if json:
            Output(True).line({"passed": not broken, "runs": [v.as_dict() for v in verdicts]})
        else:
            _explain(verdicts, broken)
    if broken:
        raise typer.Exit(1)


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[Verdict], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not shown, transient=True) as progress:
        task = progress.add_task("seeds", total=total)
        failed = 0

        def advance(verdict: Verdict) -> None:
            nonlocal failed
            failed += not verdict.passed
            text = f"seeds, {failed} failed" if failed else "seeds"
            progress.update(task, advance=1, description=text)

        yield advance


def _explain(verdicts: list[Verdict], broken: list[Verdict]) -> None:
    for verdict in broken[:MAX_EXPLAINED]:
        typer.echo(verdict.explain())
    figures = {
        name: sum(verdict.figures[name] for verdict in verdicts) for name in verdicts[0].figures
    }
    done = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in figures.items())
    typer.echo(f"{len(verdicts) - len(broken)} of {len(verdicts)} seeds kept every promise: {done}")
