"""What is found out about tasks, as text for people and as plain data for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.cli.output import grid
from penstock.cli.plot import blocks
from penstock.cli.units import duration_text
from penstock.tasks.names import shown
from penstock.wire.durations import span_text

if TYPE_CHECKING:
    from penstock.tasks.watching.graphs import TaskGraph
    from penstock.tasks.watching.overview import FunctionRow, Overview, WorkerRow
    from penstock.tasks.watching.status import TaskStatus
    from penstock.tasks.watching.timeline import Timeline

COLUMNS = 60  # characters of a lane
MAX_NAMED = 10  # parents or children
_FUNCTION_COLUMNS = ("function", "attempts", "failed", "waited p50", "p99", "took p50", "p99")
_WORKER_COLUMNS = (
    "worker", "kind", "running", "leased", "done", "failed", "retried", "busy", "ever", "seen", "",
)  # fmt: skip


def _moment(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")


# --- one task ----------------------------------------------------------------------------------


def status_json(status: TaskStatus) -> dict[str, Any]:
    """For programs."""
    failure = status.error
    return {
        **status._asdict(),
        "id": shown(status.id),
        "stages": [stage._asdict() for stage in status.stages],
        "error": None if failure is None else {
            "kind": failure.kind, "text": failure.text, "traceback": failure.traceback,
        },
        "parents": list(map(shown, status.parents)),
        "children": list(map(shown, status.children)),
    }  # fmt: skip


def status_text(status: TaskStatus) -> str:
    """For people."""
    lines = [f"{shown(status.id)}  {status.state}  {status.function}".rstrip()]
    if status.attempt:
        # Those that ended with their executor come on top of its own.
        most = 0 if status.retries is None else status.retries + 1
        allowed = f" of {most:,}" if status.attempt <= most else ""
        worker = f", on {status.worker}" if status.worker else ""
        lines.append(f"attempt {status.attempt:,}{allowed}{worker}")
    for stage in status.stages:
        after = f"  +{span_text(stage.after_us)}" if stage is not status.stages[0] else ""
        lines.append(f"  {stage.name:<10}{_moment(stage.at_us)}{after}")
    for name, tasks in (("after", status.parents), ("before", status.children)):
        lines += [f"  {name:<10}{shown(task)}" for task in tasks[:MAX_NAMED]]
        if len(tasks) > MAX_NAMED:
            lines.append(f"  {name:<10}and {len(tasks) - MAX_NAMED:,} more")
    if status.dead:
        lines.append("it is among the dead letters")
    if status.error is not None:
        lines.append(f"{status.error.kind}: {status.error.text}")
        lines += status.error.traceback.rstrip().splitlines()
    return "\n".join(lines)


def graph_json(graph: TaskGraph) -> dict[str, Any]:
    """For programs."""
    nodes = [
        {
            "id": shown(node.task),
            "function": node.function,
            "state": node.state,
            "after": list(map(shown, node.after)),
        }
        for node in graph.nodes.values()
    ]
    return {"centre": shown(graph.centre), "tasks": nodes, "more": graph.more}


# --- many --------------------------------------------------------------------------------------


def screen(name: str, overview: Overview) -> Any:
    """What `top` shows, to be printed by rich."""
    from rich.console import Group
    from rich.text import Text

    counts = "   ".join(f"{count:,} {state}" for state, count in overview.counts.items())
    gangs = f"   {overview.gangs:,} gangs" if overview.gangs else ""
    rates = ""
    if overview.submitted_rate is not None and overview.left_rate is not None:
        rates = f"   {overview.submitted_rate:,.0f}/s in   {overview.left_rate:,.0f}/s out"
    parts: list[Any] = [Text(f"{name}: {counts}{gangs}{rates}", style="bold"), Text()]
    if overview.functions:
        parts += [grid(_FUNCTION_COLUMNS, map(_function_cells, overview.functions)), Text()]
    if overview.workers:
        parts.append(grid(_WORKER_COLUMNS, map(_worker_cells, overview.workers)))
    else:
        parts.append(Text("no workers: start one with `penstock worker MODULE`", style="red"))
    return Group(*parts)


def _function_cells(row: FunctionRow) -> tuple[object, ...]:
    times = (row.waited_p50_us, row.waited_p99_us, row.took_p50_us, row.took_p99_us)
    return (row.function, row.attempts, row.failed, *map(span_text, times))


def _worker_cells(row: WorkerRow) -> tuple[object, ...]:
    return (
        row.worker, row.kind, f"{row.running:,} of {row.executors:,}", row.leased, row.done,
        row.failed, row.retried, f"{row.utilisation:.0%}", f"{row.lifelong:.0%}",
        f"{duration_text(row.seen_us / 1e6)} ago", "ending" if row.draining else "",
    )  # fmt: skip


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """For programs: lanes without their bars."""
    return {
        "begin_us": timeline.begin_us,
        "end_us": timeline.end_us,
        "tasks": timeline.tasks,
        "failed": timeline.failed,
        "longest_us": timeline.longest_us,
        "utilisation": round(timeline.utilisation, 4),
        "lanes": [
            {"worker": lane.worker, "tasks": len(lane.bars), "utilisation": round(lane.busy, 4)}
            for lane in timeline.lanes
        ],
    }


def timeline_text(timeline: Timeline) -> str:
    """For people: how busy each executor was, from left to right."""
    if not timeline.lanes:
        return "no outcome can be read: nobody waited for tasks in the last hour, or kept them"
    wide = max(len(lane.worker) for lane in timeline.lanes)
    lines = [
        f"{lane.worker:<{wide}}  {blocks(lane.columns(COLUMNS).tolist(), 1.0)}  {lane.busy:6.1%}"
        f"  {len(lane.bars):,} tasks"
        for lane in timeline.lanes
    ]
    lines.append(
        f"{timeline.tasks:,} tasks, {timeline.failed:,} failed, in "
        f"{duration_text(timeline.seconds)} from {_moment(timeline.begin_us)}: "
        f"{timeline.utilisation:.1%} busy; the longest took {span_text(timeline.longest_us)}"
    )
    return "\n".join(lines)
