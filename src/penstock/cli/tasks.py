"""`penstock tasks …`: looks at tasks and those who run them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Here, new_app, on_fabric
from penstock.cli.live import Interval, Once, show_samples
from penstock.cli.units import duration

if TYPE_CHECKING:
    from penstock.tasks.watching.shells import TaskWatcher

ID_DIGITS = 32
UNKNOWN = "unknown"  # the state of a task that nothing is left of, or that never was

app = new_app("Tasks: where they are and why, who runs them, and how a run went.")

TaskSet = Annotated[str, typer.Argument(metavar="[TASKSET]", help="The task set.")]
TaskName = Annotated[str, typer.Argument(metavar="ID", help="A task's id, or the name it has.")]
OfTasks = Annotated[str, typer.Option("--tasks", "-t", help="The task set.")]


@contextmanager
def _watching(here: Here, task_set: str) -> Iterator[TaskWatcher]:
    from penstock.tasks.watching.shells import TaskWatcher

    with TaskWatcher(here.fabric, task_set) as watcher:
        yield watcher


def _task(text: str) -> bytes | str:
    """An id, if it looks like one; else a name."""
    if len(text) == ID_DIGITS:
        with suppress(ValueError):
            return bytes.fromhex(text)
    return text


@app.command()
@on_fabric
def top(
    here: Here, tasks: TaskSet = "default", interval: Interval = 1.0, once: Once = False
) -> None:
    """Show what waits, how long tasks of each function wait and take, and how busy workers are.

    Live; with --json, one line for each sample. Times of functions count from their workers' start.
    """
    from penstock.cli.tasks_text import screen

    with _watching(here, tasks) as watcher:
        show_samples(
            here.output, watcher.overview, lambda found: screen(tasks, found), interval, once
        )


@app.command()
@on_fabric
def show(here: Here, task: TaskName, tasks: OfTasks = "default") -> None:
    """Show one task: its state, when it reached which stage, its attempt, worker and error."""
    from penstock.cli.tasks_text import status_json, status_text

    with _watching(here, tasks) as watcher:
        status = watcher.status(_task(task))
    here.output.record(status_json(status), status_text(status))
    if status.state == UNKNOWN:
        raise typer.Exit(1)


@app.command()
@on_fabric
def explain(here: Here, task: TaskName, tasks: OfTasks = "default") -> None:
    """Tell why a task is not running or finished yet, or how it ended, and what to do about it."""
    with _watching(here, tasks) as watcher:
        told = watcher.explain(_task(task))
    lines = [told.state]
    for why, advice in told.reasons:
        lines += [f"- {why}", f"  {advice}"] if advice else [f"- {why}"]
    reasons = [reason._asdict() for reason in told.reasons]
    here.output.record({"state": told.state, "reasons": reasons}, "\n".join(lines))
    if told.state == UNKNOWN:
        raise typer.Exit(1)


@app.command()
@on_fabric
def graph(
    here: Here,
    task: TaskName,
    tasks: OfTasks = "default",
    dot: Annotated[bool, typer.Option("--dot", help="For Graphviz.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many tasks.")] = 50,
) -> None:
    """Show the tasks that a task depends on, and those that depend on it."""
    from penstock.cli.tasks_text import graph_json
    from penstock.tasks.watching import graphs

    with _watching(here, tasks) as watcher:
        found = watcher.graph(_task(task), limit)
    text = graphs.dot(found) if dot else "\n".join(graphs.tree(found))
    here.output.record(graph_json(found), text)


@app.command()
@on_fabric
def timeline(
    here: Here,
    tasks: TaskSet = "default",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.svg", help="Draw it there.")
    ] = None,
    last: Annotated[
        float | None,
        typer.Option("--last", parser=duration, metavar="TIME", help="Only what ended since."),
    ] = None,
) -> None:
    """Plot a run: workers by time. It is made of outcomes that can still be read: those of the last
    hour that somebody waited for, and those that are kept."""
    from penstock.cli.tasks_text import timeline_json, timeline_text
    from penstock.tasks.watching.svg import drawn

    with _watching(here, tasks) as watcher:
        found = watcher.timeline(last)
    if out is not None and found.lanes:
        out.write_text(drawn(found, f"tasks of {tasks}"))
        here.output.note(f"drawn to {out}")
    here.output.record(timeline_json(found), timeline_text(found))


@app.command()
@on_fabric
def dead(
    here: Here,
    tasks: TaskSet = "default",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 20,
) -> None:
    """List tasks that have failed for good, with their errors. See `penstock queue redrive`."""
    from penstock.tasks.names import shown, streams_of
    from penstock.tasks.watching.status import failure_of

    with _watching(here, tasks) as watcher:
        found = watcher.dead(count)
    rows: list[dict[str, Any]] = []
    for call, outcome in found:
        failure = failure_of(outcome)
        rows.append(
            {
                "id": shown(call.task),
                "function": call.function,
                "attempts": None if outcome is None else outcome.attempt,
                "error": None if failure is None else f"{failure.kind}: {failure.text}",
            }
        )
    if here.output.as_json:
        here.output.line(rows)
    elif rows:
        here.output.table(list(rows[0]), [list(row.values()) for row in rows])
        queue = streams_of(tasks).queue
        here.output.note(f"send them again with `penstock queue redrive {queue}`")
    else:
        here.output.note("no task is dead")
