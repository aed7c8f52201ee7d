"""What commands that run Spark share: the session, where topics are, progress, errors."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from penstock.cli.command import (
    DEFAULT_URL,
    DataPath,
    Json,
    Namespace,
    Url,
    told_errors,
    with_options_of,
)
from penstock.cli.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from penstock.spark.apps import Fabric

LOOK_S = 0.2
_LOUD = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

P = ParamSpec("P")

Master = Annotated[
    str, typer.Option("--master", envvar="PENSTOCK_MASTER", help="Where Spark runs.")
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Of Spark's driver.")]
Ship = Annotated[bool, typer.Option("--ship", help="Send this package to the workers.")]


class Sparks:
    """What a command that runs Spark works with. The session is started when first asked for."""

    def __init__(
        self, output: Output, fabric: Fabric, start: Callable[[], SparkSession]
    ) -> None:
        self.output = output
        self.fabric = fabric
        self._start = start
        self._session: SparkSession | None = None
        self.started_s = time.monotonic()

    @property
    def session(self) -> SparkSession:
        """The session; it ends with the command."""
        if self._session is None:
            with waiting(self.output, "starting Spark"):
                self._session = self._start()
            self.started_s = time.monotonic()
        return self._session

    @property
    def seconds(self) -> float:
        """Since Spark was ready."""
        return round(time.monotonic() - self.started_s, 3)

    def stop(self) -> None:
        """Ends the session, if there is one."""
        if self._session is not None:
            self._session.stop()


def on_spark(function: Callable[Concatenate[Sparks, P], None]) -> Callable[..., None]:
    """A command that runs Spark: it gets the options that say where, and `--json`."""
    call: Callable[..., None] = function

    def run(
        *,
        url: Url = DEFAULT_URL,
        path: DataPath = None,
        namespace: Namespace = "default",
        master: Master = "local[2]",
        memory: Memory = "1g",
        ship: Ship = False,
        json: Json = False,
        **given: Any,
    ) -> None:
        from penstock.spark import session
        from penstock.spark.apps import Fabric

        fabric = Fabric("" if path else url, os.path.abspath(path) if path else "", namespace)
        sparks = Sparks(Output(json), fabric, lambda: session(master, memory, ship=ship))
        with told_errors(json), spark_errors():
            try:
                call(sparks, **given)
            finally:
                sparks.stop()

    return with_options_of(run, function)


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark says becomes an error that is told in a few words."""
    from penstock.errors import InvalidError
    from penstock.spark.said import said

    try:
        from pyspark.errors import PySparkException
        from pyspark.logger import PySparkLogger
    except ImportError:
        yield  # `session` tells that it is missing
        return
    for name in _LOUD:
        # The same is told in one line here. Made by Spark: it writes with words of its own.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    except PySparkException as error:
        raise InvalidError(f"Spark: {said(error)}", advice=" ") from error


@contextmanager
def waiting(output: Output, text: str) -> Iterator[None]:
    """Shows on a terminal that something takes its time."""
    from rich.console import Console

    console = Console(stderr=True)
    if output.as_json or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def following(sparks: Sparks, text: str) -> Iterator[None]:
    """Shows how many tasks of the stages that run are done, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if sparks.output.as_json or not console.is_terminal:
        sparks.output.note(text)
        yield
        return
    over = threading.Event()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        thread = threading.Thread(
            target=_follow, args=(sparks.session, progress, text, over), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _follow(spark: SparkSession, progress: Progress, text: str, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    shown: dict[int, Any] = {}
    progress.add_task(text, total=None)
    while not over.wait(LOOK_S):
        for stage in tracker.getActiveStageIds():
            if (told := tracker.getStageInfo(stage)) is None:
                continue
            if stage not in shown:
                shown[stage] = progress.add_task(f"  {told.name.partition(' at ')[0]}")
            done = told.numCompletedTasks
            progress.update(shown[stage], total=told.numTasks, completed=done)


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """Set by SIGTERM or SIGINT; what the second one does is up to Python."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, ask)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
