"""`penstock queue reservations`, `penstock queue unreserve`"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli import streams
from penstock.cli.command import Here, on_fabric
from penstock.cli.streams import Name, Yes


@on_fabric
def reservations(here: Here, name: Name) -> None:
    """Print who holds reservations of a queue, since when, and how much."""
    rows = [
        {
            "key": each.key,
            "number": each.number,
            "since": moment(each.since_us),
            "messages": each.messages,
            "shards": len(each.parts),
        }
        for each in here.fabric.queue(name, create=False).reservations()
    ]
    streams.show_rows(here, rows)


@on_fabric
def unreserve(
    here: Here,
    name: Name,
    key: Annotated[str, typer.Argument(help="Who holds the reservations.")],
    number: Annotated[
        list[int] | None, typer.Option("--number", "-n", help="Only this one; may be repeated.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Have messages of reservations back: others get them, and their reader cannot finish them."""
    streams.confirm(yes, f"Take what {key} has reserved of queue {name} away from it?")
    given_back = here.fabric.queue(name, create=False).unreserve(key, number or None)
    here.output.record({"messages": given_back}, f"{given_back:,} messages are available again")


def moment(time_us: int) -> str:
    """A time for people and programs."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")
