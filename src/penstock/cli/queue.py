"""`penstock queue …`"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import held, reservations, streams
from penstock.cli.command import Here, given, new_app, on_fabric
from penstock.cli.output import leased_json
from penstock.cli.streams import Durability, MaxBytes, Name, Ttl, Yes
from penstock.cli.units import due, duration
from penstock.cli.values import (
    Lines,
    MessagePrinter,
    Raw,
    RawLines,
    Values,
    Verbose,
    as_bytes,
    given_values,
    same_for_all,
    show_stored,
)

if TYPE_CHECKING:
    from penstock import Message, Queue, Receipts

MAX_POP = 1000  # messages of one pop

app = new_app("Queues: every message goes to one consumer.")


class Ordered(StrEnum):
    """What keeps its order."""

    NO = "no"
    QUEUE = "queue"
    KEY = "key"


class Then(StrEnum):
    """What becomes of popped messages."""

    ACK = "ack"
    NACK = "nack"
    DEAD = "dead"
    KEEP = "keep"


Lease = Annotated[
    float | None,
    typer.Option("--lease", parser=duration, metavar="TIME", help="How long a pop lasts."),
]
MaxDeliveries = Annotated[
    int | None, typer.Option("--max-deliveries", help="Then a message is a dead letter.")
]
MaxMessages = Annotated[int | None, typer.Option("--max-messages", help="Limit of its depth.")]
IdWindow = Annotated[
    float | None,
    typer.Option("--id-window", parser=duration, metavar="TIME", help="How long ids are known."),
]
Stealing = Annotated[
    bool | None,
    typer.Option(
        "--stealing/--no-stealing", help="Whether messages move to nodes where consumers wait."
    ),
]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many messages.")]


@app.command()
@on_fabric
def create(
    here: Here,
    name: Name,
    durability: Durability = None,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    max_messages: MaxMessages = None,
    max_bytes: MaxBytes = None,
    ttl: Ttl = None,
    ordered: Annotated[
        Ordered | None, typer.Option("--ordered", help="What keeps its order.")
    ] = None,
    id_window: IdWindow = None,
    stealing: Stealing = None,
) -> None:
    """Create a queue."""
    options = given(
        durability=durability, lease=lease, max_deliveries=max_deliveries,
        max_messages=max_messages, max_bytes=max_bytes, ttl=ttl, id_window=id_window,
        stealing=stealing,
        ordered=None if ordered is None else ordered.value,
    )  # fmt: skip
    queue, created = streams.open_or_create(here, "queue", here.fabric.queue, name, options)
    streams.show_created(here, queue.info, created)


@app.command()
@on_fabric
def configure(
    here: Here,
    name: Name,
    durability: Durability = None,
    lease: Lease = None,
    max_deliveries: MaxDeliveries = None,
    max_messages: MaxMessages = None,
    max_bytes: MaxBytes = None,
    ttl: Ttl = None,
    id_window: IdWindow = None,
    stealing: Stealing = None,
) -> None:
    """Change settings of a queue while it is used."""
    queue = here.fabric.queue(name, create=False)
    options = given(
        durability=durability, lease=lease, max_deliveries=max_deliveries,
        max_messages=max_messages, max_bytes=max_bytes, ttl=ttl, id_window=id_window,
        stealing=stealing,
    )  # fmt: skip
    queue.configure(**options)
    streams.show_settings(here, queue.info)


@app.command()
@on_fabric
def delete(here: Here, name: Name, yes: Yes = False) -> None:
    """Delete a queue and all its messages."""
    streams.confirm(yes, f"Delete queue {name} and all its messages?")
    streams.show_deleted(here, "queue", name, here.fabric.delete_queue(name))


@app.command("list")
@on_fabric
def list_all(here: Here) -> None:
    """List all queues."""
    streams.list_streams(here, here.fabric.queues())


@app.command()
@on_fabric
def show(here: Here, name: Name) -> None:
    """Show figures and settings of a queue."""
    queue = here.fabric.queue(name, create=False)
    streams.show_stream(here, queue.info, queue.stats())


@app.command()
@on_fabric
def push(
    here: Here,
    name: Name,
    values: Values = None,
    lines: Lines = False,
    key: Annotated[str | None, typer.Option("--key", help="Of all of them.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE")] = None,
    id: Annotated[str | None, typer.Option("--id", help="Stored once, if pushed again.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Invisible until released by id.")] = False,
    delay: Annotated[
        float | None, typer.Option("--delay", parser=duration, metavar="TIME", help="Then visible.")
    ] = None,
    at: Annotated[
        datetime | None, typer.Option("--at", parser=due, metavar="WHEN", help="Visible from then.")
    ] = None,
    ttl: Ttl = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0 (usual) to 15.")] = None,
    durability: Durability = None,
    compression: Annotated[
        str | None, typer.Option("--compression", help="none, lz4 or zstd.")
    ] = None,
) -> None:
    """Push messages. A queue that is not there is created."""
    taken = given_values(values, lines)
    terms = given(
        delay=delay, at=at, ttl=ttl, priority=priority, durability=durability,
        compression=compression,
    )  # fmt: skip
    columns = same_for_all(key, header)
    if (id is not None or hold) and (not isinstance(taken, list) or len(taken) != 1):
        raise typer.BadParameter("--id and --hold are for a single message")
    queue, _ = streams.open_or_create(here, "queue", here.fabric.queue, name, {})
    if hold:
        receipts = _push_held(queue, next(iter(taken)), id, columns, terms)
    else:
        ids = None if id is None else [as_bytes(id)]
        receipts = queue.push_many(taken, ids=ids, **columns, **terms)
    show_stored(here.output, receipts)


def _push_held(
    queue: Queue, value: bytes, id: str | None, columns: dict[str, Any], terms: dict[str, Any]
) -> Receipts:
    """Only a single push can hold a message."""
    from penstock import Receipts

    key, headers = (next(columns[name], None) if name in columns else None
                    for name in ("keys", "headers"))  # fmt: skip
    packed_id = None if id is None else as_bytes(id)
    receipts = Receipts()
    receipts.append(queue.push(value, key=key, headers=headers, id=packed_id, hold=True, **terms))
    return receipts


@app.command()
@on_fabric
def pop(
    here: Here,
    name: Name,
    count: Count = 1,
    wait: Annotated[
        float, typer.Option("--wait", parser=duration, metavar="TIME", help="For the first one.")
    ] = 0.0,
    lease: Lease = None,
    then: Annotated[
        Then, typer.Option("--then", help="keep: leave them leased until the lease runs out.")
    ] = Then.ACK,
    raw: Raw = False,
    lines: RawLines = False,
    verbose: Verbose = False,
) -> None:
    """Pop messages: print them, then acknowledge them (see --then)."""
    printer = MessagePrinter(here.output, raw, lines, verbose)
    queue = here.fabric.queue(name, create=False)
    while printer.count < count:
        found = queue.pop_many(min(count - printer.count, MAX_POP), wait, lease)
        if not found:
            break
        printer.show(found, leased_json)
        _settle(queue, found, then)
        wait = 0.0
    if not printer.count:
        here.output.note("no message")


def _settle(queue: Queue, messages: list[Message], then: Then) -> None:
    if then == Then.ACK:
        queue.ack(messages, wait=True)
    elif then == Then.NACK:
        queue.nack(messages)
    elif then == Then.DEAD:
        for message in messages:
            message.dead()


@app.command()
@on_fabric
def peek(
    here: Here,
    name: Name,
    count: Count = 1,
    raw: Raw = False,
    lines: RawLines = False,
    verbose: Verbose = False,
) -> None:
    """Print the next messages; they stay."""
    printer = MessagePrinter(here.output, raw, lines, verbose)
    if found := here.fabric.queue(name, create=False).peek(count):
        printer.show(found, leased_json)
    else:
        here.output.note("no message")


@app.command()
@on_fabric
def dead(
    here: Here,
    name: Name,
    count: Count = 10,
    raw: Raw = False,
    lines: RawLines = False,
    verbose: Verbose = False,
) -> None:
    """Print dead letters; they stay. See `redrive` and `purge --dead`."""
    printer = MessagePrinter(here.output, raw, lines, verbose)
    if found := here.fabric.queue(name, create=False).dead.peek(count):
        printer.show(found, leased_json)
    else:
        here.output.note("no dead letters")


@app.command()
@on_fabric
def redrive(
    here: Here,
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 1000,
) -> None:
    """Move dead letters back to the queue."""
    moved = here.fabric.queue(name, create=False).dead.redrive(limit)
    here.output.record({"moved": moved}, f"{moved:,} dead letters moved back")


@app.command()
@on_fabric
def purge(
    here: Here,
    name: Name,
    dead: Annotated[bool, typer.Option("--dead", help="The dead letters instead.")] = False,
    yes: Yes = False,
) -> None:
    """Drop all waiting messages; leased ones stay."""
    what = "dead letters" if dead else "waiting messages"
    streams.confirm(yes, f"Drop all {what} of queue {name}?")
    queue = here.fabric.queue(name, create=False)
    dropped = queue.dead.purge() if dead else queue.purge()
    here.output.record({"dropped": dropped}, f"{dropped:,} {what} dropped")


@app.command()
@on_fabric
def release(
    here: Here,
    name: Name,
    ids: Annotated[list[str], typer.Argument(help="Ids of held messages.")],
) -> None:
    """Make held messages available."""
    states = here.fabric.queue(name, create=False).release([as_bytes(each) for each in ids])
    if here.output.as_json:
        here.output.line(dict(zip(ids, states, strict=True)))
    else:
        here.output.table(("id", "state"), zip(ids, states, strict=True))


app.command()(held.held)
app.command()(reservations.reservations)
app.command()(reservations.unreserve)
