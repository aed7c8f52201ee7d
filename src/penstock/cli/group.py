"""`penstock group …`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Here, new_app, on_fabric
from penstock.cli.streams import show_rows
from penstock.cli.units import duration_text

if TYPE_CHECKING:
    from penstock import ClaimStatus, Topic

app = new_app("Groups: how far they have read topics, and who of them reads what.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)]


@app.command("list")
@on_fabric
def list_all(
    here: Here,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only of this.")] = None,
) -> None:
    """List the groups of a topic, or of all topics."""
    names = [info.name for info in here.fabric.topics()] if topic is None else [topic]
    rows = [row for name in names for row in _groups(here.fabric.topic(name, create=False))]
    show_rows(here, rows)


def _groups(topic: Topic) -> Iterable[dict[str, Any]]:
    for group in topic.stats()["groups"]:
        claims = topic.claims(group).values()
        yield {
            "topic": topic.name,
            "group": group,
            "partitions": sum(each.offset is not None for each in claims),
            "owners": len({each.owner for each in claims if each.owner and each.left_ms}),
            "lag": sum(each.lag for each in claims),
        }


@app.command()
@on_fabric
def show(here: Here, topic: TopicName, group: GroupName) -> None:
    """Show, for each partition, where a group stands and who reads it."""
    claims = here.fabric.topic(topic, create=False).claims(group)
    rows = [_row(partition, status) for partition, status in claims.items()]
    if here.output.as_json:
        here.output.line(rows)
        return
    for row in rows:
        age_ms = row.pop("oldest_ms")
        row["oldest"] = duration_text(age_ms / 1000) if row["lag"] else None
    here.output.table(list(rows[0]), [list(row.values()) for row in rows])


def _row(partition: int, status: ClaimStatus) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": status.offset,
        "lag": status.lag,
        "owner": status.owner if status.left_ms and status.owner else None,
        "reserved": status.reserved if status.left_ms and status.reserved else None,
        "token": status.token,
        "oldest_ms": status.age_ms,
    }
