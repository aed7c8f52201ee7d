"""`penstock topic …`"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import streams
from penstock.cli.command import Here, given, new_app, on_fabric
from penstock.cli.output import family_json, topic_json
from penstock.cli.streams import Durability, Name, Yes
from penstock.cli.units import duration, moment, size
from penstock.cli.values import (
    Lines,
    MessagePrinter,
    Raw,
    RawLines,
    Values,
    Verbose,
    given_values,
    same_for_all,
    show_stored,
)

if TYPE_CHECKING:
    from penstock import PartitionFamily, Topic, TopicMessage

app = new_app("Topics: partitions that any number of readers read by offset.")


class Keep(StrEnum):
    """What retention leaves."""

    ALL = "all"
    LATEST = "latest"


def position(text: str | int | datetime) -> int | str | datetime:
    """Where reading starts: `start`, `end`, an offset, a time, or `5m` for five minutes ago."""
    if not isinstance(text, str) or text in ("start", "end"):
        return text
    return int(text) if text.isdecimal() else moment(text)


Retention = Annotated[
    float | None,
    typer.Option("--retention", parser=duration, metavar="TIME", help="0: not by age."),
]
RetentionBytes = Annotated[
    int | None,
    typer.Option("--retention-bytes", parser=size, metavar="SIZE", help="0: not by size."),
]
Group = Annotated[str | None, typer.Option("--group", help="The group whose offsets it is about.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this one.")]


@app.command()
@on_fabric
def create(
    here: Here,
    name: Name,
    partitions: Annotated[int | None, typer.Option("--partitions", min=1)] = None,
    durability: Durability = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    keep: Annotated[Keep | None, typer.Option("--keep", help="Of every key.")] = None,
) -> None:
    """Create a topic."""
    options = given(
        partitions=partitions, durability=durability, retention=retention,
        retention_bytes=retention_bytes, keep=None if keep is None else keep.value,
    )  # fmt: skip
    topic, created = streams.open_or_create(here, "topic", here.fabric.topic, name, options)
    streams.show_created(here, topic.info, created)


@app.command()
@on_fabric
def configure(
    here: Here,
    name: Name,
    durability: Durability = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
) -> None:
    """Change settings of a topic while it is used."""
    topic = here.fabric.topic(name, create=False)
    options = given(durability=durability, retention=retention, retention_bytes=retention_bytes)
    topic.configure(**options)
    streams.show_settings(here, topic.info)


@app.command()
@on_fabric
def grow(
    here: Here,
    name: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="How many it has then, in all.")
    ],
) -> None:
    """Give a topic more partitions while it is used. It never gets fewer."""
    topic = here.fabric.topic(name, create=False)
    before = topic.partitions
    topic.grow(partitions)
    told = {"name": name, "before": before, "partitions": topic.partitions}
    here.output.record(told, f"topic {name} has {topic.partitions} partitions, before {before}")


@app.command()
@on_fabric
def delete(here: Here, name: Name, yes: Yes = False) -> None:
    """Delete a topic and all its messages."""
    streams.confirm(yes, f"Delete topic {name} and all its messages?")
    streams.show_deleted(here, "topic", name, here.fabric.delete_topic(name))


@app.command("list")
@on_fabric
def list_all(here: Here) -> None:
    """List all topics."""
    streams.list_streams(here, here.fabric.topics())


@app.command()
@on_fabric
def show(here: Here, name: Name) -> None:
    """Show figures and settings of a topic."""
    topic = here.fabric.topic(name, create=False)
    family, figures = topic.family(), topic.stats()
    if topic.info.growths:
        figures["family"] = family_json(family)
    streams.show_stream(here, topic.info, figures)
    if not here.output.as_json:
        columns = ["partition", "first", "next", "bytes"]
        rows = [[n, p["start"], p["end"], p["bytes"]] for n, p in enumerate(figures["partitions"])]
        if topic.info.growths:
            columns += ["born in", "parent", "keys", "split"]
            rows = [row + _kinship(kin) for row, kin in zip(rows, family, strict=True)]
        here.output.record({"groups": figures["groups"]})
        here.output.table(columns, rows)


def _kinship(kin: PartitionFamily) -> list[int | str | None]:
    """Where a partition comes from, its share of all keys, and what it gave away."""
    share = 100 * (kin.high - kin.low) / (1 << 32)
    splits = [
        f"at {split.offset} for {', '.join(map(str, split.children))}" for split in kin.splits
    ]
    born = f"growth {kin.generation}" if kin.generation else "the beginning"
    return [born, kin.parent, f"{share:.3g} %", "; ".join(splits)]


@app.command()
@on_fabric
def publish(
    here: Here,
    name: Name,
    values: Values = None,
    lines: Lines = False,
    key: Annotated[str | None, typer.Option("--key", help="Of all of them.")] = None,
    partition: Partition = None,
    header: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE")] = None,
    durability: Durability = None,
    compression: Annotated[
        str | None, typer.Option("--compression", help="none, lz4 or zstd.")
    ] = None,
) -> None:
    """Publish messages. A topic that is not there is created."""
    taken = given_values(values, lines)
    columns = same_for_all(key, header)
    terms = given(partition=partition, durability=durability, compression=compression)
    topic, _ = streams.open_or_create(here, "topic", here.fabric.topic, name, {})
    show_stored(here.output, topic.publish_many(taken, **columns, **terms))


@app.command()
@on_fabric
def read(
    here: Here,
    name: Name,
    partition: Partition = None,
    start: Annotated[
        str,
        typer.Option("--from", parser=position, metavar="WHERE", help="start, end, offset, time."),
    ] = "start",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new ones.")] = False,
    group: Annotated[str | None, typer.Option("--group", help="Go on where it committed.")] = None,
    commit: Annotated[bool, typer.Option("--commit", help="For the group, at the end.")] = False,
    raw: Raw = False,
    lines: RawLines = False,
    verbose: Verbose = False,
) -> None:
    """Print messages, partition by partition; with --follow, as they come, until Ctrl-C."""
    if commit and group is None:
        raise typer.BadParameter("--commit needs --group")
    printer = MessagePrinter(here.output, raw, lines, verbose)
    topic = here.fabric.topic(name, create=False)
    chosen = range(topic.partitions) if partition is None else [partition]
    committed = {} if group is None else topic.committed(group)
    found = (
        _arriving(topic, group, start, chosen) if follow
        else _stored(topic, committed, start, chosen)
    )  # fmt: skip
    reached: dict[int, int] = {}
    with suppress(KeyboardInterrupt):
        for messages in found:
            messages = messages[: None if count is None else count - printer.count]
            printer.show(messages, topic_json)
            reached[messages[-1].partition] = messages[-1].offset + 1
            if printer.count == count:
                break
    if commit and group is not None and reached:
        topic.commit(group, reached)
    if not printer.count:
        here.output.note("no message")


def _stored(
    topic: Topic, committed: dict[int, int], start: int | str | datetime, chosen: Sequence[int]
) -> Iterator[list[TopicMessage]]:
    """What is there now, a batch at a time."""
    from penstock import TopicMessage

    for number in chosen:
        for batch in topic.read(number, committed.get(number, start)):
            values = enumerate(batch.values)
            yield [TopicMessage(value, row, batch, number) for row, value in values]


def _arriving(
    topic: Topic, group: str | None, start: int | str | datetime, chosen: Sequence[int]
) -> Iterator[list[TopicMessage]]:
    """Messages as they come."""
    with topic.subscribe(group, start, list(chosen)) as consumer:
        for message in consumer:
            yield [message]


@app.command()
@on_fabric
def offsets(here: Here, name: Name, group: Group = None) -> None:
    """Show the first and the next offset of each partition; with --group, how far it has come."""
    topic = here.fabric.topic(name, create=False)
    committed = {} if group is None else topic.committed(group)
    rows = []
    for number, (first, following) in enumerate(topic.offsets()):
        row: dict[str, int | None] = {"partition": number, "first": first, "next": following}
        if group is not None:
            at = committed.get(number)
            row |= {"committed": at, "lag": following - (first if at is None else max(at, first))}
        rows.append(row)
    if here.output.as_json:
        here.output.line(rows)
    else:
        here.output.table(list(rows[0]), [list(row.values()) for row in rows])


@app.command()
@on_fabric
def commit(
    here: Here,
    name: Name,
    group: Annotated[str, typer.Option("--group", help="The group.")],
    offsets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARTITION=OFFSET]...", help="What it reads next."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", parser=position, metavar="WHERE", help="start, end, a time."),
    ] = None,
) -> None:
    """Set the offsets from which a group goes on."""
    if (to is None) == (not offsets):
        raise typer.BadParameter("give PARTITION=OFFSET, or --to for all partitions")
    topic = here.fabric.topic(name, create=False)
    wanted = _all_at(topic, to) if to is not None else dict(map(_assignment, offsets or []))
    topic.commit(group, wanted)
    told = {str(number): offset for number, offset in wanted.items()}
    here.output.record(told, f"group {group} goes on at {told}".replace("'", ""))


def _assignment(text: str) -> tuple[int, int]:
    number, _, offset = text.partition("=")
    if not number.isdecimal() or not offset.isdecimal():
        raise typer.BadParameter(f"{text!r} is not PARTITION=OFFSET, as in 0=1200")
    return int(number), int(offset)


def _all_at(topic: Topic, where: int | str | datetime) -> dict[int, int]:
    if isinstance(where, datetime):
        return dict(enumerate(topic.offset_at(where)))
    if isinstance(where, int):
        return dict.fromkeys(range(topic.partitions), where)
    at_end = where == "end"
    return {n: (following if at_end else first)
            for n, (first, following) in enumerate(topic.offsets())}  # fmt: skip
