"""`penstock worker`: runs tasks of a task set, in the foreground."""

from __future__ import annotations

import logging
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from socket import gethostname
from typing import Annotated

import typer

from penstock.cli.command import DEFAULT_URL, Json, Namespace, Url, told_errors
from penstock.cli.output import Output
from penstock.cli.units import duration


class Kind(StrEnum):
    """What functions run in."""

    PROCESS = "process"
    THREAD = "thread"
    ASYNC = "async"


Host = Annotated[
    str | None,
    typer.Option("--host", metavar="NAME", help="Take tasks whose data is on this host."),
]
Blocks = Annotated[
    list[str] | None,
    typer.Option("--block", metavar="NAME", help="Data that the host has. May be repeated."),
]
PickleKey = Annotated[
    Path | None,
    typer.Option("--pickle-key", metavar="FILE", help="Take pickles signed with this key."),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="PATH", help="For very large values; callers have it, too."
    ),
]
Period = Annotated[
    float | None,
    typer.Option(
        "--period", parser=duration, metavar="TIME",
        help="Paid in such periods: end when idle, near the end of one.",
    ),
]  # fmt: skip
Idle = Annotated[
    float,
    typer.Option("--idle", parser=duration, metavar="TIME", help="With --period: so long."),
]


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
    pickle_key: PickleKey = None,
    gangs: Annotated[int, typer.Option("--gangs", min=0, help="Places in gangs, besides.")] = 0,
    address: Annotated[
        str, typer.Option("--address", help="Told to the other members of a gang.")
    ] = "",
    host: Host = None,
    block: Blocks = None,
    directory: Directory = None,
    period: Period = None,
    idle: Idle = 60.0,
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
    over = "\r\x1b[K" if sys.stderr.isatty() else ""  # the line that tells how it goes
    log_format = f"{over}%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level="WARNING", format=log_format)
    with told_errors(json):
        from penstock.cli.worker_run import Gangs, work
        from penstock.client.aio import connect
        from penstock.node.node import run_loop
        from penstock.tasks.provision.leaving import Leaving
        from penstock.tasks.worker.settings import WorkerSettings

        settings = WorkerSettings(
            tuple(modules), tasks, concurrency, kind.value, tuple(allow or ()), lease, drain,
            None if pickle_key is None else pickle_key.read_bytes(),
            host=host or (gethostname() if block else ""), blocks=tuple(block or ()),
            directory="" if directory is None else str(directory.absolute()),
        )  # fmt: skip
        connecting = connect(url, timeout, namespace, name="worker")
        paid = None if period is None else Leaving(period, idle, time.monotonic())
        run_loop(work(connecting, settings, Gangs(gangs, address), Output(json), paid))
