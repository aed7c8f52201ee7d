"""Values that go in and out of commands: arguments or standard input, as they are or escaped."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.cli.output import Output, describe, readable

if TYPE_CHECKING:
    from penstock import LeasedMessage, Receipts, TopicMessage

STDIN = "-"

Values = Annotated[
    list[str] | None,
    typer.Argument(help="The values; `-` (or none) reads one from standard input."),
]
Lines = Annotated[
    bool, typer.Option("--lines", help="One message for each line of standard input.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Write values as they are: nothing escaped, nothing between.")
]
RawLines = Annotated[bool, typer.Option("--lines", help="With --raw: a newline after each value.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print all there is to know of each message.")
]

M = TypeVar("M", bound="LeasedMessage | TopicMessage")


def as_bytes(text: str) -> bytes:
    """An argument as the bytes that were typed, UTF-8 or not."""
    return os.fsencode(text)


def given_values(values: Sequence[str] | None, lines: bool) -> Iterable[bytes]:
    """The values of a command: its arguments, or standard input, whole or line by line."""
    if lines:
        if values not in (None, [], [STDIN]):
            raise typer.BadParameter("--lines reads standard input: leave the values out")
        return _lines()
    if not values:
        values = [STDIN]
    if list(values).count(STDIN) > 1:
        raise typer.BadParameter("standard input (-) can be read only once")
    return [sys.stdin.buffer.read() if value == STDIN else as_bytes(value) for value in values]


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def given_headers(headers: Sequence[str] | None) -> dict[str, bytes] | None:
    """`--header NAME=VALUE`, several times."""
    if not headers:
        return None
    split = [text.partition("=") for text in headers]
    if any(not name or not equals for name, equals, _ in split):
        raise typer.BadParameter("a header is NAME=VALUE", param_hint="--header")
    return {name: as_bytes(value) for name, _, value in split}


def same_for_all(key: str | None, headers: Sequence[str] | None) -> dict[str, Any]:
    """Columns of a bulk push that have the same key and headers in every row."""
    columns: dict[str, Any] = {}
    if key is not None:
        columns["keys"] = itertools.repeat(as_bytes(key))
    if (packed := given_headers(headers)) is not None:
        columns["headers"] = itertools.repeat(packed)
    return columns


def show_stored(output: Output, receipts: Receipts) -> None:
    """What the receipts of a push say."""
    told: dict[str, Any] = {
        "count": receipts.count,
        "duplicates": receipts.duplicates,
        "durability": receipts.durability,
        "receipts": [
            {
                "shard": receipt.shard,
                "partition": receipt.partition,
                "base": receipt.base,
                "count": receipt.count,
            }
            for receipt in receipts
        ],
    }
    plural = "" if receipts.count == 1 else "s"
    text = f"{receipts.count:,} message{plural} stored"
    if receipts.durability is not None:
        text += f", {receipts.durability}"
    if receipts.duplicates:
        text += f"; {receipts.duplicates:,} of them before"
    output.record(told, text)


class MessagePrinter:
    """Prints messages in the form that was asked for, some at a time."""

    def __init__(self, output: Output, raw: bool, lines: bool, verbose: bool) -> None:
        if raw and output.as_json:
            raise typer.BadParameter("--raw and --json exclude each other")
        if lines and not raw:
            raise typer.BadParameter("--lines goes with --raw")
        self._output = output
        self._raw = raw
        self._end = b"\n" if lines else b""
        self._verbose = verbose
        self.count = 0

    def show(self, messages: Sequence[M], as_dict: Callable[[M], dict[str, Any]]) -> None:
        """Prints them; they have left this process when it returns."""
        self.count += len(messages)
        if self._raw:
            data = b"".join(message.value + self._end for message in messages)
            typer.echo(data, nl=False)
        elif self._output.as_json:
            for message in messages:
                self._output.line(as_dict(message))
        else:
            typer.echo("\n".join(self._text(message, as_dict) for message in messages))

    def _text(self, message: M, as_dict: Callable[[M], dict[str, Any]]) -> str:
        value = readable(message.value)
        return f"{describe(as_dict(message))}  {value}" if self._verbose else value
