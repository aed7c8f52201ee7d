"""`penstock serve`: a node in the foreground."""

from __future__ import annotations

import logging
import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command import Json, told_errors
from penstock.cli.output import Output
from penstock.cli.units import duration_text

if TYPE_CHECKING:
    from penstock.node.node import Config, Node


class LogLevel(StrEnum):
    """How much the node says while it runs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def serve(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="The data directory; made if missing.")
    ] = "./penstock-data",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any that is free.")
    ] = "127.0.0.1:7411",
    max_connections: Annotated[int, typer.Option("--max-connections", min=1)] = 10_000,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Start without what is damaged; see doctor.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Found a cluster, from this directory; once.")
    ] = False,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="HOST:PORT", help="Join the cluster of this node; once."),
    ] = None,
    advertise: Annotated[
        str,
        typer.Option("--advertise", metavar="HOST[:PORT]", help="Where other nodes find this one."),
    ] = "",
    awake_us: Annotated[
        int,
        typer.Option(
            "--awake-us", metavar="US", min=0, max=10_000,
            help="Stay awake so long for the next request, where requests come that soon.",
        ),
    ] = 120,
    log_level: Annotated[LogLevel, typer.Option("--log-level")] = LogLevel.WARNING,
    json: Json = False,
) -> None:
    """Run a node until SIGTERM or Ctrl-C."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    with told_errors(json):
        from penstock.node.node import Config, parse_address

        host, port = parse_address(listen)
        config = Config(
            data=data, host=host, port=port, max_connections=max_connections,
            accept_damage=accept_damage, cluster=cluster,
            join=tuple(map(parse_address, join or ())), advertise=advertise, awake_us=awake_us,
        )  # fmt: skip
        _run(config, Output(json))


def _run(config: Config, output: Output) -> None:
    from penstock.errors import DamagedError, InvalidError, StorageError
    from penstock.node import node as nodes

    begun = time.monotonic()
    running: list[Node] = []

    def started(node: Node) -> None:
        running.append(node)
        _tell_start(node, time.monotonic() - begun, output)

    try:
        nodes.run_loop(nodes.serve(config, started))
    except DamagedError as error:
        raise DamagedError(error.message, advice=(
            f"Run `penstock doctor {config.data}` to see what is lost, then restore a copy or "
            "start with --accept-damage."
        )) from None  # fmt: skip
    except OSError as error:
        number = error.errno or 0  # not above 0: a name that is not found
        reason = os.strerror(number) if number > 0 else error.strerror or error
        raise InvalidError(
            f"cannot listen on {config.host}:{config.port}: {reason}",
            advice="Stop what uses it, or choose another address with --listen.",
        ) from None
    if (refusal := running[0].engine.journal.stopped) is not None:
        raise StorageError(f"stopped while the disk refused writes: {refusal}")
    output.record({"event": "stopped"}, "stopped; all that was acknowledged is on the disk")


def _tell_start(node: Node, seconds: float, output: Output) -> None:
    found = node.engine.recovered
    told: dict[str, Any] = {
        "event": "started", "url": node.url, "data": node.config.data, "seconds": round(seconds, 3),
        "recovered": found,
    }  # fmt: skip
    text = (
        f"serving {node.url} from {node.config.data}: {found_text(found)}, "
        f"ready in {duration_text(seconds)}"
    )
    if node.cluster is not None:
        identity = node.cluster.identity
        told |= {"node": identity.node, "cluster": f"{identity.cluster:x}"}
        text += f"; node {identity.node} of cluster {identity.cluster:x}"
    output.record(told, text)
    if is_exposed(node.address[0]):
        typer.secho(
            "warning: whoever reaches this address can read and change everything; there is no "
            "authentication yet",
            fg="yellow",
            err=True,
        )


def is_exposed(address: str) -> bool:
    """Whether other machines may reach a node that listens there."""
    import ipaddress

    return not ipaddress.ip_address(address).is_loopback


def found_text(found: dict[str, Any]) -> str:
    """What recovery found, for the start line."""
    parts = [f"{found['records']:,} records replayed"]
    if found["cut"]:
        parts.append(f"torn end cut off ({found['cut']})")
    if count := len(found["damages"]):
        lost = found["lost_messages"]
        parts.append(f"{count:,} damages, {lost:,} batches lost (see penstock doctor)")
    return ", ".join(parts)
