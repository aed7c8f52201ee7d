"""`penstock doctor`: what a data directory holds, and whether all of it verifies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import Json, told_errors
from penstock.cli.output import Output
from penstock.cli.units import size_text

if TYPE_CHECKING:
    from penstock.node.findings import DamageFinding, Findings

MAX_SHOWN = 50  # damages and gaps; all of them are in the JSON


def doctor(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory.")],
    force: Annotated[
        bool, typer.Option("--force", help="Look also while a node has it open: read only.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a data directory, offline, without changing it. Exit code 1 if it is damaged."""
    with told_errors(json):
        with _progress(shown=not json and sys.stderr.isatty()) as tell:
            found = _examine(directory, force, tell)
        if json:
            Output(True).line(as_json(found))
        else:
            _explain(found, Output(), force)
    if found.verdict == "damaged":
        raise typer.Exit(1)


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, gone when the findings are printed; nothing for programs."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _examine(
    directory: str, force: bool, tell: Callable[[int, int], None] | None
) -> Findings:
    from penstock.errors import InUseError
    from penstock.node.examine import examine
    from penstock.node.overlay import hold_shared

    try:
        with nullcontext() if force else hold_shared(directory):
            return examine(directory, time.time_ns() // 1000, tell)
    except InUseError as error:
        advice = "Stop the node first, or use --force for a look at what it is just changing."
        raise InUseError(error.message, advice=advice) from None


def as_json(found: Findings) -> dict[str, object]:
    """All findings for programs."""
    import dataclasses

    return {
        "verdict": found.verdict,
        "summary": found.summary,
        "advice": found.advice,
        "lost_messages": found.lost_messages,
        "repaired": found.repaired,
        **dataclasses.asdict(found),
    }


def _explain(found: Findings, output: Output, force: bool) -> None:
    _show_files(found, output)
    _show_state(found, output)
    _show_damage(found, output)
    if force and found.verdict != "healthy":
        output.note("If a node has the directory open, what it is just writing looks torn.")
    colors = {"damaged": "red", "torn": "yellow"}
    typer.secho(found.summary, fg=colors.get(found.verdict, "green"), bold=True)
    for step in found.advice:
        typer.echo(f"  {step}")


def _show_files(found: Findings, output: Output) -> None:
    rows = [
        (file.name, file.kind, size_text(file.bytes), size_text(file.used), size_text(file.live),
         file.records, file.note)
        for file in found.files
    ]  # fmt: skip
    if rows:
        output.table(("file", "kind", "on disk", "used", "live", "records", ""), rows)
        typer.echo()


def _show_state(found: Findings, output: Output) -> None:
    rows = [
        (s.kind, s.name if s.namespace == "default" else f"{s.namespace}/{s.name}", s.messages,
         size_text(s.bytes))
        for s in found.streams
    ]  # fmt: skip
    if rows:
        output.table(("", "name", "messages", "size"), rows)
        typer.echo()
    if (start := found.checkpoint) is not None:
        typer.echo(
            f"checkpoint {start.file}: {start.sections} sections; {found.replayed_records:,} "
            f"records are replayed from {start.replay_file} at {start.replay_offset:,}"
        )
        for name in start.damaged:
            typer.secho(f"  section {name} is damaged", fg="red")
        for name in start.unreadable:
            typer.secho(f"  {name} is newer, and cannot be read", fg="red")
    elif found.files:
        typer.secho("there is no readable checkpoint", fg="red")
    typer.echo(
        f"{size_text(found.disk_bytes)} on the disk, {size_text(found.used_bytes)} used, "
        f"{size_text(found.live_bytes)} of that live"
    )


def _show_damage(found: Findings, output: Output) -> None:
    if (torn := found.torn) is not None:
        typer.echo(
            f"torn end: {torn.file} at {torn.offset:,}; {torn.discarded_records:,} whole records "
            "after it are discarded"
        )
    for damage in found.damages[:MAX_SHOWN]:
        typer.secho(damage_text(damage), fg="red")
    for gap in found.gaps[:MAX_SHOWN]:
        count = gap.last - gap.first + 1
        typer.secho(f"shard {gap.shard}: records {gap.first:,} to {gap.last:,} are missing "
                    f"({count:,})", fg="red")  # fmt: skip
    hidden = max(0, len(found.damages) - MAX_SHOWN) + max(0, len(found.gaps) - MAX_SHOWN)
    if hidden:
        output.note(f"{hidden:,} more; see --json")


def damage_text(damage: DamageFinding) -> str:
    """A damage in one line."""
    text = f"damage: {damage.file} at {damage.offset:,}, {damage.length:,} bytes ({damage.reason})"
    if damage.shard is not None:
        text += f"; {damage.kind} record of shard {damage.shard}"
    if damage.stream is not None:
        text += f", {damage.stream}"
    if damage.first is not None:
        text += f", positions {damage.first} to {damage.last}"
        if damage.partition:
            text += f" of partition {damage.partition}"
    if damage.repaired:
        return f"{text}; repaired: a whole copy is stored elsewhere"
    return text + f"; {damage.messages:,} wanted messages lost"
