"""`penstock group …`"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Here, new_app, on_fabric
from penstock.cli.streams import show_rows
from penstock.cli.units import duration_text, size_text

if TYPE_CHECKING:
    from penstock import ClaimStatus, Topic
    from penstock.consumers.observe import GroupView

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
    """Show, for each partition, where a group stands, who reads it, and what it last went through.

    Objects, state, rate and moves are what stateful consumers say of themselves.
    """
    from penstock.consumers.observe import view_group

    view = view_group(here.fabric, topic, group)
    rows = [_row(view, partition, status) for partition, status in view.claims.items()]
    if here.output.as_json:
        here.output.line(rows)
        return
    for row in rows:
        age_ms = row.pop("oldest_ms")
        row["oldest"] = duration_text(age_ms / 1000) if row["lag"] else None
        row["state"] = None if row["state"] is None else size_text(row["state"])
        row["last"] = None if row["last"] is None else _move_text(row["last"])
    if not view.figures:  # a group of plain readers has none of these
        for row in rows:
            for name in ("open", "held", "state", "rate", "last"):
                del row[name]
    here.output.table(list(rows[0]), [list(row.values()) for row in rows])


def _row(view: GroupView, partition: int, status: ClaimStatus) -> dict[str, Any]:
    told = view.of_partition(partition) if status.left_ms else {}
    return {
        "partition": partition,
        "offset": status.offset,
        "lag": status.lag,
        "owner": status.owner if status.left_ms and status.owner else None,
        "reserved": status.reserved if status.left_ms and status.reserved else None,
        "token": status.token,
        "oldest_ms": status.age_ms,
        "open": told.get("open"),
        "held": told.get("held"),
        "state": told.get("state"),
        "rate": told.get("rate"),
        "last": next(iter(view.last_moves(partition, 1)), None),
    }


def _move_text(move: dict[str, Any]) -> str:
    ago_s = max(0.0, time.time() - move["at_us"] / 1e6)
    return f"{duration_text(ago_s)} ago {move['what']}: {move['why']}"


@app.command()
@on_fabric
def members(here: Here, topic: TopicName, group: GroupName) -> None:
    """Show the members of a group, and what they say of themselves.

    Gaps are how long partitions stood still when they were handed over, or resumed after a crash.
    """
    from penstock.consumers.observe import view_group

    view = view_group(here.fabric, topic, group)
    told = [
        {"id": id, "draining": member.drain is not None, **view.figures.get(id, {})}
        for id, member in sorted(view.members.items())
    ]
    if here.output.as_json:
        here.output.line(told)
        return
    if not told:
        here.output.note("there are none")
        return
    columns = [
        "id", "host", "pid", "partitions", "rate", "results", "lag", "open", "held", "draining",
        "handed over", "resumed", "read again",
    ]  # fmt: skip
    here.output.table(columns, [_member_row(each) for each in told])


def _member_row(told: dict[str, Any]) -> list[object]:
    names = ("rate", "results", "lag", "open", "held", "draining")
    return [
        told["id"], told.get("host"), str(told.get("pid", "-")), len(told.get("partitions", ())),
        *(told.get(name) for name in names), _gap_text(told.get("handovers")),
        _gap_text(told.get("resumes")), told.get("read_again"),
    ]  # fmt: skip


def _gap_text(gaps: dict[str, float] | None) -> str | None:
    if not gaps or not gaps["count"]:
        return None
    return (
        f"{gaps['count']:,} in {gaps['p50_ms']:,.0f} ms, "
        f"p99 {gaps['p99_ms']:,.0f}, at most {gaps['max_ms']:,.0f}"
    )


@app.command("explain")
@on_fabric
def explain_one(
    here: Here,
    topic: TopicName,
    group: GroupName,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
) -> None:
    """Tell why a partition is where it is, what happens next, and what happened to it."""
    from penstock.consumers.observe import explain_partition, view_group

    view = view_group(here.fabric, topic, group)
    told = explain_partition(view, partition)
    moves = view.last_moves(partition)
    if here.output.as_json:
        parts = {"where": told.where, "why": told.why, "next": told.next}
        here.output.line({"partition": partition, **parts, "moves": moves})
        return
    lines = [told.where, told.why, told.next]
    for move in moves:
        at = datetime.fromtimestamp(move["at_us"] / 1e6, UTC).isoformat(timespec="milliseconds")
        lines.append(f"{at} {move['member']} {move['what']}: {move['why']}")
    typer.echo("\n".join(filter(None, lines)))
