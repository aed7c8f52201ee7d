"""The options of the source: read, checked, and refused with a word on what would be right."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

from penstock.errors import InvalidError
from penstock.spark.meant import did_you_mean

Edge = Literal["earliest", "latest"]
Bound = Edge | datetime | Mapping[int, int | Edge]
"""Where reading begins or ends: for all partitions alike, by arrival, or for each partition."""

T = TypeVar("T")

_EDGES: dict[object, Edge] = {"earliest": "earliest", "latest": "latest", -2: "earliest",
                              -1: "latest"}  # fmt: skip
_TRUTHS = {"true": True, "false": False}
ROWS_PER_TASK = 500_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader of a topic was asked for. Plain values: it travels to the workers."""

    servers: str
    path: str
    topic: str  # or
    queue: str = ""
    namespace: str = "default"
    starting: Bound | None = None
    ending: Bound | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    headers: bool = False
    fail_on_data_loss: bool = True
    rows_per_task: int = ROWS_PER_TASK
    min_tasks: int = 1
    timeout: float = 30.0


SOURCE_NAMES = (
    "servers", "path", "topic", "queue", "namespace", "startingOffsets", "endingOffsets",
    "startingTime", "endingTime", "maxRowsPerBatch", "maxBytesPerBatch", "includeHeaders",
    "failOnDataLoss", "rowsPerTask", "minTasks", "timeout",
)  # fmt: skip
_TOPIC_ONLY = ("startingOffsets", "endingOffsets", "startingTime", "endingTime", "rowsPerTask",
               "failOnDataLoss")  # fmt: skip
_STREAM_ONLY = ("maxRowsPerBatch", "maxBytesPerBatch")
_BATCH_ONLY = ("endingOffsets", "endingTime")


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options as values; InvalidError says which is wrong, and how it should look."""
    options = named(given, SOURCE_NAMES)
    topic, queue = place_of(options, "source")
    if queue and (wrong := [name for name in _TOPIC_ONLY if name in options]):
        raise InvalidError(
            f"{wrong[0]} is for topics: a queue has no offsets",
            advice="A stream reads a queue from what is there now, and takes it away.",
        )
    return SourceOptions(
        options.get("servers", ""),
        absolute(options.get("path")),
        topic,
        queue,
        options.get("namespace", "default"),
        _bound(options, "starting"),
        _bound(options, "ending"),
        optional(options, "maxRowsPerBatch", positive),
        optional(options, "maxBytesPerBatch", positive),
        optional(options, "includeHeaders", truth) or False,
        optional(options, "failOnDataLoss", truth) is not False,
        optional(options, "rowsPerTask", positive) or ROWS_PER_TASK,
        optional(options, "minTasks", positive) or os.cpu_count() or 1,
        optional(options, "timeout", seconds) or 30.0,
    )


def refuse_batch_options(options: SourceOptions) -> None:
    """InvalidError if an option was given that only a batch reader knows."""
    if options.ending is not None:
        raise InvalidError(f"{' and '.join(_BATCH_ONLY)} are for batch reads; a stream has no end")


def refuse_stream_options(options: SourceOptions) -> None:
    """InvalidError if something was asked for that only a stream can do."""
    if options.queue:
        raise InvalidError(
            "a queue is read by a stream: a batch could not say when it is done with a message",
            advice="Use readStream; trigger(availableNow=True) takes what is there, and ends.",
        )
    if options.max_rows is not None or options.max_bytes is not None:
        raise InvalidError(f"{' and '.join(_STREAM_ONLY)} are for streams; a batch is read whole")


def place_of(options: Mapping[str, str], what: str) -> tuple[str, str]:
    """The topic or the queue, the other one empty; InvalidError if it is not said, or not where."""
    if ("servers" in options) == ("path" in options):
        raise InvalidError(
            f"the {what} needs `servers` or `path`, one of them",
            advice="servers: penstock://host:port of a node; path: a data directory on this "
            "machine, for which a node is started.",
        )
    topic, queue = options.get("topic", ""), options.get("queue", "")
    if bool(topic) == bool(queue):
        raise InvalidError(
            f"the {what} needs `topic` or `queue`, one of them", advice="Give the name of one."
        )
    return topic, queue


def absolute(path: str | None) -> str:
    """A data directory, wherever the process that uses it is."""
    return os.path.abspath(path) if path else ""


def named(given: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """By their full names: Spark does not tell upper from lower case."""
    known = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() not in known:
            raise InvalidError(
                f"unknown option {name!r}{did_you_mean(name, names)}",
                advice=f"Options are {', '.join(names)}.",
            )
        options[known[name.lower()]] = text
    return options


def optional(options: Mapping[str, str], name: str, read: Callable[[str], T]) -> T | None:
    """An option as a value; InvalidError names it, and says what is wrong."""
    if name not in options:
        return None
    try:
        return read(options[name])
    except ValueError as error:
        raise InvalidError(f"{name} = {options[name]!r}: {error}") from None


def positive(text: str) -> int:
    """A whole number above 0."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("use a whole number above 0")
    return number


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise ValueError("use a number of seconds above 0")
    return number


def truth(text: str) -> bool:
    """True or false."""
    if text.lower() not in _TRUTHS:
        raise ValueError("use true or false")
    return _TRUTHS[text.lower()]


def _bound(options: Mapping[str, str], side: str) -> Bound | None:
    offsets, time = f"{side}Offsets", f"{side}Time"
    if offsets in options and time in options:
        raise InvalidError(f"{offsets} and {time} say the same in two ways: give one of them")
    if time in options:
        return optional(options, time, _moment)
    return optional(options, offsets, _offsets)


def _moment(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("use seconds since 1970, or a time as 2030-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _offsets(text: str) -> Bound:
    if text.lower() in _EDGES:
        return _EDGES[text.lower()]
    advice = 'use earliest, latest or JSON by partition as {"0": 17, "1": "latest"}'
    try:
        decoded = json.loads(text)
        by_partition = {int(name): place for name, place in decoded.items()}
    except (ValueError, AttributeError):
        raise ValueError(advice) from None
    found: dict[int, int | Edge] = {}
    for partition, place in by_partition.items():
        if isinstance(place, str | int) and not isinstance(place, bool) and place in _EDGES:
            found[partition] = _EDGES[place]
        elif isinstance(place, int) and not isinstance(place, bool) and place >= 0:
            found[partition] = place
        else:
            raise ValueError(advice)
    return found
