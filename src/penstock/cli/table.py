"""`penstock table …`"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import streams
from penstock.cli.command import Here, given, new_app, on_fabric
from penstock.cli.output import entry_json, json_field, readable
from penstock.cli.streams import Durability, MaxBytes, Name, Yes
from penstock.cli.units import duration
from penstock.cli.values import Raw, as_bytes, given_values

if TYPE_CHECKING:
    from penstock import Table

app = new_app("Tables: entries with versions.")

Key = Annotated[str, typer.Argument(help="The entry's key.", show_default=False)]
Value = Annotated[str | None, typer.Argument(help="`-` (or none) reads standard input.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Only keys that begin with it.")]
IfVersion = Annotated[
    int | None, typer.Option("--if-version", min=0, help="Only if it has this; 0: only if absent.")
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most so many.")]


@app.command()
@on_fabric
def create(
    here: Here, name: Name, durability: Durability = None, max_bytes: MaxBytes = None
) -> None:
    """Create a table."""
    options = given(durability=durability, max_bytes=max_bytes)
    table, created = streams.open_or_create(here, "table", here.fabric.table, name, options)
    streams.show_created(here, table.info, created)


@app.command()
@on_fabric
def configure(
    here: Here, name: Name, durability: Durability = None, max_bytes: MaxBytes = None
) -> None:
    """Change settings of a table while it is used."""
    table = here.fabric.table(name, create=False)
    table.configure(**given(durability=durability, max_bytes=max_bytes))
    streams.show_settings(here, table.info)


@app.command()
@on_fabric
def delete(here: Here, name: Name, yes: Yes = False) -> None:
    """Delete a table and all its entries."""
    streams.confirm(yes, f"Delete table {name} and all its entries?")
    streams.show_deleted(here, "table", name, here.fabric.delete_table(name))


@app.command("list")
@on_fabric
def list_all(here: Here) -> None:
    """List all tables."""
    streams.list_streams(here, here.fabric.tables())


@app.command()
@on_fabric
def show(here: Here, name: Name) -> None:
    """Show figures and settings of a table."""
    table = here.fabric.table(name, create=False)
    streams.show_stream(here, table.info, table.stats())


@app.command()
@on_fabric
def put(
    here: Here,
    name: Name,
    key: Key,
    value: Value = None,
    if_version: IfVersion = None,
    ttl: Annotated[
        float | None, typer.Option("--ttl", parser=duration, metavar="TIME", help="Then it goes.")
    ] = None,
) -> None:
    """Write an entry. A table that is not there is created."""
    packed = _value(value)
    version = _writable(here, name).put(as_bytes(key), packed, if_version=if_version, ttl=ttl)
    here.output.record({"version": version}, f"stored, version {version}")


@app.command()
@on_fabric
def append(here: Here, name: Name, key: Key, value: Value = None) -> None:
    """Add to the end of an entry's value, or create it."""
    packed = _value(value)
    version = _writable(here, name).append(as_bytes(key), packed)
    here.output.record({"version": version}, f"stored, version {version}")


def _value(value: str | None) -> bytes:
    return next(iter(given_values(None if value is None else [value], False)))


def _writable(here: Here, name: str) -> Table:
    table, _ = streams.open_or_create(here, "table", here.fabric.table, name, {})
    return table


@app.command()
@on_fabric
def get(here: Here, name: Name, key: Key, raw: Raw = False) -> None:
    """Print the value of an entry."""
    from penstock.errors import NotFoundError

    if raw and here.output.as_json:
        raise typer.BadParameter("--raw and --json exclude each other")
    entry = here.fabric.table(name, create=False).entry(as_bytes(key))
    if entry is None:
        raise NotFoundError(f"there is no entry {key!r} in table {name!r}")
    if raw:
        typer.echo(entry.value, nl=False)
    else:
        here.output.record(entry_json(entry), readable(entry.value))


@app.command("delete-key")
@on_fabric
def delete_key(here: Here, name: Name, key: Key, if_version: IfVersion = None) -> None:
    """Delete an entry."""
    from penstock.errors import NotFoundError

    if not here.fabric.table(name, create=False).delete(as_bytes(key), if_version):
        raise NotFoundError(f"there is no entry {key!r} in table {name!r}")
    here.output.record({"deleted": key}, f"deleted {key}")


@app.command()
@on_fabric
def keys(
    here: Here,
    name: Name,
    prefix: Prefix = "",
    values: Annotated[bool, typer.Option("--values", help="And their values.")] = False,
    count: Count = None,
) -> None:
    """Print keys in order, one a line; with --values, a tab and the value."""
    table = here.fabric.table(name, create=False)
    found: Iterable[tuple[bytes, bytes | None]] = (
        table.items(as_bytes(prefix)) if values
        else ((key, None) for key in table.keys(as_bytes(prefix)))
    )  # fmt: skip
    for key, value in islice(found, count):
        if here.output.as_json:
            with_value = json_field("value", value) if values else {}
            here.output.line({**json_field("key", key), **with_value})
        else:
            typer.echo(readable(key) + ("" if value is None else f"\t{readable(value)}"))


@app.command()
@on_fabric
def watch(here: Here, name: Name, prefix: Prefix = "", count: Count = None) -> None:
    """Print changes as they happen, until Ctrl-C."""
    table = here.fabric.table(name, create=False)
    with table.watch(as_bytes(prefix)) as changes, suppress(KeyboardInterrupt):
        here.output.note(f"watching {name}")
        for entry in islice(changes, count):
            text = f"version {entry.version}\t{readable(entry.value)}"
            change = text if entry.version else "deleted"
            here.output.record(entry_json(entry), f"{readable(entry.key)}\t{change}")
