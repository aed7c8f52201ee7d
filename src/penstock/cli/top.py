"""`penstock top`: a node as it works."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cli.command import Here, on_fabric
from penstock.cli.live import Interval, Once, show_samples
from penstock.cli.output import grid
from penstock.cli.units import duration_text, size_text

if TYPE_CHECKING:
    from penstock import Fabric

MAX_STREAMS = 200  # asked for at every turn; the others are only counted


@dataclass
class StreamRow:
    """One queue or topic. Rates are per second, since the last sample."""

    kind: str
    name: str
    messages: int
    bytes: int
    total_in: int
    total_out: int
    ready: int | None = None
    leased: int | None = None
    dead: int | None = None
    oldest_ms: int | None = None
    in_rate: float | None = None
    out_rate: float | None = None


@dataclass
class Sample:
    """The figures of a node at one moment."""

    time: float
    node: dict[str, Any]
    streams: list[StreamRow] = field(default_factory=list)
    hidden: int = 0

    def compare(self, before: Sample) -> None:
        """Fills in the rates since an earlier sample."""
        seconds = max(self.time - before.time, 1e-6)
        known = {(row.kind, row.name): row for row in before.streams}
        for row in self.streams:
            if (old := known.get((row.kind, row.name))) is not None:
                row.in_rate = max(0, row.total_in - old.total_in) / seconds
                row.out_rate = max(0, row.total_out - old.total_out) / seconds


@on_fabric
def top(here: Here, interval: Interval = 1.0, once: Once = False) -> None:
    """Show what a node does, live. With --json, one line for each sample."""
    show_samples(here.output, lambda: take_sample(here.fabric), _screen, interval, once)


def take_sample(fabric: Fabric) -> Sample:
    """Figures of the node, its queues and its topics."""
    from penstock import Queue, Topic

    node = fabric.stats()
    queues, topics = fabric.queues(), fabric.topics()
    sample = Sample(time.monotonic(), node, hidden=max(0, len(queues) + len(topics) - MAX_STREAMS))
    for info in queues[:MAX_STREAMS]:
        sample.streams.append(queue_row(Queue(fabric, info).stats()))
    for info in topics[: MAX_STREAMS - len(sample.streams)]:
        sample.streams.append(topic_row(Topic(fabric, info).stats()))
    return sample


def queue_row(figures: dict[str, Any]) -> StreamRow:
    """Whatever was pushed and is not there any more has left."""
    messages = figures["messages"]
    return StreamRow(
        "queue", figures["name"], messages, figures["bytes"], figures["pushed"],
        figures["pushed"] - messages, figures["ready"], figures["leased"], figures["dead"],
        figures["oldest_ms"],
    )  # fmt: skip


def topic_row(figures: dict[str, Any]) -> StreamRow:
    """Readers leave no trace in a topic: what leaves it is what retention forgets."""
    parts = figures["partitions"]
    return StreamRow(
        "topic", figures["name"], figures["messages"], figures["bytes"],
        sum(part["end"] for part in parts), sum(part["start"] for part in parts),
    )  # fmt: skip


def _screen(sample: Sample) -> Any:
    from rich.console import Group
    from rich.text import Text

    node = sample.node
    line = (
        f"{node['connections']:,} connections   {node['messages']:,} messages   "
        f"{size_text(node['disk_bytes'])} used on disk, {size_text(node['live_bytes'])} live   "
        f"{size_text(node['unwritten_bytes'])} unwritten   {node['damaged']:,} damaged"
    )
    parts: list[Any] = [Text(line, style="bold")]
    if node["refusing"] is not None:
        parts.append(Text(f"takes no writes: {node['refusing']}", style="red"))
    columns = ("", "name", "in/s", "out/s", "ready", "leased", "dead", "oldest", "messages", "size")
    parts += [Text(), grid(columns, [_cells(row) for row in sample.streams])]
    if sample.hidden:
        parts.append(Text(f"and {sample.hidden:,} more", style="dim"))
    return Group(*parts)


def _cells(row: StreamRow) -> tuple[object, ...]:
    age = None if row.oldest_ms is None else duration_text(row.oldest_ms / 1000)
    return (
        row.kind, row.name, _rate(row.in_rate), _rate(row.out_rate), row.ready, row.leased,
        row.dead, age, row.messages, size_text(row.bytes),
    )  # fmt: skip


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
