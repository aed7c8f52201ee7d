"""What queues, topics and tables have in common: create, delete, list, show, configure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.cli.command import Here
from penstock.cli.units import duration, duration_text, size, size_text

if TYPE_CHECKING:
    from penstock import Queue, StreamInfo, Table, Topic

Stream = TypeVar("Stream", "Queue", "Topic", "Table")

Name = Annotated[str, typer.Argument(help="Its name.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Durability = Annotated[
    str | None,
    typer.Option("--durability", metavar="LEVEL", help="memory, written, synced or replicated."),
]
MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", parser=size, metavar="SIZE", help="Limit of its size.")
]
Ttl = Annotated[
    float | None,
    typer.Option("--ttl", parser=duration, metavar="TIME", help="How long messages are kept."),
]


def open_or_create(
    here: Here, kind: str, opener: Callable[..., Stream], name: str, options: Mapping[str, Any]
) -> tuple[Stream, bool]:
    """Opens a stream and says whether it was made just now; a note tells of a new one."""
    from penstock.errors import NotFoundError

    try:
        opener(name, create=False)
    except NotFoundError:
        made = opener(name, **options)
        here.output.note(f"created {kind} {name}")
        return made, True
    return opener(name, **options), False


def show_created(here: Here, info: StreamInfo, created: bool) -> None:
    """The answer of `create`."""
    told = {"created": created, **info_json(info)}
    text = f"{info.kind} {info.name} " + ("is ready" if created else "exists already")
    here.output.record(told, text)


def list_streams(here: Here, infos: list[StreamInfo]) -> None:
    """The answer of `list`."""
    if here.output.as_json:
        here.output.line([info_json(info) for info in infos])
    elif infos:
        here.output.table(
            ("name", "settings"), [(info.name, _settings(info.options)) for info in infos]
        )
    else:
        here.output.note("there are none")


def show_rows(here: Here, rows: list[dict[str, Any]]) -> None:
    """A table whose columns are the fields of its rows."""
    if here.output.as_json:
        here.output.line(rows)
    elif rows:
        here.output.table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        here.output.note("there are none")


def show_stream(here: Here, info: StreamInfo, figures: Mapping[str, Any]) -> None:
    """The answer of `show`: figures first, then settings."""
    if here.output.as_json:
        here.output.line({**info_json(info), "figures": figures})
        return
    shown = {name: value for name, value in figures.items() if not isinstance(value, list)}
    here.output.record({**readable_figures(shown), **readable_settings(info.options)})


def show_settings(here: Here, info: StreamInfo) -> None:
    """The answer of `configure`: all settings as they are now."""
    told = info_json(info) if here.output.as_json else readable_settings(info.options)
    here.output.record(told)


def readable_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures with sizes and durations as people read them."""
    told = {}
    for name, value in figures.items():
        if name.endswith("bytes") and isinstance(value, int):
            told[name] = size_text(value)
        elif name.endswith("_ms") and isinstance(value, int):
            told[name.removesuffix("_ms")] = duration_text(value / 1000)
        else:
            told[name] = value
    return told


def readable_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as people write them: `lease_ms=30000` becomes `lease` 30 s."""
    zero = {name: value for name, value in options.items() if value == 0}
    told = readable_figures({name: v for name, v in options.items() if name not in zero})
    return told | {name.removesuffix("_ms"): "no limit" for name in zero}


def _settings(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in readable_settings(options).items())


def info_json(info: StreamInfo) -> dict[str, Any]:
    """A definition for programs."""
    told: dict[str, Any] = {
        "kind": info.kind, "name": info.name, "namespace": info.namespace, "id": info.id,
        "options": info.options,
    }  # fmt: skip
    return told


def confirm(yes: bool, question: str) -> None:
    """Asks before something is destroyed; a script without a terminal is not asked."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True)


def show_deleted(here: Here, kind: str, name: str, there: bool) -> None:
    """The answer of `delete`; NotFoundError if it was not there."""
    from penstock.errors import NotFoundError

    if not there:
        raise NotFoundError(f"there is no {kind} {name!r}")
    here.output.record({"deleted": name}, f"deleted {kind} {name}")
