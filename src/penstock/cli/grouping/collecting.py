"""The client that takes results out of a queue, and notes every delivery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock import Delivery, Fabric, Queue, Refusal
from penstock.cli.demonstration.settling import ACCEPTED, UNKNOWN, verdicts
from penstock.cli.faulting.pace import Orders
from penstock.cli.grouping.load import LATE, RESULTS
from penstock.errors import ConflictError, UnavailableError

QUEUES = {1: RESULTS, 2: LATE}
IDLE_SECONDS = 1.0
LEASE_SECONDS = 10.0
PREFETCH = 1000


class Collected(msgspec.Struct, frozen=True, array_like=True):
    """One delivery. Shard and position name the message, however often it is delivered; `id` is
    what its headers say of where it was made."""

    shard: int
    position: int
    verdict: int
    pushed_us: int
    key: str
    id: str
    value: str


def collect(fabric: Fabric, number: int, folder: Path, orders: Orders) -> None:
    """Takes and acks all messages of a queue until it is told to end."""
    queue = fabric.queue(QUEUES[number])
    with _path(folder, number).open("ab", buffering=0) as file:
        collector = _Collector(queue, file)
        while not orders.end.is_set():
            try:
                for delivery in queue.consume_batches(IDLE_SECONDS, PREFETCH, LEASE_SECONDS):
                    collector.settle(delivery)
                    if orders.end.is_set():
                        break
            except UnavailableError:
                orders.end.wait(0.1)


class _Collector:
    def __init__(self, queue: Queue, file: BinaryIO) -> None:
        self._file = file
        self._refusals: list[Refusal] = []
        queue.on_refused = self._refusals.append

    def settle(self, delivery: Delivery) -> None:
        """Acks a whole delivery, and notes what became of it, message by message."""
        self._refusals.clear()
        others = ACCEPTED
        try:
            delivery.ack(wait=True)
        except ConflictError:
            pass
        except UnavailableError:
            others = UNKNOWN
        settled = verdicts(delivery, self._refusals, others).tolist()
        for message, verdict in zip(delivery, settled, strict=True):
            headers = message.headers
            made = headers.get("result-id") or headers.get("late-offset", b"")
            noted = Collected(
                message.shard, message.position, verdict, message.timestamp_us,
                (message.key or b"").decode(), made.decode(), message.value.decode(),
            )  # fmt: skip
            self._file.write(msgspec.json.encode(noted) + b"\n")


def collected(folder: Path, number: int) -> Iterator[Collected]:
    """All deliveries of a queue that were noted."""
    path = _path(folder, number)
    decode = msgspec.json.Decoder(Collected).decode
    if path.exists():
        with path.open("rb") as file:
            yield from map(decode, file)


def _path(folder: Path, number: int) -> Path:
    return folder / f"collected-{number}.jsonl"
