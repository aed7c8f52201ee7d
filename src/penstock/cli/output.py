"""What commands print: text for people, JSON for programs, and values that may be any bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from penstock import Entry, LeasedMessage, PartitionFamily, TopicMessage
    from penstock.errors import PenstockError

PIPE_WIDTH = 1000  # columns of a table that is not shown on a terminal


class Output:
    """Where a command's results go, in the form that was asked for."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    def record(self, data: Mapping[str, Any], text: str | None = None) -> None:
        """One result: an object, or `text`, or a line for each field."""
        if self.as_json:
            self.line(data)
        elif text is not None:
            typer.echo(text)
        else:
            width = max(map(len, data), default=0)
            typer.echo("\n".join(f"{name:<{width}}  {_plain(v)}" for name, v in data.items()))

    def line(self, data: object) -> None:
        """Anything as one line of JSON."""
        typer.echo(json.dumps(data, default=str))

    def note(self, text: str) -> None:
        """Something to know that is no result; programs that read JSON do not need it."""
        if not self.as_json:
            typer.secho(text, dim=True, err=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows for people; columns of numbers are flush right."""
        console_for().print(grid(columns, rows))


def console_for() -> Any:
    """Where rich prints: a terminal as it is, a pipe with room for wide tables."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """A table without lines, to be printed by rich."""
    from rich.table import Table
    from rich.text import Text

    kept = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(name, justify="right" if numeric else "left")
    for row in kept:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    return table


def _plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items()) or "none"
    return str(value)


def fail(error: PenstockError, as_json: bool) -> typer.Exit:
    """Tells of an error on standard error, in one line; raise what it returns."""
    if as_json:
        told = {"error": error.message, "advice": error.hint, "code": error.code}
        typer.echo(json.dumps(told), err=True)
    else:
        typer.secho(f"error: {error}", fg="red", err=True)
    return typer.Exit(1)


# --- bytes ---------------------------------------------------------------------------------


def readable(data: bytes) -> str:
    """Bytes as text on one line: what cannot be shown is escaped, as in `\\n` and `\\xff`."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def json_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """`{name: text}`, or `{name_base64: …}` if the bytes are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _common(message: LeasedMessage | TopicMessage) -> dict[str, Any]:
    headers: dict[str, str | None] = {}
    for name, value in message.headers.items():
        headers |= json_field(name, value)
    return {
        **json_field("value", message.value),
        **json_field("key", message.key),
        "headers": headers,
        "timestamp": message.timestamp.isoformat(),
    }


def leased_json(message: LeasedMessage) -> dict[str, Any]:
    """A message of a queue."""
    where = {"shard": message.shard, "position": message.position}
    return {**_common(message), **where, "deliveries": message.deliveries}


def family_json(family: Sequence[PartitionFamily]) -> list[dict[str, Any]]:
    """Where the partitions of a topic come from, for programs."""
    import msgspec

    told: list[dict[str, Any]] = msgspec.to_builtins(family)
    return told


def topic_json(message: TopicMessage) -> dict[str, Any]:
    """A message of a topic."""
    return {**_common(message), "partition": message.partition, "offset": message.offset}


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry of a table."""
    return {
        **json_field("key", entry.key),
        **json_field("value", entry.value if entry.version else None),
        "version": entry.version,
    }


def describe(told: Mapping[str, Any]) -> str:
    """The fields of a message beside its value, for people."""
    shown = {name: value for name, value in told.items() if not name.startswith("value")}
    parts = [
        f"{name}={_plain(value) if isinstance(value, dict) else value}"
        for name, value in shown.items()
        if value not in (None, {})
    ]
    return " ".join(parts)
