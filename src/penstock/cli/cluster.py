"""`penstock cluster …`"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.command import DEFAULT_URL, Json, new_app, told_errors
from penstock.cli.local_cluster import down, up
from penstock.cli.output import Output

T = TypeVar("T")

Url = Annotated[
    str, typer.Option("--url", envvar="PENSTOCK_URL", help="Nodes of the cluster, with commas.")
]
NodeArgument = Annotated[int, typer.Argument(metavar="NODE", help="The id; see status.")]

app = new_app("Clusters: several nodes that share the shards and stand in for each other.")
app.command()(up)
app.command()(down)


@app.command()
def status(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Show the nodes, what they have, and what is not as it should be."""
    with told_errors(json):
        show(ask_status(url), Output(json))


@app.command()
def add(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Show what to run on another machine so that it joins."""
    with told_errors(json):
        found = ask_status(url)
        there = [node["address"] for node in found["nodes"] if node["status"] == "up"]
        seeds = " ".join(f"--join {address}" for address in there[:3])
        command = f"penstock serve --data DIR --listen HOST:PORT {seeds}"
        Output(json).record({"command": command}, command)


@app.command()
def drain(node: NodeArgument, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Move everything off a node; then it can be removed."""
    text = f"node {node} drains; `penstock cluster status` shows what is left on it"
    _change("drain", node, url, json, text)


@app.command()
def undrain(node: NodeArgument, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Use a node again that was drained."""
    _change("undrain", node, url, json, f"node {node} is used again")


@app.command()
def remove(node: NodeArgument, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Forget a node that has nothing any more; its id is never used again."""
    _change("remove", node, url, json, f"node {node} is no longer part of the cluster")


@app.command()
def replication(
    copies: Annotated[int, typer.Argument(help="How many copies of a shard there should be.")],
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Set how many copies of every shard are kept."""
    _change("replication", 0, url, json, f"{copies} copies are kept from now on", copies)


@app.command()
def rebalance(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Show what moves next. The cluster does it by itself; there is nothing to start."""
    with told_errors(json):
        found = ask_status(url, plan=True)
        steps, moves = found["plan"], found["moves"]
        lines = [*steps, f"{moves} shards are being copied, {len(steps)} steps follow"]
        text = "\n".join(lines) if steps or moves else "nothing has to move"
        Output(json).record({"moves": moves, "plan": steps}, text)


def show(found: dict[str, Any], output: Output) -> None:
    """The state of a cluster: a table of nodes, and a line for each thing to know."""
    if output.as_json:
        output.line(found)
        return
    columns = (
        "node", "address", "status", "owns", "copies", "in sync", "linked", "release", "name",
    )  # fmt: skip
    rows = [
        (
            node["id"], node["address"] or "-", node["status"], node["owns"], node["has"],
            node["in_sync"], node["linked"], node["release"] or "-", node["name"],
        )
        for node in found["nodes"]
    ]  # fmt: skip
    output.table(columns, rows)
    consensus = found["consensus"]
    leader = f"node {consensus['leader']}" if consensus["leader"] else "nobody"
    voters = ", ".join(map(str, consensus["voters"]))
    typer.echo(
        f"{found['shards']} shards, replication {found['replication']}, "
        f"{found['moves']} being copied; {leader} leads in term {consensus['term']}, "
        f"nodes {voters} vote; level {found['level']}; map {found['version']} as node "
        f"{found['node']} knows it"
    )
    for what, who, why in found["rows"]:
        typer.secho(f"{what}: {who}: {why}", fg="yellow")


def _change(
    action: str, node: int, url: str, as_json: bool, text: str, value: int = 0
) -> None:
    with told_errors(as_json):
        version = change_cluster(action, node, url, value)
        Output(as_json).record({"version": version}, text)


def change_cluster(action: str, node: int, url: str, value: int = 0) -> int:
    """Has the cluster decide something about a node; the version of the map after it."""
    from penstock.wire.messages import ClusterChange

    return _ask(url, ClusterChange(action, node, value), int)


def ask_status(url: str, plan: bool = False) -> dict[str, Any]:
    """The state of a cluster, from the first node that can be reached."""
    from penstock.wire.messages import ClusterStatus

    return _ask(url, ClusterStatus(plan), dict[str, Any])


def _ask(url: str, call: Any, answer: type[T]) -> T:
    """The answer of the first node that can be reached."""
    import asyncio

    from penstock.node.node import parse_address
    from penstock.node.remote import ask_any

    addresses = url.removeprefix("penstock://").rstrip("/").split(",")
    return asyncio.run(ask_any([parse_address(each) for each in addresses], call, answer))
