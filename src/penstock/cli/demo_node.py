"""`penstock demo-node`: a node is killed at work, and nothing is lost, doubled or stuck."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import connect
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.report import console_for
from penstock.cli.command import told_errors
from penstock.cli.demonstration import clients
from penstock.cli.demonstration.clients import Consumed, Pushed
from penstock.cli.demonstration.ledger import Ledger

PRODUCERS = 2
CONSUMERS = 2
BATCH = 1000
LEASE_SECONDS = 2.0
STALL_SECONDS = 30.0  # without any report: something is wrong, and the books tell what
_TICK_SECONDS = 0.1


@dataclass
class Run:
    """One demo: its processes, its books, its times."""

    per_producer: int
    ledger: Ledger
    pipes: list[Connection] = field(default_factory=list)
    processes: list[BaseProcess] = field(default_factory=list)
    started: float = 0.0
    seconds: float = 0.0
    recovery_seconds: float = 0.0

    @property
    def messages(self) -> int:
        """Of all producers."""
        return self.per_producer * PRODUCERS

    @property
    def complete(self) -> bool:
        """Whether everything was stored and consumed."""
        ledger = self.ledger
        return ledger.stored == self.messages and ledger.accepted >= self.messages

    @property
    def failed(self) -> bool:
        """Whether a client gave up: then there is nothing to wait for."""
        return any(process.exitcode for process in self.processes)

    @property
    def correct(self) -> bool:
        """Whether every promise held."""
        ledger = self.ledger
        broken = ledger.lost or ledger.acked_twice or ledger.without_cause
        return ledger.stored == self.messages and not broken

    def take_reports(self) -> bool:
        """Enters what the clients report within a moment; whether there was something."""
        ready = wait(self.pipes, _TICK_SECONDS)
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                report: Pushed | Consumed = pipe.recv()
            except EOFError:  # a client has ended
                self.pipes.remove(pipe)
                pipe.close()
                continue
            if isinstance(report, Pushed):
                self.ledger.pushed(report)
            else:
                self.ledger.consumed(report)
        return bool(ready)


def run_demo(messages: int, console: Console, lease: float = LEASE_SECONDS) -> Run:
    """Runs the demo in a directory that is removed afterwards."""
    per_producer = max(messages // PRODUCERS, 1)
    run = Run(per_producer, Ledger(PRODUCERS, per_producer, lease))
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        data = Path(directory, "node")
        node = NodeProcess(data)
        try:
            console.print(f"A node serves {node.url}.")
            with connect(node.url) as fabric:
                fabric.queue(clients.QUEUE)
            with _clients(run, node.url, lease):
                node = _work(run, node, data, console)
        finally:
            node.stop()
    return run


def _work(run: Run, node: NodeProcess, data: Path, console: Console) -> NodeProcess:
    """Follows the clients until all is consumed; kills the node half way. The node that runs."""
    run.started = heard = time.monotonic()
    with _progress(console) as progress:
        bars = [progress.add_task(name, total=run.messages) for name in ("stored", "consumed")]
        while not (run.complete or run.failed) and time.monotonic() - heard < STALL_SECONDS:
            if run.take_reports():
                heard = time.monotonic()
            if run.ledger.killed_ns is None and run.ledger.stored >= run.messages // 2:
                node = _kill_and_restart(run, node, data, progress.console)
                heard = time.monotonic()
            progress.update(bars[0], completed=run.ledger.stored)
            progress.update(bars[1], completed=run.ledger.accepted)
        run.seconds = time.monotonic() - run.started
    return node


def _kill_and_restart(run: Run, node: NodeProcess, data: Path, console: Console) -> NodeProcess:
    run.ledger.killed_ns = time.monotonic_ns()
    node.kill()
    console.print(f"Half way: the node was killed (SIGKILL, process {node.pid}).")
    again = NodeProcess(data, node.address)
    run.recovery_seconds = again.start_seconds
    console.print(f"It is back after {run.recovery_seconds:.2f} s, on the same directory and port.")
    return again


@contextmanager
def _clients(run: Run, url: str, lease: float) -> Iterator[None]:
    """Producers and consumers; all have ended when it is left."""
    context = multiprocessing.get_context("spawn")
    work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        *((clients.consume, (url, number, lease)) for number in range(CONSUMERS)),
        *((clients.produce, (url, n, run.per_producer, BATCH)) for n in range(PRODUCERS)),
    ]
    try:
        for target, arguments in work:
            here, there = context.Pipe(duplex=False)
            run.pipes.append(here)
            process = context.Process(target=target, args=(*arguments, there))
            run.processes.append(process)
            process.start()
            there.close()  # so that the pipe ends with the process
        yield
    finally:
        for started in run.processes:
            _end(started)
        for pipe in run.pipes:
            pipe.close()


def _end(process: BaseProcess) -> None:
    if process.pid is None:
        return
    process.terminate()
    process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def table_of(run: Run) -> Table:
    """What came out; the first three rows have to be zero."""
    ledger = run.ledger
    table = Table(title="What came out", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, count in (
        ("acknowledged and lost", ledger.lost),
        ("acked twice", ledger.acked_twice),
        ("delivered again without a cause", ledger.without_cause),
    ):
        table.add_row(label, f"[{'red' if count else 'green'}]{count:,}[/]")
    rows = {
        "messages stored": f"{ledger.stored:,} of {run.messages:,}",
        "messages consumed": f"{ledger.accepted:,}",
        "delivered again (lease ran out, or the kill)": f"{ledger.delivered_again:,}",
        "all in all": f"{run.seconds:.1f} s",
        "stored and consumed, outage included": f"{run.messages / run.seconds:,.0f} messages/s",
        f"push of {BATCH:,}, p50 / p99": _pair(
            ledger.push_quantile(0.5), ledger.push_quantile(0.99)
        ),
        "end to end, p50 / p99": _pair(ledger.wait_quantile(0.5), ledger.wait_quantile(0.99)),
        "recovery, start of the process included": f"{run.recovery_seconds:.2f} s",
        "longest push: the outage as a producer saw it": f"{ledger.push_quantile(1.0):.2f} s",
    }
    for label, text in rows.items():
        table.add_row(label, text)
    return table


def _pair(first: float, second: float) -> str:
    return f"{first * 1e3:,.1f} / {second * 1e3:,.1f} ms"


def demo_node(
    messages: Annotated[int, typer.Option(min=PRODUCERS, help="How many.")] = 1_000_000,
) -> None:
    """Kill a node at work, start it again, and check that every message was dealt with once."""
    console = console_for()
    with told_errors(as_json=False):
        run = run_demo(messages, console)
    console.print(table_of(run))
    if not run.correct:
        console.print("[red]A promise was broken.[/]")
        raise typer.Exit(1)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(demo_node)

if __name__ == "__main__":
    app()
