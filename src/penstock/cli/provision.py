"""`penstock provision`: starts workers on this computer as the queue needs them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import DEFAULT_URL, Json, Namespace, Url, fabric_at, told_errors
from penstock.cli.output import Output, grid
from penstock.cli.units import duration, duration_text

if TYPE_CHECKING:
    from penstock import Queue
    from penstock.tasks.provision import CostReport, Provisioner, Status, Terms
    from penstock.tasks.provision.local import LocalProcesses

SHORTEST_S = 0.05
END_S = 0.1  # between looks at workers that finish
TIMEOUT_S = 5.0


def provision(
    modules: Annotated[
        list[str], typer.Argument(metavar="MODULE|FILE.py", help="Where the tasks are declared.")
    ],
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="The task set.")] = "default",
    minimum: Annotated[int, typer.Option("--min", min=0, help="Workers at any time.")] = 0,
    maximum: Annotated[int, typer.Option("--max", min=1, help="Workers at a time.")] = 4,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Tasks at a time, of one worker.")
    ] = 1,
    growth: Annotated[
        int, typer.Option("--growth", min=1, help="So many more tasks waiting: one more worker.")
    ] = 100,
    backlog: Annotated[
        int, typer.Option("--backlog", min=1, help="Waiting tasks that one worker is enough for.")
    ] = 1000,
    period: Annotated[
        float,
        typer.Option("--period", parser=duration, metavar="TIME", help="Paid for as a whole."),
    ] = 3600.0,
    price: Annotated[float, typer.Option("--price", min=0.0, help="Of one period.")] = 0.0,
    idle: Annotated[
        float,
        typer.Option("--idle", parser=duration, metavar="TIME", help="Then a worker may end."),
    ] = 60.0,
    every: Annotated[
        float, typer.Option("--every", parser=duration, metavar="TIME", help="Between looks.")
    ] = 1.0,
    lasting: Annotated[
        float | None,
        typer.Option("--for", parser=duration, metavar="TIME", help="Then end all workers."),
    ] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = "default",
    json: Json = False,
) -> None:
    """Start workers when tasks queue up; each ends when it is idle and its paid period is nearly
    over. Ends with SIGTERM or Ctrl-C: workers finish what they run, and the costs are told."""
    with told_errors(json), fabric_at(url, None, namespace, TIMEOUT_S) as fabric:
        from penstock.tasks.names import streams_of
        from penstock.tasks.provision import Provisioner, Terms
        from penstock.tasks.provision.local import LocalProcesses

        terms = Terms(minimum, maximum, growth, backlog, period, price, idle)
        options = ["--tasks", tasks, "--concurrency", str(concurrency), "--url", url]
        provider = LocalProcesses([*modules, *options, "--namespace", namespace], terms)
        provisioner = Provisioner(terms, provider)
        screen = Screen(Output(json), terms, tasks)
        try:
            with screen, until_told(lasting) as over:
                queue = fabric.queue(streams_of(tasks).queue, max_deliveries=1_000_000)
                watch(queue, provisioner, screen, over, max(every, SHORTEST_S))
            wind_up(provisioner, provider, screen)
        finally:
            provider.close()


@contextmanager
def until_told(lasting_s: float | None) -> Iterator[threading.Event]:
    """An event that a signal sets, or time."""
    over = threading.Event()
    before = [
        (number, signal.signal(number, lambda *_: over.set()))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    timer = None if lasting_s is None else threading.Timer(lasting_s, over.set)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield over
    finally:
        if timer is not None:
            timer.cancel()
        for number, handler in before:
            signal.signal(number, handler)


def watch(
    queue: Queue, provisioner: Provisioner, screen: Screen, over: threading.Event, every_s: float
) -> None:
    """Looks at the queue until it is over. An error that may pass costs one look."""
    from penstock.errors import PenstockError

    while not over.is_set():
        try:
            waiting = queue.stats()["ready"]
        except PenstockError as error:
            if not error.retriable:
                raise
            screen.output.note(f"the queue cannot be seen now: {error}")
        else:
            now_s = time.monotonic()
            status = provisioner.look(waiting, now_s)
            screen.show(status, provisioner.ledger.report(now_s), now_s)
        over.wait(every_s)


def wind_up(provisioner: Provisioner, provider: LocalProcesses, screen: Screen) -> None:
    """Ends the workers, and tells what all was."""
    provisioner.stop()
    while provider.list():
        time.sleep(END_S)
    now_s = time.monotonic()
    provisioner.look(0, now_s)
    screen.sum_up(provisioner, now_s)


class Screen:
    """What a person sees, live; or lines for programs."""

    def __init__(self, output: Output, terms: Terms, tasks: str) -> None:
        self.output = output
        self._terms = terms
        self._tasks = tasks
        self._live: Any = None

    def __enter__(self) -> Screen:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, highlight=False)
        if not self.output.as_json and console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status, report: CostReport, now_s: float) -> None:
        """One look."""
        for event, workers in (("ended", status.ended), ("started", status.started)):
            for worker in workers:
                self._tell({"event": event, "worker": worker}, f"{event} worker {worker}")
        if self.output.as_json:
            seen = [asdict(each) for each in status.workers]
            look = {"event": "look", "waiting": status.waiting, "workers": seen}
            self.output.line({**look, "costs": _costs(report)})
        elif self._live is not None:
            self._live.update(self._table(status, report), refresh=True)

    def sum_up(self, provisioner: Provisioner, now_s: float) -> None:
        """The costs, worker by worker and all in all."""
        report = provisioner.ledger.report(now_s)
        if self.output.as_json:
            self.output.line({"event": "ended all", "costs": _costs(report)})
            return
        period_s, price = self._terms.period_s, self._terms.price
        rows = [
            (
                row.worker, duration_text((row.ended_s or now_s) - row.began_s),
                row.periods(period_s, now_s), row.periods(period_s, now_s) * price,
                duration_text(row.busy_s),
            )
            for row in provisioner.ledger.rows()
        ]  # fmt: skip
        self.output.table(("worker", "lived", "periods", "cost", "busy"), rows)
        self.output.record({}, _summary(report))

    def _tell(self, told: dict[str, Any], text: str) -> None:
        if self.output.as_json:
            self.output.line(told)
        elif self._live is None:
            self.output.note(text)

    def _table(self, status: Status, report: CostReport) -> Any:
        from rich.console import Group
        from rich.text import Text

        head = f"{self._tasks}: {status.waiting:,} waiting, {len(status.workers):,} workers"
        rows = [(w.worker, w.running, w.done, duration_text(w.busy_s)) for w in status.workers]
        table = grid(("worker", "running", "done", "busy"), rows)
        return Group(Text(head, style="bold"), table, Text(_summary(report), style="dim"))


def _costs(report: CostReport) -> dict[str, Any]:
    return {**asdict(report), "used": round(report.used, 4), "saved": round(report.saved, 4)}


def _summary(report: CostReport) -> str:
    return (
        f"{report.workers:,} workers, at most {report.most_at_once:,} at once: {report.periods:,} "
        f"periods, cost {report.cost:,.2f}; {report.used:.0%} of the paid time was used, "
        f"and {report.saved:.0%} saved against the maximum all the time"
    )
