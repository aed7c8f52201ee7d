"""How long a node takes to open a directory that was left behind by a kill."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path

from penstock import connect
from penstock.cli.benchmarks.figures import COUNT, SECONDS, Figure, Figures
from penstock.cli.benchmarks.processes import NodeProcess
from penstock.cli.benchmarks.settings import Settings

SINGLE_BYTES = 1000  # singles of 50 bytes would take hours to make a GiB
_PATIENCE_SECONDS = 600.0


def reopen(settings: Settings, directory: Path, single: bool) -> Figures:
    """Fills a directory with 1 GiB, kills the node, and starts it again; then a clean stop."""
    name = "recovery singles" if single else "recovery batches"
    size = SINGLE_BYTES if single else settings.size
    count = settings.scaled(1 << 30, 16 << 20) // size
    data = directory / name.replace(" ", "-")
    with NodeProcess(data) as node:
        empty = node.start_seconds
        with connect(node.url) as fabric:
            queue = fabric.queue("bench-recovery", durability="written")
            queue.push_many(repeat(bytes(size), count), batch=1 if single else settings.batch)
        node.kill()
    with NodeProcess(data, patience=_PATIENCE_SECONDS) as node:
        killed = node.start_seconds
        with connect(node.url) as fabric:
            found = fabric.queue("bench-recovery").stats()["messages"]
    with NodeProcess(data, patience=_PATIENCE_SECONDS) as node:
        stopped = node.start_seconds
    if found != count:
        raise RuntimeError(f"{found:,} of {count:,} messages were recovered")
    return {
        name: Figure(killed, SECONDS),
        f"{name}/after a clean stop": Figure(stopped, SECONDS),
        f"{name}/empty directory": Figure(empty, SECONDS),
        f"{name}/messages": Figure(count, COUNT),
    }
