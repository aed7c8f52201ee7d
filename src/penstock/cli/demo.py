"""`penstock demo`: clicks to sessions to minutes by Spark, killed half way, against the answer."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import penstock
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.demonstration import minutes
from penstock.cli.demonstration.minutes import Minute
from penstock.cli.demonstration.pipeline_run import PipelineRun
from penstock.cli.plot import bars
from penstock.consumers import Clicks
from penstock.errors import UnavailableError

PARTITIONS = 2
BLOCKS = 4
CLICKS_OF_A_CHAIN = 16  # about: two sessions of eight
BATCHES = 10
KILL_AT = 0.4  # of the fragments
STALL_S = 600.0  # without any progress
MOST_BARS = 20
_STEP_S = 0.2


@dataclass
class Run:
    """One demo: what went in, what came out, and how long it took."""

    clicks: Clicks
    fragments: int = 0
    expected: dict[int, Minute] = field(default_factory=dict)
    found: dict[int, Minute] = field(default_factory=dict)
    twice: int = 0
    killed_after: int | None = None
    seconds: float = 0.0
    again_seconds: float = 0.0

    @property
    def correct(self) -> bool:
        """Whether every minute came once, with the sessions that belong to it."""
        return self.killed_after is not None and not self.twice and self.found == self.expected

    @property
    def wrong(self) -> int:
        """Minutes that are missing, were not to come, or have other sessions."""
        starts = self.expected.keys() | self.found.keys()
        return sum(self.expected.get(each) != self.found.get(each) for each in starts)


def run_demo(fragments: int, console: Console, seed: int = 7, memory: str = "1g") -> Run:
    """Runs the demo in a directory that is removed afterwards."""
    chains = max(10, fragments // (BLOCKS * CLICKS_OF_A_CHAIN))
    run = Run(Clicks(seed, BLOCKS, chains, timeout=30.0, delay=2.0))
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        folder = Path(directory)
        with NodeProcess(folder / "node", aside=True) as node:
            console.print(f"A node serves {node.url}.")
            with penstock.connect(node.url, timeout=30.0) as fabric, _progress(console) as progress:
                _publish(run, fabric, progress)
                file = _pipeline(run, folder, node.url, progress.console)
                _work(run, file, progress, memory)
                messages = fabric.topic("minutes").subscribe(idle_timeout=1.0)
                values = [message.value for message in messages]
    last_us = max(run.expected, default=0)
    run.found, run.twice = minutes.received(values, last_us)
    return run


def _publish(run: Run, fabric: penstock.Fabric, progress: Progress) -> None:
    fabric.topic("minutes", partitions=1)
    topic = fabric.topic("clicks", partitions=PARTITIONS)
    bar = progress.add_task("fragments published", total=None)
    for count in minutes.publish(topic, run.clicks):
        run.fragments = count
        progress.update(bar, completed=count)
    progress.update(bar, total=run.fragments)
    run.expected = minutes.expected(run.clicks)


def _pipeline(run: Run, folder: Path, url: str, console: Console) -> Path:
    """Writes the pipeline, and shows it."""
    from penstock.spark.pipelines import as_tree, read_pipeline

    file = folder / "demo.toml"
    text = minutes.PIPELINE.format(
        url=url, rows=max(1, run.fragments // BATCHES), timeout=run.clicks.timeout,
        delay=run.clicks.delay,
    )  # fmt: skip
    file.write_text(text, encoding="utf-8")
    for line in as_tree(read_pipeline(file)):
        console.print(f"  {line}", markup=False, highlight=False)
    return file


def _work(run: Run, file: Path, progress: Progress, memory: str) -> None:
    """Runs the pipeline, kills it on the way, and runs it again to the end."""
    started = time.monotonic()
    bar = progress.add_task("starting Spark", total=run.fragments)
    log = file.with_suffix(".log")
    with PipelineRun(file, log, memory) as first:
        if _follow(run, first, progress, bar, until=round(run.fragments * KILL_AT)):
            run.killed_after = round(progress.tasks[bar].completed)
            first.kill()
            progress.console.print(
                f"After {run.killed_after:,} fragments the query was killed (SIGKILL): driver, "
                "Java and workers. It is started again."
            )
    again = time.monotonic()
    progress.update(bar, description="starting Spark again")
    with PipelineRun(file, log, memory) as second:
        _follow(run, second, progress, bar)
        if second.wait():
            raise UnavailableError(f"the pipeline failed:\n{second.words()}", advice=" ")
    run.seconds = time.monotonic() - started
    run.again_seconds = time.monotonic() - again


def _follow(
    run: Run, process: PipelineRun, progress: Progress, bar: Any, until: int | None = None
) -> bool:
    """Shows how the pipeline goes on, until it ends; or until so many fragments were read: True."""
    heard = time.monotonic()
    while (told := process.next(_STEP_S)) is not None:
        if time.monotonic() - heard > STALL_S:
            raise UnavailableError(f"nothing goes on:\n{process.words()}", advice=" ")
        if not told:
            continue
        heard = time.monotonic()
        if told["lag"] is None:
            continue
        done = run.fragments - told["lag"]
        text = f"batch {told['batch']:>2}, {told['rows_per_second']:>9,.0f}/s"
        progress.update(bar, completed=done, description=text)
        if until is not None and done >= until and told["event"] == "progress":
            return True
    if until is not None and process.wait():
        raise UnavailableError(f"the pipeline failed:\n{process.words()}", advice=" ")
    return False


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def show(run: Run, console: Console) -> None:
    """What came out: a plot of the minutes, and a table of sums."""
    sessions = [each.sessions for each in run.found.values()]
    starts = [datetime.fromtimestamp(each / 1e6, UTC) for each in run.found]
    step = -(-len(sessions) // MOST_BARS) or 1
    labels = [f"{each:%H:%M}" for each in starts[::step]]
    sums = [sum(sessions[at : at + step]) for at in range(0, len(sessions), step)]
    console.print(f"Sessions by {'minute' if step == 1 else f'{step} minutes'}:")
    for line in bars(labels, sums):
        console.print(f"  {line}", markup=False, highlight=False)
    console.print(table_of(run))


def table_of(run: Run) -> Table:
    """What came out, against the answer that is known from how the fragments were made."""
    table = Table(title="What came out")
    for name in ("", "by Spark", "known"):
        table.add_column(name, justify="left" if not name else "right")
    for name in Minute._fields:
        known = sum(getattr(each, name) for each in run.expected.values())
        found = sum(getattr(each, name) for each in run.found.values())
        table.add_row(name, f"{found:,}", f"{known:,}")
    table.add_row("minutes", f"{len(run.found):,}", f"{len(run.expected):,}")
    for label, count in (("minutes that are wrong", run.wrong), ("that came twice", run.twice)):
        table.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]", "0")
    table.add_row("fragments read", f"{run.fragments:,}", "")
    killed = "never" if run.killed_after is None else f"after {run.killed_after:,}"
    table.add_row("killed", killed, "")
    table.add_row("all in all, both starts of Spark included", f"{run.seconds:.1f} s", "")
    table.add_row("of it after the kill", f"{run.again_seconds:.1f} s", "")
    return table


def demo(
    fragments: Annotated[int, typer.Option(min=1000, help="About how many.")] = 200_000,
    seed: Annotated[int, typer.Option(help="The same clicks for the same.")] = 7,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of Spark's driver.")] = "1g",
) -> None:
    """Turn clicks into sessions and sessions into minutes with Spark, kill the query on the way,
    and compare what comes out with the answer."""
    console = console_for()
    with told_errors(as_json=False):
        run = run_demo(fragments, console, seed, memory)
    show(run, console)
    if not run.correct:
        console.print("[red]That is not the answer.[/]")
        raise typer.Exit(1)
    console.print("[green]Every session once, and every minute as it has to be.[/]")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)

if __name__ == "__main__":
    app()
