"""`penstock metrics …`"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from penstock.cli.command import (
    DEFAULT_URL,
    Json,
    Namespace,
    Url,
    fabric_at,
    new_app,
    told_errors,
)
from penstock.cli.output import Output
from penstock.cli.units import duration

app = new_app("Figures of nodes, queues and topics, for other programs.")

TIMEOUT_S = 5.0
SHORTEST_S = 0.1
TOPIC = "penstock.metrics"


@app.command()
def export(
    topic: Annotated[str, typer.Option("--topic", help="Where the records go.")] = TOPIC,
    every: Annotated[
        float, typer.Option("--every", parser=duration, metavar="TIME", help="Between samples.")
    ] = 1.0,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="End after so many.")
    ] = None,
    probes: Annotated[
        int, typer.Option("--probes", min=1, max=100, help="Answers timed in a sample, per node.")
    ] = 5,
    retention: Annotated[
        float, typer.Option("--retention", parser=duration, metavar="TIME", help="Of a new topic.")
    ] = 86_400.0,
    url: Url = DEFAULT_URL,
    namespace: Namespace = "default",
    json: Json = False,
) -> None:
    """Publish the figures of all nodes, queues and topics into a topic, again and again.

    Ends by Ctrl-C. A node that does not answer has a record that says so.
    """
    from penstock.cli.exporting import Exporter
    from penstock.errors import UnavailableError

    output = Output(json)
    with told_errors(json), fabric_at(url, None, namespace, TIMEOUT_S) as fabric:
        target = fabric.topic(topic, partitions=1, retention=retention)
        exporter = Exporter(fabric, url, probes)
        taken = 0
        with suppress(KeyboardInterrupt):
            due = time.monotonic()
            while samples is None or taken < samples:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due, time.monotonic() - every) + max(every, SHORTEST_S)
                try:
                    publish(target, exporter.sample())
                except UnavailableError as error:
                    output.note(f"a sample is lost: {error.message}")
                taken += 1
        told = {"samples": taken, "topic": topic}
        output.record(told, f"{taken:,} samples published to {topic}")


def publish(topic: Any, records: list[dict[str, Any]]) -> None:
    """Records as JSON, with the name as key and the time of the sample."""
    topic.publish_many(
        [json.dumps(each, separators=(",", ":")).encode() for each in records],
        keys=[each["name"].encode() for each in records],
        timestamps=[each["time_us"] / 1e6 for each in records],
    )
