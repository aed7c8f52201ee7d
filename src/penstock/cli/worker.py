"""`penstock worker`: runs tasks of a task set, in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import DEFAULT_URL, Json, Namespace, Url, told_errors
from penstock.cli.output import Output
from penstock.cli.units import duration

if TYPE_CHECKING:
    from penstock.tasks.worker.puller import Puller
    from penstock.tasks.worker.settings import WorkerSettings

REPORT_S = 1.0


class Kind(StrEnum):
    """What functions run in."""

    PROCESS = "process"
    THREAD = "thread"
    ASYNC = "async"


def worker(
    modules: Annotated[
        list[str], typer.Argument(metavar="MODULE|FILE.py", help="Where the tasks are declared.")
    ],
    tasks: Annotated[str, typer.Option("--tasks", "-t", help="The task set.")] = "default",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Tasks at a time.")
    ] = os.cpu_count() or 1,
    kind: Annotated[Kind, typer.Option("--kind", help="What they run in.")] = Kind.PROCESS,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="PACKAGE", help="Run its undeclared functions, too."),
    ] = None,
    lease: Annotated[
        float,
        typer.Option("--lease", parser=duration, metavar="TIME", help="Then others take over."),
    ] = 30.0,
    drain: Annotated[
        float,
        typer.Option("--drain", parser=duration, metavar="TIME", help="To finish what runs."),
    ] = 30.0,
    pickle_key: Annotated[
        Path | None,
        typer.Option("--pickle-key", metavar="FILE", help="Take pickles signed with this key."),
    ] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = "default",
    timeout: Annotated[
        float, typer.Option("--timeout", parser=duration, metavar="TIME", help="Of every request.")
    ] = 30.0,
    json: Json = False,
) -> None:
    """Run tasks until SIGTERM or Ctrl-C. Then nothing more is begun, what waits here goes back to
    the queue at once, and what runs may end within --drain; the second time, the worker ends now.
    """
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with told_errors(json):
        from penstock.node.node import run_loop
        from penstock.tasks.worker.settings import WorkerSettings

        settings = WorkerSettings(
            tuple(modules), tasks, concurrency, kind.value, tuple(allow or ()), lease, drain,
            None if pickle_key is None else pickle_key.read_bytes(),
        )  # fmt: skip
        run_loop(_work(url, namespace, timeout, settings, Output(json)))


async def _work(
    url: str, namespace: str, timeout_s: float, settings: WorkerSettings, output: Output
) -> None:
    from penstock.client.aio import connect
    from penstock.tasks.worker.worker import open_puller, worker_name

    async with connect(url, timeout_s, namespace, name="worker") as fabric:
        puller = await open_puller(fabric, settings)
        _listen_to_signals(puller, output)
        try:
            await puller.start()
        except BaseException:
            await puller.close()
            raise
        reporting = asyncio.create_task(_report(puller, settings, output))
        told = {"event": "started", "worker": worker_name(), "tasks": settings.task_set}
        output.record(told, f"worker {worker_name()} runs tasks of {settings.task_set!r}")
        sys.stdout.flush()
        try:
            await puller.run()
        finally:
            reporting.cancel()
        figures = puller.figures.as_dict()
        text = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in figures.items())
        output.record({"event": "stopped", **figures}, f"stopped: {text}")


def _listen_to_signals(puller: Puller, output: Output) -> None:
    def told() -> None:
        if puller.dispatch.draining:
            puller.stop()
        else:
            output.note(f"finishing {puller.dispatch.jobs:,} tasks; once more: end now")
            puller.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)


async def _report(puller: Puller, settings: WorkerSettings, output: Output) -> None:
    """A line every second: on a terminal always the same one; as JSON, one after the other."""
    if not output.as_json and not sys.stderr.isatty():
        return
    before = puller.figures.as_dict()
    while True:
        await asyncio.sleep(REPORT_S)
        now = puller.figures.as_dict()
        rates = {name: now[name] - before[name] for name in now}
        line = _line(now, rates, len(puller.dispatch.slots) - puller.dispatch.idle, settings)
        if output.as_json:
            output.line({"event": "progress", **line})
            sys.stdout.flush()
        else:
            shown = (
                f"running {line['running']:,} of {settings.concurrency:,}   "
                f"done {line['done']:,} ({line['done_per_s']:,}/s)   failed {line['failed']:,}   "
                f"retried {line['retried']:,}   busy {line['utilisation']:.0%}"
            )
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
        before = now


def _line(
    now: dict[str, int], rates: dict[str, int], running: int, settings: WorkerSettings
) -> dict[str, Any]:
    used = rates["busy_us"] / 1e6 / REPORT_S / settings.concurrency
    return {
        "running": running,
        "done_per_s": round(rates["done"] / REPORT_S),
        "utilisation": round(min(used, 1.0), 3),
        **{name: count for name, count in now.items() if name != "busy_us"},
    }
