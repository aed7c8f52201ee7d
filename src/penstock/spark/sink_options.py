"""The options of the sink: read, checked, and refused with a word on what would be right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.client.stages import DAY_S
from penstock.errors import InvalidError
from penstock.spark.options import absolute, named, optional, place_of, seconds
from penstock.wire.codec import NAMES as CODECS


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was asked for. Plain values: it travels to the workers."""

    servers: str
    path: str
    topic: str  # or
    queue: str = ""
    namespace: str = "default"
    query: str = ""  # what the numbers of micro-batches belong to; else Spark's id of the query
    checkpoint: str = ""  # of the query, if the sink was told
    name: str = ""  # of the query
    job: str = ""  # of a batch write
    number: int = 0
    expires: float = DAY_S
    compression: str = "none"
    timeout: float = 30.0

    @property
    def target(self) -> str:
        """What is written to, for keys of publications."""
        return f"topic:{self.topic}" if self.topic else f"queue:{self.queue}"


SINK_NAMES = (
    "servers", "path", "topic", "queue", "namespace", "checkpointLocation", "queryName", "queryId",
    "jobId", "jobNumber", "stageExpires", "compression", "timeout",
)  # fmt: skip


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options as values; InvalidError says which is wrong, and how it should look."""
    options = named(given, SINK_NAMES)
    topic, queue = place_of(options, "sink")
    return SinkOptions(
        options.get("servers", ""),
        absolute(options.get("path")),
        topic,
        queue,
        options.get("namespace", "default"),
        options.get("queryId", ""),
        options.get("checkpointLocation", ""),
        options.get("queryName", ""),
        options.get("jobId", ""),
        optional(options, "jobNumber", _number) or 0,
        optional(options, "stageExpires", seconds) or DAY_S,
        optional(options, "compression", _codec) or "none",
        optional(options, "timeout", seconds) or 30.0,
    )


def check_stream_sink(options: SinkOptions) -> None:
    """InvalidError if a stream could not be written once, whatever happens."""
    if options.job or options.number:
        raise InvalidError("jobId and jobNumber are for batch writes; a stream counts its batches")
    if not (options.checkpoint or options.name or options.query):
        # Spark takes a directory from the session, and one by chance below it without a name.
        raise InvalidError(
            "the sink needs `checkpointLocation`, or the query a name: without either it begins "
            "anew each time it is started, and would write everything twice",
            advice='Give .option("checkpointLocation", "..."), .queryName("...") or a queryId.',
        )


def check_batch_sink(options: SinkOptions) -> None:
    """InvalidError if an option was given that only a stream knows, or a number without a job."""
    if options.query:
        raise InvalidError("queryId is for streams; give a batch write a jobId")
    if options.number and not options.job:
        raise InvalidError("jobNumber counts the writes of a jobId: give that, too")


def _number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError("use a whole number, 0 or more")
    return number


def _codec(text: str) -> str:
    if text not in CODECS:
        raise ValueError(f"use {', '.join(CODECS)}")
    return text
